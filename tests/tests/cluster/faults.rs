//! The API is away, slow, silent, older than it was or too busy: pods go on, nothing is deleted, and all comes right after.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use windlass_tests::{
    Daemon, PATIENCE, World,
    cluster::{ADDRESS, PORT, Part},
    eventually,
};

use crate::{
    front::Front,
    sharing::{LONG, PODS, controller, is_as_before, running, started},
};

crate::tests![
    the_api_ends_and_comes_back,
    the_api_does_not_answer,
    the_api_is_slow,
    the_api_is_restored_from_an_old_snapshot,
    the_node_is_deleted_and_made_again_with_another_range,
    the_api_has_no_time_for_two_hundred_pods,
];

fn the_api_ends_and_comes_back() {
    let world = World::on_cluster();
    let mut windlass = world.windlass();
    let before = started(&mut windlass, &world);
    let (kubectl, cluster) = (windlass.kubectl(), world.cluster());
    for part in Part::ALL.into_iter().rev() {
        cluster.end(part, Signal::SIGKILL);
    }
    // Meanwhile a container ends: the node runs it again by itself.
    let victim = world.docker(&["ps", "-q", "--no-trunc", "--filter", "label=io.kubernetes.container.name=main"]);
    let victim = victim.lines().next().expect("a container runs").to_owned();
    world.docker(&["kill", &victim]);
    eventually(PATIENCE, "the container is run again", || {
        anyhow::ensure!(running(&world).len() == before.len(), "{:?}", running(&world));
        Ok(())
    });
    let mut before = before;
    before.remove(&victim);
    assert!(running(&world).is_superset(&before), "containers were ended");
    for part in Part::ALL {
        cluster.begin(part);
    }
    cluster.answers(&kubectl);
    is_as_before(&world, &kubectl, &before);
}

fn the_api_does_not_answer() {
    let world = World::on_cluster();
    let mut windlass = world.windlass();
    let before = started(&mut windlass, &world);
    let kubectl = windlass.kubectl();
    // Packets are lost both ways, and nobody is told.
    let rule =
        |verb: &str| world.sh(&format!("iptables -{verb} INPUT -i eth0 -s {ADDRESS} -p tcp --sport {PORT} -j DROP"));
    let _ = rule("I");
    // Until the cluster holds the node for lost: a minute, after which whoever reads the node sees Unknown.
    let lost = || {
        let admin = world.cluster().admin().display().to_string();
        let tool = kubectl.command().get_program().to_owned();
        anyhow::ensure!(tool.to_string_lossy().contains("nsenter"), "kubectl runs in the node's namespace");
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/kubectl");
        let output = world
            .command_outside(program)
            .args(["--kubeconfig", &admin, "get", "node", "node", "-o", path])
            .output()?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        anyhow::ensure!(told == "Unknown", "Ready is {told:?}");
        Ok(())
    };
    eventually(LONG, "the cluster holds the node for lost", lost);
    assert_eq!(running(&world), before, "containers were ended");
    let _ = rule("D");
    is_as_before(&world, &kubectl, &before);
}

fn the_api_is_slow() {
    const SLOW: u16 = 7443;
    let world = World::on_cluster();
    let windlass = world.windlass();
    let _front = Front::start(&world, SLOW, Duration::from_secs(2));
    let files = world.cluster().node("node", &[windlass_tests::NODE_IP, "127.0.0.1"]);
    let text = std::fs::read_to_string(&files.kubeconfig).expect("a kubeconfig");
    std::fs::write(&files.kubeconfig, text.replace(&format!(":{PORT}"), &format!(":{SLOW}")))
        .expect("it can be written");
    let mut command = windlass.command("agent");
    command.arg("--kubeconfig").arg(&files.kubeconfig);
    command.arg("--tls-cert-file").arg(&files.certificate).arg("--tls-private-key-file").arg(&files.key);
    let mut node = Daemon::start("windlass agent", &mut command, &world.dir().join("windlass.log")).expect("windlass");
    let kubectl = windlass.kubectl();
    eventually(LONG, "the node is Ready", || {
        assert!(node.runs(), "{}", node.log());
        kubectl.try_run(&["wait", "--for=condition=Ready", "node/node", "--timeout=5s"])
    });
    kubectl.apply(&controller("stays", PODS));
    eventually(LONG, "the pods are Ready", || kubectl.ready_pods("app=stays", PODS));
    is_as_before(&world, &kubectl, &running(&world));
    let _ = kubectl.run(&["delete", "deployment", "--all", "--cascade=foreground", "--timeout=200s"]);
    eventually(LONG, "nothing runs any more", || {
        anyhow::ensure!(running(&world).is_empty());
        Ok(())
    });
}

