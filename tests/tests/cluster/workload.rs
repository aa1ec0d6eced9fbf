//! Pods with continuous checks, and the comparison of a cluster's state before and after a fault.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, Windlass, eventually};

/// The time in which a cluster notices that a node is back, or gone.
pub(crate) const CLUSTER_TIMEOUT: Duration = Duration::from_secs(240);

/// Pods of a controller, and their containers in Docker.
pub(crate) const PODS: usize = 4;

pub(crate) fn controller(name: &str, replicas: usize) -> String {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [
            {"name": "main", "image": "windlass/busybox:1", "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]}]}},
    }})
    .to_string()
}

/// The ids of the running containers.
pub(crate) fn running(testbed: &Testbed) -> BTreeSet<String> {
    testbed.docker(&["ps", "-q", "--no-trunc"]).split_whitespace().map(str::to_owned).collect()
}

pub(crate) fn started(windlass: &mut Windlass<'_>, testbed: &Testbed) -> BTreeSet<String> {
    let kubectl = windlass.up();
    kubectl.apply(&controller("stays", PODS));
    eventually(DEFAULT_TIMEOUT, "the pods are Ready", || kubectl.ready_pods("app=stays", PODS));
    running(testbed)
}

/// Checks that the node and the pods are Ready, in the same containers as before, and that a new pod starts.
#[track_caller]
pub(crate) fn assert_unchanged(testbed: &Testbed, kubectl: &Kubectl<'_>, before: &BTreeSet<String>) {
    eventually(CLUSTER_TIMEOUT, "the node is Ready", || {
        kubectl.try_run(&["wait", "--for=condition=Ready", "node/node", "--timeout=5s"])
    });
    eventually(CLUSTER_TIMEOUT, "the pods are Ready", || kubectl.ready_pods("app=stays", PODS));
    assert!(running(testbed).is_superset(before), "containers were ended");
    kubectl.apply(&controller("new", 1));
    eventually(CLUSTER_TIMEOUT, "a new pod is Ready", || kubectl.ready_pods("app=new", 1));
}
