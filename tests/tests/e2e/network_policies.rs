//! NetworkPolicies on the built-in pod network with real pods: from a pod's first packet, over a kill of the process, until
//! the policy is gone.

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, eventually};

use crate::{
    container_id,
    quickstart::ask_from,
    shared_dir::{SharedDir, is_ready, wait_for},
};

/// Serves its name.
fn server(name: &str, labels: &Value) -> String {
    let line = "mkdir /tmp/w; hostname > /tmp/w/index.html; exec httpd -f -p 80 -h /tmp/w";
    pod(name, labels, line)
}

fn pod(name: &str, labels: &Value, line: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "windlass/busybox:1", "command": ["sh", "-c", line]}]}})
    .to_string()
}

fn policy(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn ip(pod: &Value) -> String {
    pod["status"]["podIP"].as_str().expect("an address").to_owned()
}

fn passes(testbed: &Testbed, from: &Value, address: &str) {
    let id = container_id(from);
    eventually(DEFAULT_TIMEOUT, &format!("an answer of {address}"), || ask_from(testbed, &id, address, "/").map(drop));
}

fn is_dropped(testbed: &Testbed, from: &Value, address: &str) {
    let id = container_id(from);
    eventually(DEFAULT_TIMEOUT, &format!("silence of {address}"), || match ask_from(testbed, &id, address, "/") {
        Ok(page) => anyhow::bail!("it answers: {page}"),
        Err(error) => {
            let error = format!("{error:#}");
            anyhow::ensure!(error.contains("timed out"), "it is not dropped: {error}");
            Ok(())
        }
    });
}

fn ready(kubectl: &Kubectl<'_>, name: &str) -> Value {
    wait_for(kubectl, name, "is ready", is_ready)
}

const FROM_FRIENDS: &str = "web";

/// Pods with `access: yes` reach `app: web`, and `app: caged` reaches nobody.
fn put_policies(kubectl: &Kubectl<'_>) {
    kubectl.apply(&policy(
        FROM_FRIENDS,
        &json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"access": "yes"}}}], "ports": [{"port": 80}]}]}),
    ));
    kubectl
        .apply(&policy("caged", &json!({"podSelector": {"matchLabels": {"app": "caged"}}, "policyTypes": ["Egress"]})));
}