fn the_api_is_restored_from_an_old_snapshot() {
    let world = World::on_cluster();
    let mut windlass = world.windlass();
    let before = started(&mut windlass, &world);
    let (kubectl, cluster) = (windlass.kubectl(), world.cluster());
    cluster.save("snapshot");
    cluster.answers(&kubectl);
    // What the snapshot does not know: revisions beyond it, and a pod.
    kubectl.apply(&controller("later", 1));
    eventually(LONG, "the later pod is Ready", || kubectl.ready_pods("app=later", 1));
    cluster.restore("snapshot");
    cluster.answers(&kubectl);
    is_as_before(&world, &kubectl, &before);
    // The cluster has never heard of the later pod, so it goes from the machine as well.
    eventually(LONG, "the later pod is gone", || {
        let named = world.docker(&["ps", "--format", "{{.Names}}"]);
        anyhow::ensure!(!named.contains("_later-"), "{named}");
        Ok(())
    });
}

fn the_node_is_deleted_and_made_again_with_another_range() {
    let world = World::on_cluster();
    let mut windlass = world.windlass();
    let before = started(&mut windlass, &world);
    let kubectl = windlass.kubectl();
    let told =
        |pointer: &str| kubectl.json(&["node", "node"]).map(|node| node.pointer(pointer).cloned().unwrap_or_default());
    let (uid, range) = (told("/metadata/uid").expect("a node"), told("/spec/podCIDR").expect("a node"));
    // Pods that are bound to a node that is gone are deleted by a controller only when that stays so.
    let _ = kubectl.run(&["delete", "node", "node"]);
    let node = eventually(LONG, "the node has made itself again", || {
        let node = kubectl.json(&["node", "node"])?;
        anyhow::ensure!(node["metadata"]["uid"] != uid && node["spec"]["podCIDR"].is_string(), "{}", node["metadata"]);
        Ok(node)
    });
    eventually(LONG, "the lease is of the new node", || {
        let lease = kubectl.within("kube-node-lease").json(&["lease", "node"])?;
        anyhow::ensure!(lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"], "{lease}");
        Ok(())
    });
    assert!(running(&world).is_superset(&before), "containers were ended");
    if node["spec"]["podCIDR"] == range {
        is_as_before(&world, &kubectl, &before);
        return;
    }
    // With pods of the old range the new one cannot be used; when they are gone it is.
    let _ = kubectl.run(&["delete", "deployment", "--all", "--cascade=foreground", "--timeout=200s"]);
    kubectl.apply(&controller("new", 2));
    let pods = eventually(LONG, "new pods are Ready", || kubectl.ready_pods("app=new", 2));
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

/// What lets one request of nodes through at a time: no other is carried out, none waits.
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

fn the_api_has_no_time_for_two_hundred_pods() {
    const MANY: usize = 200;
    let world = World::on_cluster();
    let mut windlass = world.windlass().with(&["--max-pods", "250"]);
    let before = started(&mut windlass, &world);
    let kubectl = windlass.kubectl();
    kubectl.apply(&no_time_for_nodes().to_string());
    kubectl.apply(&controller("many", MANY));
    eventually(LONG, "the node is told to come again, many times", || {
        let refused = world.cluster().requests().matches("\"code\":429").count();
        anyhow::ensure!(refused > MANY, "{refused} requests were answered with 429");
        Ok(())
    });
    let _ = kubectl.run(&["delete", "flowschema/busy", "prioritylevelconfiguration/busy"]);
    eventually(LONG * 2, "all pods are Ready", || kubectl.ready_pods("app=many", MANY).map(drop));
    is_as_before(&world, &kubectl, &before);
    let restarts = kubectl.run(&["get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"]);
    assert!(restarts.split(' ').all(|count| count == "0"), "{restarts}");
}
