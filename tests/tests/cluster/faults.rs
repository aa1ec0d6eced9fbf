//! The API is unreachable, slow, silent, restored from a backup or overloaded: pods keep running, nothing is deleted,
//! and the node recovers.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, Daemon, Dice, Testbed,
    cluster::{ADDRESS, PORT, Part},
    eventually, seed,
};

use crate::{
    faulty_proxy::FaultyProxy,
    workload::{CLUSTER_TIMEOUT, PODS, assert_unchanged, controller, running, started},
};

crate::tests![
    the_api_ends_and_comes_back,
    the_api_does_not_answer,
    the_api_is_slow,
    connections_break_off,
    the_api_is_restored_from_an_old_snapshot,
    the_node_is_recreated_with_another_pod_cidr,
    the_api_rejects_requests_for_two_hundred_pods,
];

fn the_api_ends_and_comes_back() {
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass();
    let before = started(&mut windlass, &testbed);
    let (kubectl, cluster) = (windlass.kubectl(), testbed.cluster());
    for part in Part::ALL.into_iter().rev() {
        cluster.end(part, Signal::SIGKILL);
    }
    // Meanwhile a container ends: the node restarts it without the API.
    let victim = testbed.docker(&["ps", "-q", "--no-trunc", "--filter", "label=io.kubernetes.container.name=main"]);
    let victim = victim.lines().next().expect("a container runs").to_owned();
    testbed.docker(&["kill", &victim]);
    eventually(DEFAULT_TIMEOUT, "the container is run again", || {
        anyhow::ensure!(running(&testbed).len() == before.len(), "{:?}", running(&testbed));
        Ok(())
    });
    let mut before = before;
    before.remove(&victim);
    assert!(running(&testbed).is_superset(&before), "containers were ended");
    for part in Part::ALL {
        cluster.begin(part);
    }
    cluster.answers(&kubectl);
    assert_unchanged(&testbed, &kubectl, &before);
}

fn the_api_does_not_answer() {
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass();
    let before = started(&mut windlass, &testbed);
    let kubectl = windlass.kubectl();
    // Packets are dropped both ways, without errors.
    let rule =
        |verb: &str| testbed.sh(&format!("iptables -{verb} INPUT -i eth0 -s {ADDRESS} -p tcp --sport {PORT} -j DROP"));
    let _ = rule("I");
    // Until the cluster considers the node lost: after a minute its condition is Unknown.
    let lost = || {
        let admin = testbed.cluster().admin().display().to_string();
        let tool = kubectl.command().get_program().to_owned();
        anyhow::ensure!(tool.to_string_lossy().contains("nsenter"), "kubectl runs in the node's namespace");
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/kubectl");
        let output = testbed
            .command_outside(program)
            .args(["--kubeconfig", &admin, "get", "node", "node", "-o", path])
            .output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        anyhow::ensure!(printed == "Unknown", "Ready is {printed:?}");
        Ok(())
    };
    eventually(CLUSTER_TIMEOUT, "the cluster holds the node for lost", lost);
    assert_eq!(running(&testbed), before, "containers were ended");
    let _ = rule("D");
    assert_unchanged(&testbed, &kubectl, &before);
}

fn the_api_is_slow() {
    behind(|testbed, port| FaultyProxy::start(testbed, port, Duration::from_secs(2)));
}

/// As behind a load balancer that ends again and again.
fn connections_break_off() {
    let dice = Dice::new(seed());
    behind(|testbed, port| FaultyProxy::breaking_off(testbed, port, dice));
}

/// A node that reaches the API through `front` becomes Ready, and runs and ends its pods.
fn behind(front: impl FnOnce(&Testbed, u16) -> FaultyProxy) {
    const FRONT: u16 = 7443;
    let testbed = Testbed::on_cluster();
    let windlass = testbed.windlass();
    let _front = front(&testbed, FRONT);
    let files = testbed.cluster().node("node", &[windlass_tests::NODE_IP, "127.0.0.1"]);
    let text = std::fs::read_to_string(&files.kubeconfig).expect("a kubeconfig");
    std::fs::write(&files.kubeconfig, text.replace(&format!(":{PORT}"), &format!(":{FRONT}")))
        .expect("it can be written");
    let mut command = windlass.command("agent");
    command.arg("--kubeconfig").arg(&files.kubeconfig);
    command.arg("--tls-cert-file").arg(&files.certificate).arg("--tls-private-key-file").arg(&files.key);
    let mut node =
        Daemon::start("windlass agent", &mut command, &testbed.dir().join("windlass.log")).expect("windlass");
    let kubectl = windlass.kubectl();
    eventually(CLUSTER_TIMEOUT, "the node is Ready", || {
        assert!(node.runs(), "{}", node.log());
        kubectl.try_run(&["wait", "--for=condition=Ready", "node/node", "--timeout=5s"])
    });
    kubectl.apply(&controller("stays", PODS));
    eventually(CLUSTER_TIMEOUT, "the pods are Ready", || kubectl.ready_pods("app=stays", PODS));
    assert_unchanged(&testbed, &kubectl, &running(&testbed));
    let _ = kubectl.run(&["delete", "deployment", "--all", "--cascade=foreground", "--timeout=200s"]);
    eventually(CLUSTER_TIMEOUT, "nothing runs any more", || {
        anyhow::ensure!(running(&testbed).is_empty());
        Ok(())
    });
}

