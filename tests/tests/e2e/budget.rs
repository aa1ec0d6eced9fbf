//! What a node costs the API: connections, and requests while nothing happens or the node is not Ready.

use std::{fmt::Write as _, time::Duration};

use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually};

/// kubelet's default of `maxPods`.
const PODS: usize = 110;
const MAX_CONNECTIONS: usize = 4;
/// Long enough for a loop to show, short enough for a test.
const WINDOW: Duration = Duration::from_secs(15);

/// Requests of the node that the API has logged, without the renewals of its lease.
fn requests(log: &str) -> Vec<&str> {
    let of_node = |line: &&str| line.contains("handled request") && line.contains("system:node:node");
    log.lines().filter(of_node).filter(|line| !line.contains("/leases/")).collect()
}

/// Nothing but the lease is asked for in a while.
#[track_caller]
fn is_quiet(server: &Daemon, what: &str) {
    eventually(DEFAULT_TIMEOUT, what, || {
        let before = requests(&server.log()).len();
        std::thread::sleep(WINDOW);
        let log = server.log();
        let after = requests(&log);
        anyhow::ensure!(after.len() == before, "{} requests, the last is {:?}", after.len() - before, after.last());
        Ok(())
    });
}

fn pods() -> String {
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

#[test]
fn a_node_has_few_connections_and_asks_for_nothing_at_rest() {
    let mut testbed = Testbed::new();
    testbed.stop_docker();
    let (server, node) = {
        let windlass = testbed.windlass();
        let server = windlass.api_alone();
        let pki = testbed.dir().join("data/pki");
        let mut command = windlass.command("agent");
        command.arg("--kubeconfig").arg(pki.join("node.kubeconfig"));
        command.arg("--tls-cert-file").arg(pki.join("kubelet.crt"));
        command.arg("--tls-private-key-file").arg(pki.join("kubelet.key"));
        command.args(["--run-dir", &testbed.dir().join("agent-run").to_string_lossy()]);
        command.args(["--data-dir", &testbed.dir().join("agent-data").to_string_lossy()]);
        let node = Daemon::start("windlass agent", &mut command, &testbed.dir().join("agent.log")).unwrap();
        (server, node)
    };
    eventually(DEFAULT_TIMEOUT, "the node has registered", || {
        testbed.windlass().kubectl().try_run(&["get", "node", "node"])
    });
    is_quiet(&server, "a node that is not Ready asks for nothing");
    testbed.start_docker();
    let windlass = testbed.windlass();
    let kubectl = windlass.kubectl();
    kubectl.apply(&pods());
    eventually(DEFAULT_TIMEOUT * 5, "all pods are Ready", || kubectl.ready_pods("test=budget", PODS));
    is_quiet(&server, "a full node at rest asks for nothing");
    let open =
        testbed.sh(&format!("ss -Htnp state established '( dport = :6443 )' | grep -c 'pid={},' || true", node.pid()));
    let open: usize = open.trim().parse().unwrap();
    assert!((1..=MAX_CONNECTIONS).contains(&open), "{open} connections");
}
