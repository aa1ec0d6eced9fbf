//! An idle node writes nothing, asks the API for nothing, has few connections to it, and leaves its cores to others.

use std::{fmt::Write as _, fs, time::Duration};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, Usage, eventually, own_megabytes};

use crate::{WEB, shared_dir::condition, shell_pod};

/// Long enough for a loop to show, short enough for a test.
const WINDOW: Duration = Duration::from_secs(4);
/// Longer than any loop that looks at the node's state.
const LONG_WINDOW: Duration = Duration::from_secs(15);
/// Longer than each of the periods after which something may be looked at again, but for those of minutes.
const QUIET: Duration = Duration::from_secs(70);
/// The least time between two reports of a status that has not changed: half of five minutes, by which the first one after a
/// change comes early.
const MIN_REPORT_INTERVAL: i64 = 150;
/// The part of a core that an idle node may take, in the tests' slow build. A loop that spins takes all of one.
const MAX_SHARE_OF_A_CORE: f64 = 0.15;
/// What of its memory is not pages of its program; docs/performance.md has the shipped program's.
const MAX_MEGABYTES: f64 = 60.0;
/// kubelet's default of `maxPods`.
const PODS: usize = 110;
const MAX_CONNECTIONS: usize = 4;

/// Requests that the API has logged, without the renewals of leases.
fn requests(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| line.contains("handled request") && !line.contains("/leases/"))
}

/// Write requests.
fn writes(log: &str) -> Vec<&str> {
    let verbs = ["create", "update", "patch", "delete", "deletecollection"].map(|verb| format!("verb=\"{verb}\""));
    requests(log).filter(|line| verbs.iter().any(|verb| line.contains(verb))).collect()
}

/// Requests of the node.
fn requests_of_node(log: &str) -> Vec<&str> {
    requests(log).filter(|line| line.contains("user=\"system:node:node\"")).collect()
}

/// No more such requests are logged in a while.
#[track_caller]
fn settles(what: &str, window: Duration, of: fn(&str) -> Vec<&str>, mut log: impl FnMut() -> String) {
    eventually(DEFAULT_TIMEOUT, what, || {
        let before = of(&log()).len();
        std::thread::sleep(window);
        let log = log();
        let after = of(&log);
        anyhow::ensure!(before > 0, "nothing is logged: {log}");
        anyhow::ensure!(after.len() == before, "{} requests, the last is {:?}", after.len() - before, after.last());
        Ok(())
    });
}

/// The status of a Node without the times of its reports, and the time of the last one.
fn status_and_report(node: &Value) -> (Value, Timestamp) {
    let mut status = node["status"].clone();
    let conditions = status["conditions"].as_array_mut().expect("conditions");
    let times = conditions.iter_mut().map(|condition| condition["lastHeartbeatTime"].take());
    let last = times.filter_map(|time| time.as_str()?.parse().ok()).max().expect("the time of a report");
    (status, last)
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(WEB);
    kubectl.apply(&shell_pod("init-fails", "Never", "exit 1"));
    let _ = kubectl.run(&["wait", "pod", "-l", "app=web", "--for=condition=Ready", "--timeout=60s"]);
    settles("a node that has started its pods is quiet", WINDOW, writes, || windlass.daemon().log());
    let _ = kubectl.run(&["delete", "pod", "-l", "app=web"]);
    // The store is looked at twice a minute, and has an image more since the first pod.
    eventually(DEFAULT_TIMEOUT, "the node has told of the image of sandboxes", || {
        let images = kubectl.json(&["node", "node"])?["status"]["images"].to_string();
        anyhow::ensure!(images.contains("pause"), "{images}");
        Ok(())
    });
    settles("a node that has replaced its pods is quiet", WINDOW, writes, || windlass.daemon().log());
    // One quiet window proves nothing of a loop whose period is longer than it: now a long one, once.
    let node = || status_and_report(&kubectl.json(&["node", "node"]).unwrap());
    let ((status, reported), pid, before) = (node(), windlass.daemon().pid(), writes(&windlass.daemon().log()).len());
    let usage = Usage::of(pid).unwrap();
    std::thread::sleep(QUIET);
    let used = Usage::of(pid).unwrap().since(&usage);
    let log = windlass.daemon().log();
    let written = &writes(&log)[before..];
    // A node reports its status every five minutes, changed or not: the write must be that report.
    let is_report = |line: &&str| {
        ["user=\"system:node:node\"", "path=\"/api/v1/nodes/node/status\""].iter().all(|word| line.contains(word))
    };
    assert!(written.len() <= 1 && written.iter().all(is_report), "was written though nothing changed: {written:?}");
    if !written.is_empty() {
        let (told, again) = node();
        assert_eq!(told, status, "a report of what has changed, though nothing did");
        let since = again.duration_since(reported).as_secs();
        assert!(since >= MIN_REPORT_INTERVAL, "a report of what has not changed, {since} s after the one before");
    }
    let share = used.cpu.as_secs_f64() / QUIET.as_secs_f64();
    assert!(share < MAX_SHARE_OF_A_CORE, "an idle node takes {share:.3} of a core");
    let own = own_megabytes(pid).unwrap();
    assert!(own < MAX_MEGABYTES, "an idle node has {own:.1} MB of its own");
    windlass.kill();
    windlass.up();
    let page = eventually(DEFAULT_TIMEOUT, "the node tells its metrics", || {
        testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:10255/metrics")
    });
    assert!(page.contains("# TYPE windlass_empty_writes_total counter"), "{page}");
    assert!(!page.contains("windlass_empty_writes_total{"), "something was written in vain:\n{page}");
}