fn the_api_is_restored_from_an_old_snapshot() {
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass();
    let before = started(&mut windlass, &testbed);
    let (kubectl, cluster) = (windlass.kubectl(), testbed.cluster());
    cluster.save("snapshot");
    cluster.answers(&kubectl);
    // Not in the snapshot: later revisions, and a pod.
    kubectl.apply(&controller("later", 1));
    eventually(CLUSTER_TIMEOUT, "the later pod is Ready", || kubectl.ready_pods("app=later", 1));
    cluster.restore("snapshot");
    cluster.answers(&kubectl);
    assert_unchanged(&testbed, &kubectl, &before);
    // The restored cluster does not know the later pod, so the node removes it.
    eventually(CLUSTER_TIMEOUT, "the later pod is gone", || {
        let named = testbed.docker(&["ps", "--format", "{{.Names}}"]);
        anyhow::ensure!(!named.contains("_later-"), "{named}");
        Ok(())
    });
}

fn the_node_is_recreated_with_another_pod_cidr() {
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass();
    let before = started(&mut windlass, &testbed);
    let kubectl = windlass.kubectl();
    let printed =
        |pointer: &str| kubectl.json(&["node", "node"]).map(|node| node.pointer(pointer).cloned().unwrap_or_default());
    let (uid, range) = (printed("/metadata/uid").expect("a node"), printed("/spec/podCIDR").expect("a node"));
    // A controller deletes pods of a missing node only after a while.
    let _ = kubectl.run(&["delete", "node", "node"]);
    let node = eventually(CLUSTER_TIMEOUT, "the node has made itself again", || {
        let node = kubectl.json(&["node", "node"])?;
        anyhow::ensure!(node["metadata"]["uid"] != uid && node["spec"]["podCIDR"].is_string(), "{}", node["metadata"]);
        Ok(node)
    });
    eventually(CLUSTER_TIMEOUT, "the lease is of the new node", || {
        let lease = kubectl.within("kube-node-lease").json(&["lease", "node"])?;
        anyhow::ensure!(lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"], "{lease}");
        Ok(())
    });
    assert!(running(&testbed).is_superset(&before), "containers were ended");
    if node["spec"]["podCIDR"] == range {
        assert_unchanged(&testbed, &kubectl, &before);
        return;
    }
    // While pods of the old range exist the new range is not used; afterwards it is.
    let _ = kubectl.run(&["delete", "deployment", "--all", "--cascade=foreground", "--timeout=200s"]);
    kubectl.apply(&controller("new", 2));
    let pods = eventually(CLUSTER_TIMEOUT, "new pods are Ready", || kubectl.ready_pods("app=new", 2));
    let prefix = node["spec"]["podCIDR"].as_str().and_then(|r| r.rsplit_once('.')).map(|(p, _)| format!("{p}."));
    let prefix = prefix.expect("a range");
    for pod in &pods {
        assert!(
            pod["status"]["podIP"].as_str().is_some_and(|ip| ip.starts_with(&prefix)),
            "{} {prefix}",
            pod["status"]
        );
    }
}

/// Flow control that handles one request of nodes concurrently, without a queue.
fn no_time_for_nodes() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": "busy"},
         "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
                                                 "limitResponse": {"type": "Reject"}}}},
        {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "busy"},
         "spec": {"priorityLevelConfiguration": {"name": "busy"}, "matchingPrecedence": 2, "rules": [
            {"subjects": [{"kind": "Group", "group": {"name": "system:nodes"}}],
             "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}]}]}},
    ]})
}

fn the_api_rejects_requests_for_two_hundred_pods() {
    const MANY: usize = 200;
    let testbed = Testbed::on_cluster();
    let mut windlass = testbed.windlass().with(&["--max-pods", "250"]);
    let before = started(&mut windlass, &testbed);
    let kubectl = windlass.kubectl();
    kubectl.apply(&no_time_for_nodes().to_string());
    kubectl.apply(&controller("many", MANY));
    eventually(CLUSTER_TIMEOUT, "the node is told to come again, many times", || {
        let refused = testbed.cluster().requests().matches("\"code\":429").count();
        anyhow::ensure!(refused > MANY, "{refused} requests were answered with 429");
        Ok(())
    });
    let _ = kubectl.run(&["delete", "flowschema/busy", "prioritylevelconfiguration/busy"]);
    eventually(CLUSTER_TIMEOUT * 2, "all pods are Ready", || kubectl.ready_pods("app=many", MANY).map(drop));
    assert_unchanged(&testbed, &kubectl, &before);
    let restarts = kubectl.run(&["get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"]);
    assert!(restarts.split(' ').all(|count| count == "0"), "{restarts}");
}
