//! Leases, events, config maps, secrets, reviews and mirror pods.

use serde_json::{Value, json};

use super::{MERGE, NAMESPACE, NODE, STRATEGIC, pod, post, step, within};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NODE},
        "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let event = |name: &str, count: i64| {
        json!({"metadata": {"name": name, "namespace": NAMESPACE}, "reason": "Started", "message": "m", "type": "Normal", "count": count,
        "involvedObject": {"kind": "Pod", "namespace": NAMESPACE, "name": "p0"}, "source": {"component": "kubelet", "host": NODE},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"})
    };
    let config = within("configmaps");
    vec![
        post("generation of a config map", &config, json!({"metadata": {"name": "generation", "generation": 7}})),
        post("generation below zero", &config, json!({"metadata": {"name": "below", "generation": -1}})),
        post("namespace of leases", "/api/v1/namespaces", json!({"metadata": {"name": "kube-node-lease"}})),
        step("lease", NODE, "POST", leases, JSON, lease.clone()),
        step("lease again", NODE, "POST", leases, JSON, lease),
        step(
            "lease is renewed",
            NODE,
            "PATCH",
            &format!("{leases}/n0"),
            MERGE,
            json!({"spec": {"renewTime": "2026-01-01T00:00:10.000000Z"}}),
        ),
        step("lease of another", NODE, "GET", &format!("{leases}/n1"), JSON, Value::Null),
        step("leases", NODE, "GET", leases, JSON, Value::Null),
        step(
            "lease of no time",
            NODE,
            "PATCH",
            &format!("{leases}/n0"),
            MERGE,
            json!({"spec": {"leaseDurationSeconds": 0}}),
        ),
        step(
            "lease: its version is taken away",
            "admin",
            "PATCH",
            &format!("{leases}/n0"),
            MERGE,
            json!({"metadata": {"resourceVersion": ""}}),
        ),
        step(
            "lease: its version is null",
            "admin",
            "PATCH",
            &format!("{leases}/n0"),
            STRATEGIC,
            json!({"metadata": {"resourceVersion": null}}),
        ),
        step(
            "lease of no version",
            "admin",
            "PUT",
            &format!("{leases}/n0"),
            JSON,
            json!({"metadata": {"name": "n0"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 0}}),
        ),
        step(
            "lease of a short time",
            NODE,
            "PATCH",
            &format!("{leases}/n0"),
            MERGE,
            json!({"spec": {"renewTime": "2026-01-01T00:00:11.5Z"}}),
        ),
        step("event", NODE, "POST", &within("events"), JSON, event("e", 1)),
        step(
            "event counts",
            NODE,
            "PATCH",
            &within("events/e"),
            STRATEGIC,
            json!({"count": 2, "lastTimestamp": "2026-01-01T00:00:09Z"}),
        ),
        step("event of nobody", NODE, "PATCH", &within("events/none"), STRATEGIC, json!({"count": 2})),
        step("event elsewhere", NODE, "POST", "/api/v1/namespaces/default/events", JSON, event("f", 1)),
        step(
            "event of the new group",
            NODE,
            "GET",
            "/apis/events.k8s.io/v1/namespaces/diff/events/e",
            JSON,
            Value::Null,
        ),
        step("events are not read by nodes", NODE, "GET", &within("events"), JSON, Value::Null),
        post(
            "config map",
            &config,
            json!({"metadata": {"name": "c"}, "data": {"a": "b"}, "binaryData": {"x": "AAE="}}),
        ),
        step("config map of a pod of the node", NODE, "GET", &format!("{config}/c"), JSON, Value::Null),
        step("config map of nobody", NODE, "GET", &format!("{config}/applied"), JSON, Value::Null),
        step("config map that stays", "admin", "PATCH", &format!("{config}/c"), MERGE, json!({"immutable": true})),
        step(
            "config map that stays changes",
            "admin",
            "PATCH",
            &format!("{config}/c"),
            MERGE,
            json!({"data": {"a": "c"}}),
        ),
        post("config map of a bad key", &config, json!({"metadata": {"name": "d"}, "data": {"a/b": "b"}})),
        post("secret", &within("secrets"), json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})),
        step("secret of a pod of the node", NODE, "GET", &within("secrets/s"), JSON, Value::Null),
        post(
            "secret of a kind",
            &within("secrets"),
            json!({"metadata": {"name": "t"}, "type": "kubernetes.io/tls", "data": {}}),
        ),
        post("mirror pod of an administrator", &within("pods"), {
            let mut pod = pod("mirror", json!({}));
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            pod
        }),
        step("mirror pod", NODE, "POST", &within("pods"), JSON, {
            let mut pod = pod("static-n0", json!({"enableServiceLinks": true}));
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "${/api/v1/nodes/n0 /metadata/uid}", "controller": true}]);
            pod
        }),
        step("pod that is no mirror", NODE, "POST", &within("pods"), JSON, pod("own", json!({}))),
    ]
}
