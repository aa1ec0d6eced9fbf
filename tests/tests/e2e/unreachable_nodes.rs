//! Nodes that stop to report: their pods come up elsewhere, unless all nodes are silent, which is our own fault.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, HollowNodes, Kubectl, Testbed, eventually, shared_dir::condition};

use crate::name_of;

const NODES: usize = 3;
const REPLICAS: usize = 6;
/// The grace period of heartbeats is 50 s.
const LIMIT: Duration = Duration::from_secs(120);

/// Its pods bear an unreachable node for longer than there is between the last heartbeats of two nodes, instead of for
/// five minutes.
const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: web}]
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 12}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 12}
";

fn is_deleted(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

/// The effects of a node's taints for being unreachable, and the status of its condition Ready.
fn health(kubectl: &Kubectl<'_>, node: &str) -> anyhow::Result<(BTreeSet<String>, String)> {
    let node = kubectl.json(&["node", node])?;
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let unreachable = taints.filter(|taint| taint["key"] == "node.kubernetes.io/unreachable");
    let effects = unreachable.filter_map(|taint| taint["effect"].as_str().map(str::to_owned)).collect();
    Ok((effects, condition(&node, "Ready")["status"].as_str().unwrap_or_default().to_owned()))
}

fn effects(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|effect| (*effect).to_owned()).collect()
}

#[test]
fn pods_of_a_dead_node_come_up_elsewhere_unless_all_are_silent() {
    let testbed = Testbed::without_docker();
    let windlass = testbed.windlass();
    let _server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    testbed.enter().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let nodes = runtime.block_on(HollowNodes::start(&windlass.kubeconfig(), NODES)).unwrap();
    kubectl.accounts(&["default"]);
    kubectl.apply(WEB);
    let pods = eventually(DEFAULT_TIMEOUT, "all pods are Ready", || kubectl.ready_pods("app=web", REPLICAS));
    let on_first: BTreeSet<String> = pods.iter().filter(|pod| node_of(pod) == "hollow-0").map(name_of).collect();
    assert_eq!(on_first.len(), REPLICAS / NODES, "pods are spread: {pods:#?}");

    // One node is dead.
    nodes.kill(0);
    eventually(LIMIT, "the dead node is unreachable", || {
        let (taints, ready) = health(&kubectl, "hollow-0")?;
        anyhow::ensure!(ready == "Unknown", "{ready}");
        anyhow::ensure!(taints == effects(&["NoSchedule", "NoExecute"]), "{taints:?}");
        Ok(())
    });
    eventually(DEFAULT_TIMEOUT, "its pods are replaced on other nodes", || {
        let (deleted, others): (Vec<Value>, Vec<Value>) = kubectl.pods("app=web")?.into_iter().partition(is_deleted);
        anyhow::ensure!(deleted.iter().map(name_of).collect::<BTreeSet<_>>() == on_first, "{deleted:?}");
        anyhow::ensure!(others.len() == REPLICAS && others.iter().all(|pod| node_of(pod) != "hollow-0"), "{others:?}");
        Ok(())
    });
    let gone = kubectl.run(&["get", "events", "--field-selector", "reason=TaintManagerEviction"]);
    assert!(on_first.iter().all(|pod| gone.contains(pod.as_str())), "{gone}");
    // Pods whose deletion the dead node cannot confirm are removed with the node.
    let _ = kubectl.run(&["delete", "node", "hollow-0"]);
    let kept = eventually(DEFAULT_TIMEOUT, "only the others are left", || kubectl.ready_pods("app=web", REPLICAS));
    let kept: BTreeSet<String> = kept.iter().map(name_of).collect();

    // All are silent: nothing is evicted.
    (1..NODES).for_each(|number| nodes.kill(number));
    for node in ["hollow-1", "hollow-2"] {
        eventually(LIMIT, "the node is unknown", || {
            let (taints, ready) = health(&kubectl, node)?;
            anyhow::ensure!(ready == "Unknown" && taints == effects(&["NoSchedule"]), "{ready}, {taints:?}");
            Ok(())
        });
    }
    // Longer than the pods bear an unreachable node.
    std::thread::sleep(Duration::from_secs(15));
    let left = kubectl.pods("app=web").unwrap();
    assert!(left.iter().all(|pod| !is_deleted(pod)), "{left:#?}");
    runtime.block_on(nodes.revive()).unwrap();
    for node in ["hollow-1", "hollow-2"] {
        eventually(DEFAULT_TIMEOUT, "the node is back", || {
            let (taints, ready) = health(&kubectl, node)?;
            anyhow::ensure!(ready == "True" && taints.is_empty(), "{ready}, {taints:?}");
            Ok(())
        });
    }
    let left: BTreeSet<String> = kubectl.pods("app=web").unwrap().iter().map(name_of).collect();
    assert_eq!(left, kept);
}
