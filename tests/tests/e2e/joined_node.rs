//! The agent as a process of its own, over TLS with a kubeconfig, like a node of an existing cluster.

use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually};

use crate::{WEB, container_id};

#[test]
fn an_agent_of_its_own_serves_the_same_api_over_tls() {
    let testbed = Testbed::new();
    let windlass = testbed.windlass();
    let mut server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    let pki = testbed.dir().join("data/pki");
    let agent = |run_dir: &str| {
        let mut command = windlass.command("agent");
        command.arg("--kubeconfig").arg(pki.join("node.kubeconfig"));
        command
            .arg("--tls-cert-file")
            .arg(pki.join("kubelet.crt"))
            .arg("--tls-private-key-file")
            .arg(pki.join("kubelet.key"));
        command.args(["--run-dir", &testbed.dir().join(run_dir).to_string_lossy()]);
        command.args(["--data-dir", &testbed.dir().join("agent-data").to_string_lossy()]);
        Daemon::start("windlass agent", &mut command, &testbed.dir().join("agent.log")).unwrap()
    };
    let mut node = agent("agent-run");
    kubectl.apply(WEB);
    let pods = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || {
        anyhow::ensure!(node.runs(), "{}", node.log());
        kubectl.ready_pods("app=web", 2)
    });
    eventually(DEFAULT_TIMEOUT, "the service answers", || {
        testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:30080/")
    });
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    assert!(kubectl.run(&["logs", name]).contains("nginx"));

    // The node may not read objects unrelated to it, or act for others.
    let mut as_node = kubectl.command();
    as_node.arg("--kubeconfig").arg(pki.join("node.kubeconfig")).args(["delete", "namespace", "default"]);
    let refused = as_node.output().unwrap();
    let output = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && output.contains("User \"system:node:node\" cannot"), "{output}");

    // Restarts of the agent alone and of the server alone do not affect pods.
    let ids: Vec<String> = pods.iter().map(container_id).collect();
    node.end(nix::sys::signal::Signal::SIGKILL);
    let mut node = agent("agent-run");
    server.end(nix::sys::signal::Signal::SIGKILL);
    let server = windlass.api_alone();
    let pods = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    assert_eq!(pods.iter().map(container_id).collect::<Vec<_>>(), ids);
    let _ = kubectl.run(&["delete", "pod", name]);
    eventually(DEFAULT_TIMEOUT, "the pod is replaced", || kubectl.ready_pods("app=web", 2));
    assert!(node.runs());
    drop(server);
}
