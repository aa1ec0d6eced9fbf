//! `windlass join` and `windlass leave` in a cluster with bootstrap tokens like kubeadm's.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;
use serde_json::json;
use windlass_tests::{
    DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, Windlass,
    cluster::{ADDRESS, PORT, Part},
    eventually,
};

crate::tests![
    a_machine_joins_leaves_and_joins_again,
    a_join_that_is_wrong_is_refused_and_leaves_nothing,
    a_join_that_is_killed_leaves_a_node_or_none,
];

const ID: &str = "abcdef";
const SECRET: &str = "fedcba9876543210";

fn at() -> String {
    format!("{ADDRESS}:{PORT}")
}

/// Runs `windlass join` and returns success and output.
fn join(windlass: &Windlass<'_>, token: &str, args: &[&str]) -> (bool, String) {
    use std::io::Write as _;
    let mut command = windlass.command("join");
    command.args([&at(), "--token-file", "-"]).args(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("join");
    // It may end before it reads.
    let _ = writeln!(child.stdin.take().expect("piped above"), "{token}");
    let output = child.wait_with_output().expect("join ends");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}

fn ready(kubectl: &Kubectl<'_>, node: &mut Daemon) {
    eventually(DEFAULT_TIMEOUT, "the node is Ready", || {
        anyhow::ensure!(node.runs(), "windlass ended:\n{}", node.log());
        let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}/{.spec.taints}";
        let printed = kubectl.try_run(&["get", "node", "node", "-o", path])?;
        anyhow::ensure!(printed.starts_with("True/") && !printed.contains("not-ready"), "{printed}");
        Ok(())
    });
}

fn pod(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "windlass/busybox:1", "command": ["sleep", "100000"]}]}})
    .to_string()
}

