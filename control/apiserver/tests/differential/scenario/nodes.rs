//! Nodes: registration, status, taints, deletion.

use serde_json::{Value, json};

use super::{MERGE, NODE, STRATEGIC, get, post, step};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
    let (all, one) = ("/api/v1/nodes", "/api/v1/nodes/n0");
    let status = format!("{one}/status");
    let condition = |status: &str, kind: &str| {
        json!({"type": kind, "status": status, "reason": "KubeletReady", "message": "m",
               "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let node = |method, name: &str, path: &str, kind, body| step(name, NODE, method, path, kind, body);
    let registered = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"},
                     "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "status": {"capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"}, "nodeInfo": {"kubeletVersion": "v1.36.0"},
                   "conditions": [condition("False", "Ready")]}});
    let swap = |bytes: i64| json!({"status": {"nodeInfo": {"swap": {"capacity": bytes}}}});
    vec![
        node("GET", "node of nobody", one, JSON, Value::Null),
        node("POST", "node of another", all, JSON, json!({"metadata": {"name": "n9"}})),
        node(
            "POST",
            "node with a label that it may not have",
            all,
            JSON,
            json!({"metadata": {"name": NODE, "labels": {"x.kubernetes.io/y": ""}}}),
        ),
        node("POST", "node registers", all, JSON, registered.clone()),
        node("POST", "node registers again", all, JSON, registered),
        node("GET", "node reads itself", one, JSON, Value::Null),
        node("GET", "node reads all", all, JSON, Value::Null),
        node("PATCH", "node changes its taints", one, STRATEGIC, json!({"spec": {"taints": null}})),
        node(
            "PATCH",
            "node changes a label",
            one,
            STRATEGIC,
            json!({"metadata": {"labels": {"kubernetes.io/arch": "amd64"}}}),
        ),
        node(
            "PATCH",
            "node takes a label that it may not",
            one,
            MERGE,
            json!({"metadata": {"labels": {"x.kubernetes.io/y": ""}}}),
        ),
        node(
            "PATCH",
            "node status: addresses",
            &status,
            STRATEGIC,
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": NODE}]}}),
        ),
        node(
            "PATCH",
            "node status: two addresses of a kind",
            &status,
            STRATEGIC,
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"},
                                             {"type": "Hostname", "address": NODE}, {"$patch": "replace"}]}}),
        ),
        node(
            "PATCH",
            "node status: ready",
            &status,
            STRATEGIC,
            json!({"status": {"$setElementOrder/conditions": [{"type": "MemoryPressure"}, {"type": "Ready"}],
                               "conditions": [condition("False", "MemoryPressure"), condition("True", "Ready")]}}),
        ),
        step(
            "node status: a condition of somebody else",
            "admin",
            "PATCH",
            &status,
            STRATEGIC,
            json!({"status": {"conditions": [condition("False", "NetworkUnavailable")]}}),
        ),
        node(
            "PATCH",
            "node status: more and less of capacity",
            &status,
            STRATEGIC,
            json!({"status": {"capacity": {"hugepages-2Mi": "0", "pods": null, "cpu": "2000m", "memory": "4294967296"},
                               "allocatable": {"cpu": "1.5", "memory": "4Gi"}}}),
        ),
        node("PATCH", "node status: swap of nothing", &status, STRATEGIC, swap(0)),
        node("PATCH", "node status: swap", &status, STRATEGIC, swap(1024)),
        node(
            "PATCH",
            "node status: no swap again",
            &status,
            STRATEGIC,
            json!({"status": {"nodeInfo": {"swap": null}}}),
        ),
        node(
            "PATCH",
            "node status: features",
            &status,
            STRATEGIC,
            json!({"status": {"declaredFeatures": ["B", "A"], "features": {"supplementalGroupsPolicy": true}}}),
        ),
        node(
            "PATCH",
            "node status: features in order",
            &status,
            STRATEGIC,
            json!({"status": {"declaredFeatures": ["A", "B"], "runtimeHandlers": [{"name": ""}]}}),
        ),
        node("PATCH", "node status: nothing", &status, STRATEGIC, json!({})),
        node("PATCH", "node status: its annotations", &status, MERGE, json!({"metadata": {"annotations": {"a": "b"}}})),
        node("PATCH", "node status: its spec", &status, MERGE, json!({"spec": {"unschedulable": true}})),
        node(
            "PATCH",
            "node status: images without names",
            &status,
            STRATEGIC,
            json!({"status": {"images": [{"names": [], "sizeBytes": 5}, {"sizeBytes": 0}], "volumesInUse": []}}),
        ),
        step(
            "node: a range",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
        ),
        step(
            "node: another range",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}}),
        ),
        step("node: provider", "admin", "PATCH", one, MERGE, json!({"spec": {"providerID": "a://b"}})),
        step("node: another provider", "admin", "PATCH", one, MERGE, json!({"spec": {"providerID": "a://c"}})),
        step(
            "node: taint of a bad kind",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"taints": [{"key": "a", "effect": "Never"}]}}),
        ),
        step(
            "node: taints",
            "admin",
            "PATCH",
            one,
            MERGE,
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "c", "effect": "NoExecute"}]}}),
        ),
        step("node: cordoned", "admin", "PATCH", one, STRATEGIC, json!({"spec": {"unschedulable": true}})),
        step("node: no longer cordoned", "admin", "PATCH", one, STRATEGIC, json!({"spec": {"unschedulable": null}})),
        post("second node", all, json!({"metadata": {"name": "n1"}})),
        get("nodes by label", "/api/v1/nodes?labelSelector=kubernetes.io/os=linux"),
        get("nodes by name", "/api/v1/nodes?fieldSelector=metadata.name=n1"),
        get("nodes by a field that there is not", "/api/v1/nodes?fieldSelector=spec.providerID=x"),
        step("node deletes itself", NODE, "DELETE", one, JSON, Value::Null),
        step("node is deleted", "admin", "DELETE", "/api/v1/nodes/n1", JSON, Value::Null),
        step("node is deleted again", "admin", "DELETE", "/api/v1/nodes/n1", JSON, Value::Null),
    ]
}