#[test]
fn a_policy_holds_from_the_first_packet_of_a_pod_until_it_is_deleted() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    put_policies(&kubectl);
    kubectl.apply(&server("open", &json!({"app": "open"})));
    kubectl.apply(&server("web", &json!({"app": "web"})));
    kubectl.apply(&server("friend", &json!({"access": "yes"})));
    kubectl.apply(&server("stranger", &json!({})));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "open"},
        "spec": {"selector": {"app": "open"}, "ports": [{"port": 80}]}});
    kubectl.apply(&service.to_string());
    let [open, web, friend, stranger] = ["open", "web", "friend", "stranger"].map(|name| ready(&kubectl, name));
    let cluster_ip = kubectl.json(&["service", "open"]).unwrap()["spec"]["clusterIP"].as_str().unwrap().to_owned();
    passes(&testbed, &stranger, &cluster_ip);

    // Whatever its container does first, it reaches neither a pod nor a Service; and its node still reaches it.
    let tries = format!(
        "for to in {0} {cluster_ip} {0} {cluster_ip}; do nc -w 1 $to 80 < /dev/null > /dev/null 2>&1 && echo open >> /shared/first; \
         done; echo done >> /shared/first; mkdir /tmp/w; hostname > /tmp/w/index.html; exec httpd -f -p 80 -h /tmp/w",
        ip(&open)
    );
    let mut caged: Value = serde_json::from_str(
        &shared.pod("caged", json!({"containers": [{"name": "main", "command": ["sh", "-c", tries]}]})),
    )
    .unwrap();
    caged["metadata"]["labels"] = json!({"app": "caged"});
    kubectl.apply(&caged.to_string());
    let caged = ready(&kubectl, "caged");
    eventually(DEFAULT_TIMEOUT, "its first packets", || {
        anyhow::ensure!(shared.lines("first").last().is_some_and(|line| line == "done"), "not yet");
        Ok(())
    });
    assert_eq!(shared.lines("first"), ["done"]);
    eventually(DEFAULT_TIMEOUT, "the node reaches it", || {
        testbed.try_sh(&format!("curl -sf -m 3 http://{}/", ip(&caged)))
    });

    let holds = |stranger: &Value| {
        passes(&testbed, &friend, &ip(&web));
        is_dropped(&testbed, stranger, &ip(&web));
        is_dropped(&testbed, &caged, &cluster_ip);
    };
    holds(&stranger);
    let traced =
        |from: &Value, to: &str| windlass.try_run("rules", &["trace", &ip(from), &format!("{to}:80/tcp")]).unwrap();
    let of_stranger = traced(&stranger, &ip(&web));
    assert!(of_stranger.contains("NetworkPolicy default/web"), "{of_stranger}");
    let of_caged = traced(&caged, &cluster_ip);
    assert!(of_caged.contains("NetworkPolicy default/caged"), "{of_caged}");
    eventually(DEFAULT_TIMEOUT, "the rules are as the policies want them", || windlass.try_run("rules", &[]));

    // Nobody has to run for it, and a new process takes it over.
    windlass.kill();
    holds(&stranger);
    let kubectl = windlass.up();
    ready(&kubectl, "web");
    holds(&stranger);

    let _ = kubectl.run(&["label", "pod", "stranger", "access=yes"]);
    passes(&testbed, &stranger, &ip(&web));
    let _ = kubectl.run(&["label", "pod", "stranger", "access-"]);
    is_dropped(&testbed, &stranger, &ip(&web));
    let _ = kubectl.run(&["delete", "networkpolicy", FROM_FRIENDS, "caged"]);
    passes(&testbed, &stranger, &ip(&web));
    passes(&testbed, &caged, &cluster_ip);
    let left = testbed.sh("iptables-save -t mangle");
    assert!(!left.contains("WINDLASS"), "{left}");
}

/// A node of a cluster enforces policies if it is to, and runs no pod while it may not read them.
#[test]
fn a_joined_node_enforces_policies_when_it_may_read_them() {
    let testbed = Testbed::new();
    let windlass = testbed.windlass();
    let _server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    let pki = testbed.dir().join("data/pki");
    let log = testbed.dir().join("agent.log");
    let agent = |proxy: &std::path::Path| {
        let mut command = windlass.command("agent");
        command.arg("--kubeconfig").arg(pki.join("node.kubeconfig")).arg("--proxy-kubeconfig").arg(proxy);
        command.arg("--enforce-network-policies");
        command.args(["--run-dir", &testbed.dir().join("agent-run").to_string_lossy()]);
        command.args(["--data-dir", &testbed.dir().join("agent-data").to_string_lossy()]);
        Daemon::start("windlass agent", &mut command, &log).unwrap()
    };
    put_policies(&kubectl);
    for (name, labels) in
        [("web", json!({"app": "web"})), ("friend", json!({"access": "yes"})), ("stranger", json!({}))]
    {
        kubectl.apply(&server(name, &labels));
    }
    let mut node = agent(&pki.join("node.kubeconfig"));
    eventually(DEFAULT_TIMEOUT, "the pod says what it waits for", || {
        anyhow::ensure!(node.runs(), "{}", node.log());
        let events = kubectl.try_run(&["get", "events"])?;
        anyhow::ensure!(events.contains("NetworkPolicies are not in force"), "{events}");
        anyhow::ensure!(
            node.log().contains("list networkpolicies, watch networkpolicies, list namespaces"),
            "{}",
            node.log()
        );
        Ok(())
    });
    assert!(kubectl.ready_pods("app=web", 1).is_err());
    node.end(nix::sys::signal::Signal::SIGKILL);
    let mut node = agent(&windlass.kubeconfig());
    let [web, friend, stranger] = ["web", "friend", "stranger"].map(|name| ready(&kubectl, name));
    assert!(node.runs() && node.log().contains("NetworkPolicies are enforced on this node"), "{}", node.log());
    passes(&testbed, &friend, &ip(&web));
    is_dropped(&testbed, &stranger, &ip(&web));
}