fn pods_with_a_config_map() -> String {
    let mut text = String::new();
    for number in 0..PODS {
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: own-{number}}}\ndata: {{a: b}}\n---\napiVersion: v1\nkind: Pod\n\
             metadata: {{name: p-{number}, labels: {{test: budget}}}}\nspec:\n  nodeName: node\n  hostNetwork: true\n  terminationGracePeriodSeconds: 1\n  \
             containers:\n  - {{name: main, image: 'windlass/busybox:1', command: [sleep, '100000'], volumeMounts: [{{name: own, mountPath: /own}}]}}\n  \
             volumes: [{{name: own, configMap: {{name: own-{number}}}}}]\n"
        );
    }
    text
}

/// What 500 of them would cost an API server, not Ready and full.
#[test]
fn a_node_has_few_connections_and_asks_for_nothing_at_rest() {
    let testbed = Testbed::new();
    let windlass = testbed.windlass();
    let server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    let (pki, conf) = (testbed.dir().join("data/pki"), testbed.dir().join("cni.d"));
    fs::create_dir_all(&conf).unwrap();
    let mut command = windlass.command("agent");
    command.arg("--kubeconfig").arg(pki.join("node.kubeconfig"));
    command.arg("--tls-cert-file").arg(pki.join("kubelet.crt"));
    command.arg("--tls-private-key-file").arg(pki.join("kubelet.key"));
    command.args(["--network", "cni", "--cni-conf-dir"]).arg(&conf);
    command.arg("--run-dir").arg(testbed.dir().join("agent-run"));
    command.arg("--data-dir").arg(testbed.dir().join("agent-data"));
    let node = Daemon::start("windlass agent", &mut command, &testbed.dir().join("agent.log")).unwrap();
    let is = |status: &str| {
        eventually(DEFAULT_TIMEOUT, "the node tells its state", || {
            let ready = condition(&kubectl.json(&["node", "node"])?, "Ready");
            anyhow::ensure!(ready["status"] == status, "{ready}; {}", node.log());
            Ok(())
        });
    };
    is("False");
    settles("a node that is not Ready asks for nothing", LONG_WINDOW, requests_of_node, || server.log());
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni-pods",
        "ipam": {"type": "host-local", "dataDir": testbed.dir().join("leases"), "ranges": [[{"subnet": "10.99.0.0/24"}]]}}]});
    fs::write(conf.join("10-pods.conflist"), list.to_string()).unwrap();
    is("True");
    kubectl.apply(&pods_with_a_config_map());
    eventually(DEFAULT_TIMEOUT * 5, "all pods are Ready", || kubectl.ready_pods("test=budget", PODS));
    settles("a full node at rest asks for nothing", LONG_WINDOW, requests_of_node, || server.log());
    let open =
        testbed.sh(&format!("ss -Htnp state established '( dport = :6443 )' | grep -c 'pid={},' || true", node.pid()));
    let open: usize = open.trim().parse().unwrap();
    assert!((1..=MAX_CONNECTIONS).contains(&open), "{open} connections");
}
