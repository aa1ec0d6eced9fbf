//! Deletion: grace periods, preconditions, finalizers.

use serde_json::{Value, json};

use super::{MERGE, NODE, STRATEGIC, get, post, step, within};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
    let all = within("pods");
    let delete = |name: &str, who, path: &str, body: Value| step(name, who, "DELETE", path, JSON, body);
    vec![
        delete(
            "delete: another uid",
            "admin",
            &format!("{all}/p0"),
            json!({"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}),
        ),
        delete(
            "delete: an old revision",
            "admin",
            &format!("{all}/p0"),
            json!({"preconditions": {"resourceVersion": "1"}}),
        ),
        delete("delete: tried", "admin", &format!("{all}/p0?dryRun=All"), Value::Null),
        delete("delete: with a grace", "admin", &format!("{all}/p0?gracePeriodSeconds=20"), Value::Null),
        delete("delete: with a longer grace", "admin", &format!("{all}/p0?gracePeriodSeconds=40"), Value::Null),
        delete("delete: with a shorter grace", "admin", &format!("{all}/p0"), json!({"gracePeriodSeconds": 5})),
        step(
            "status after deletion",
            NODE,
            "PATCH",
            &format!("{all}/p0/status"),
            STRATEGIC,
            json!({"status": {"phase": "Succeeded"}}),
        ),
        delete(
            "delete: by its node",
            NODE,
            &format!("{all}/p0"),
            json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "${/api/v1/namespaces/diff/pods/p0 /metadata/uid}"}}),
        ),
        delete("delete: by its node again", NODE, &format!("{all}/p0"), json!({"gracePeriodSeconds": 0})),
        step("node reads a pod that is gone", NODE, "GET", &format!("{all}/p0"), JSON, Value::Null),
        delete("delete: a finalizer", "admin", &format!("{all}/none"), Value::Null),
        step(
            "finalizer",
            "admin",
            "PATCH",
            &format!("{all}/host"),
            MERGE,
            json!({"metadata": {"finalizers": ["x.io/y"]}}),
        ),
        delete("delete: what has a finalizer", "admin", &format!("{all}/host?gracePeriodSeconds=0"), Value::Null),
        step(
            "finalizer more",
            "admin",
            "PATCH",
            &format!("{all}/host"),
            MERGE,
            json!({"metadata": {"finalizers": ["x.io/y", "x.io/z"]}}),
        ),
        step(
            "finalizer gone",
            "admin",
            "PATCH",
            &format!("{all}/host"),
            MERGE,
            json!({"metadata": {"finalizers": null}}),
        ),
        get("pod without its finalizer", &format!("{all}/host")),
        delete("delete: a grace that is none", "admin", &format!("{all}/rich?gracePeriodSeconds=x"), Value::Null),
        delete("delete: nonsense", "admin", &format!("{all}/rich"), json!({"kind": "Pod"})),
        delete(
            "delete: all of a label",
            "admin",
            &format!("{all}?labelSelector=app=stated&gracePeriodSeconds=0"),
            Value::Null,
        ),
        post(
            "delete: a pod that is not bound",
            &all,
            json!({"metadata": {"name": "unbound"}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "i"}]}}),
        ),
        delete("delete: goes at once", "admin", &format!("{all}/unbound"), Value::Null),
        get("pods that are left", &all),
        post(
            "service that goes",
            &within("services"),
            json!({"metadata": {"name": "goes"}, "spec": {"clusterIP": "10.96.0.78", "ports": [{"port": 80}]}}),
        ),
        delete("delete: a service", "admin", &within("services/goes"), Value::Null),
        post(
            "map that is held",
            &within("configmaps"),
            json!({"metadata": {"name": "held", "finalizers": ["x.io/y"]}}),
        ),
        delete("delete: a map that is held", "admin", &within("configmaps/held"), Value::Null),
        step(
            "finalizers of a dying map",
            "admin",
            "PATCH",
            &within("configmaps/held"),
            MERGE,
            json!({"metadata": {"finalizers": ["x.io/y", "new.io/c"], "labels": {"!": "b"}}}),
        ),
    ]
}