/// The files below a directory that contain a text.
fn holding(dir: &Path, text: &str) -> String {
    let output = Command::new("grep").args(["-rls", text]).arg(dir).output().expect("grep");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn assert_contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

fn a_machine_joins_leaves_and_joins_again() {
    let testbed = Testbed::on_cluster();
    let windlass = testbed.windlass();
    let (cluster, kubectl) = (testbed.cluster(), windlass.kubectl());
    cluster.admit_nodes(&kubectl);
    cluster.token(&kubectl, ID, SECRET, None);
    let (token, pin) = (format!("{ID}.{SECRET}"), cluster.pin());
    let data = testbed.dir().join("data");

    let (joined, result) = join(&windlass, &token, &["--discovery-token-ca-cert-hash", &pin]);
    assert!(joined, "{result}");
    let steps = [
        "[preflight] ",
        "[discovery] ",
        "[certificate] requested as",
        "cpuManagerPolicy (containers are given shares of CPUs",
        "[files] ",
        "windlass agent ",
    ];
    assert_contains(&result, &steps);
    assert!(
        !result.contains(SECRET) && holding(&data, SECRET).is_empty(),
        "the token is on no disk: {}",
        holding(&data, SECRET)
    );
    let shown = windlass.try_run("config", &["show"]).expect("config show");
    assert_contains(
        &shown,
        &[
            "maxPods: 77",
            "clusterDNS: [\"10.96.0.10\"]",
            "rotateCertificates: true",
            "nodeStatusUpdateFrequency: \"10s\"",
        ],
    );
    assert_eq!(
        kubectl.run(&["get", "csr", "-o", "jsonpath={.items[*].spec.username}"]),
        format!("system:bootstrap:{ID}")
    );

    // The printed command runs a node, which serves a pod.
    let mut node = Daemon::start("windlass agent", &mut windlass.command("agent"), &testbed.dir().join("windlass.log"))
        .expect("windlass agent");
    ready(&kubectl, &mut node);
    assert_eq!(kubectl.run(&["get", "node", "node", "-o", "jsonpath={.status.capacity.pods}"]), "77");
    kubectl.apply(&pod("first"));
    let is_ready = ["wait", "--for=condition=Ready", "pod/first", "--timeout=5s"];
    eventually(DEFAULT_TIMEOUT, "the pod is Ready", || kubectl.try_run(&is_ready));
    let hostname = ["exec", "first", "--", "hostname"];
    assert_eq!(kubectl.run(&hostname).trim(), "first");

    // A node joins only once, also while it is not running, and without a control plane of its own.
    let again = ["--discovery-token-ca-cert-hash", &pin];
    let (joined, result) = join(&windlass, &token, &again);
    assert!(!joined, "{result}");
    assert_contains(&result, &["a windlass runs on this machine already"]);
    node.end(Signal::SIGTERM);
    let (joined, result) = join(&windlass, &token, &again);
    assert!(!joined, "{result}");
    assert_contains(&result, &["is a node of https://198.18.0.2:6443 already", "windlass leave"]);
    let refused = windlass.try_run("up", &[]).expect_err("it is a node of another cluster").to_string();
    assert_contains(&refused, &["windlass leave"]);

    // It leaves while it runs, and its pods are removed; the cluster's objects are left for the administrator.
    let mut node = Daemon::start("windlass agent", &mut windlass.command("agent"), &testbed.dir().join("windlass.log"))
        .expect("windlass agent");
    ready(&kubectl, &mut node);
    let unasked = windlass.command("leave").stdin(Stdio::null()).output().expect("windlass leave");
    assert!(!unasked.status.success() && node.runs(), "nobody was asked");
    let result = windlass.try_run("leave", &["--yes"]).expect("windlass leave");
    assert_contains(&result, &["kubectl delete node node", "is no longer a node of https://198.18.0.2:6443"]);
    node.end(Signal::SIGTERM);
    let containers = testbed.docker(&["ps", "-aq", "--filter", "label=io.kubernetes.pod.name"]);
    assert_eq!(containers.trim(), "");
    assert_eq!(holding(&data, "BEGIN"), "", "no key or certificate is left");
    assert_contains(&windlass.try_run("leave", &["--yes"]).expect("a second time"), &["there is nothing to leave"]);

    // It joins again at once with the same name, and leaves services to the cluster's kube-proxy, which runs now.
    let proxy = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-proxy", "namespace": "kube-system"}, "data": {"config.conf": ""}});
    kubectl.apply(&proxy.to_string());
    let mut command = windlass.command("join");
    command.args([&at(), "--token", &token, "--discovery-token-ca-cert-hash", &pin, "--foreground"]);
    let mut node =
        Daemon::start("windlass join", &mut command, &testbed.dir().join("again.log")).expect("windlass join");
    eventually(DEFAULT_TIMEOUT, "the node runs again", || {
        anyhow::ensure!(node.runs(), "windlass ended:\n{}", node.log());
        anyhow::ensure!(node.log().contains("node node is Ready"), "{}", node.log());
        Ok(())
    });
    assert_contains(&node.log(), &["kube-proxy of the cluster is the service proxy", "taking it over"]);
    ready(&kubectl, &mut node);
    let _ = kubectl.run(&["delete", "pod", "first", "--ignore-not-found", "--timeout=60s"]);
    kubectl.apply(&pod("second"));
    let is_ready = ["wait", "--for=condition=Ready", "pod/second", "--timeout=5s"];
    eventually(DEFAULT_TIMEOUT, "a pod is Ready", || kubectl.try_run(&is_ready));

    // Pods are evicted first, and the Node object is deleted by an administrator.
    let admin = windlass.kubeconfig().display().to_string();
    let result =
        windlass.try_run("leave", &["--yes", "--drain", "--kubeconfig", &admin, "--purge"]).expect("windlass leave");
    assert_contains(&result, &["evicted default/second", "node node is deleted"]);
    node.end(Signal::SIGTERM);
    assert!(!data.exists());
    eventually(DEFAULT_TIMEOUT, "the node is gone", || {
        anyhow::ensure!(kubectl.try_run(&["get", "node", "node"]).is_err());
        Ok(())
    });
}

fn a_join_that_is_wrong_is_refused_and_leaves_nothing() {
    let testbed = Testbed::on_cluster();
    let windlass = testbed.windlass();
    let (cluster, kubectl) = (testbed.cluster(), windlass.kubectl());
    cluster.admit_nodes(&kubectl);
    cluster.token(&kubectl, ID, SECRET, None);
    cluster.token(&kubectl, "endedx", SECRET, Some("2020-01-01T00:00:00Z"));
    let (token, pin) = (format!("{ID}.{SECRET}"), cluster.pin());
    let signed = ["get", "configmap", "cluster-info", "-n", "kube-public", "-o", "jsonpath={.data}"];
    eventually(DEFAULT_TIMEOUT, "the description is signed", || {
        anyhow::ensure!(kubectl.try_run(&signed)?.contains("jws-kubeconfig-abcdef"));
        Ok(())
    });
    // Another machine uses this name; windlass does not check whether it still runs.
    cluster.end(Part::ControllerManager, Signal::SIGKILL);
    let other = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}});
    kubectl.apply(&other.to_string());
    let is_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2100-01-01T00:00:00Z", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
    let _ =
        kubectl.run(&["patch", "node", "other", "--subresource=status", "--type=merge", "-p", &is_ready.to_string()]);

    let other_pin = format!("sha256:{}", "0".repeat(64));
    let hash = "--discovery-token-ca-cert-hash";
    for (token, args, words) in [
        (
            token.as_str(),
            vec![hash, &other_pin],
            &["which matches no --discovery-token-ca-cert-hash", pin.as_str()][..],
        ),
        ("abcdef.fedcba9876543211", vec![hash, &pin], &["the token's secret is another one"]),
        (
            "endedx.fedcba9876543210",
            vec![hash, &pin, "--timeout", "1s"],
            &["not signed with the token endedx", "has expired"],
        ),
        ("nobody.fedcba9876543210", vec![hash, &pin, "--timeout", "1s"], &["not signed with the token nobody"]),
        (token.as_str(), vec![], &["--discovery-token-ca-cert-hash is needed"]),
        ("abcdef", vec![hash, &pin], &["it is no bootstrap token"]),
        (
            token.as_str(),
            vec![hash, &pin, "--node-name", "other"],
            &["and another machine", "kubectl delete node other"],
        ),
        (token.as_str(), vec![hash, &pin, "--control-plane"], &["Windlass joins as a worker node only"]),
    ] {
        let (joined, result) = join(&windlass, token, &args);
        assert!(!joined, "{args:?}: {result}");
        assert_contains(&result, words);
        assert!(!testbed.dir().join("data/join").exists() && !result.contains(SECRET), "{args:?}: {result}");
    }
    assert_eq!(kubectl.run(&["get", "csr", "-o", "name"]), "", "nobody was asked for a certificate");

    cluster.begin(Part::ControllerManager);

    // A request without approval is reported, kept, and used once it is approved.
    let _ = kubectl.run(&["delete", "clusterrolebinding", "kubeadm:node-autoapprove-bootstrap"]);
    let (joined, result) = join(&windlass, &token, &[hash, &pin, "--timeout", "15s"]);
    assert!(!joined, "{result}");
    assert_contains(
        &result,
        &["kubectl certificate approve node-csr-", "run the same command again once it is approved"],
    );
    let name = kubectl.run(&["get", "csr", "-o", "jsonpath={.items[*].metadata.name}"]);
    let _ = kubectl.run(&["certificate", "approve", &name]);
    let (joined, result) = join(&windlass, &token, &["--discovery-token-unsafe-skip-ca-verification"]);
    assert!(joined, "{result}");
    assert_contains(&result, &["no certificate authority is pinned"]);
    assert_eq!(kubectl.run(&["get", "csr", "-o", "jsonpath={.items[*].metadata.name}"]), name, "one request");
    let _ = fs::read_to_string(testbed.dir().join("data/join/config.yaml")).expect("it has joined");
}

/// At each step that it reports; by a discovery file, whose cluster needs no token to be found.
fn a_join_that_is_killed_leaves_a_node_or_none() {
    let testbed = Testbed::on_cluster();
    let windlass = testbed.windlass();
    let (cluster, kubectl) = (testbed.cluster(), windlass.kubectl());
    cluster.admit_nodes(&kubectl);
    cluster.token(&kubectl, ID, SECRET, None);
    let file = testbed.dir().join("discovery.conf");
    let authority = cluster.certificate("ca").with_extension("crt");
    let found = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://{}", at()), "certificate-authority": authority}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}]});
    fs::write(&file, found.to_string()).expect("the discovery file");
    let join = || {
        let mut command = windlass.command("join");
        command.arg("--discovery-file").arg(&file).args(["--tls-bootstrap-token", &format!("{ID}.{SECRET}")]);
        command
    };
    let (data, mut left) = (testbed.dir().join("data"), 0);
    for step in ["[preflight] ", "[discovery] ", "[certificate] requested as", "[certificate] ", "[files] "] {
        let (result, pipe) = std::io::pipe().expect("a pipe");
        let both = pipe.try_clone().expect("a pipe");
        let mut child = join().stdin(Stdio::null()).stdout(pipe).stderr(both).spawn().expect("windlass join");
        let lines: Vec<_> =
            BufReader::new(result).lines().map_while(Result::ok).take_while(|l| !l.starts_with(step)).collect();
        child.kill().expect("it is killed");
        child.wait().expect("it has ended");
        let place = data.join("join");
        let is_node = place.exists();
        assert!(
            !is_node || place.join("kubelet.conf").exists() && place.join("config.yaml").exists(),
            "killed at {step:?}, it is half a node: {lines:#?}"
        );
        assert_eq!(holding(&data, SECRET), "", "killed at {step:?}");
        if is_node {
            left += 1;
            let _ = windlass.try_run("leave", &["--yes"]).expect("windlass leave");
        }
    }
    let output = join().stdin(Stdio::null()).output().expect("windlass join");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let requests = kubectl.run(&["get", "csr", "-o", "name"]).lines().count();
    assert!((1..=1 + left).contains(&requests), "{requests} requests for a certificate, {left} times a node before");
    let mut node = Daemon::start("windlass agent", &mut windlass.command("agent"), &testbed.dir().join("windlass.log"))
        .expect("windlass agent");
    ready(&kubectl, &mut node);
    node.end(Signal::SIGTERM);
}
