//! Subresources of pods, and token requests.

use serde_json::{Value, json};

use super::{NODE, STRATEGIC, get, step, within};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
    let all = within("pods");
    let resize =
        |cpu: &str| json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}});
    let token = |audiences: Value| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": audiences, "expirationSeconds": 3600,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p0", "uid": "11111111-1111-1111-1111-111111111111"}}})
    };
    vec![
        step(
            "ephemeral container",
            "admin",
            "PATCH",
            &format!("{all}/host/ephemeralcontainers"),
            STRATEGIC,
            json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}}),
        ),
        step(
            "ephemeral container changes",
            "admin",
            "PATCH",
            &format!("{all}/host/ephemeralcontainers"),
            STRATEGIC,
            json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "j"}]}}),
        ),
        step("resize where the node cannot", "admin", "PATCH", &format!("{all}/rich/resize"), STRATEGIC, resize("60m")),
        step("resize of nothing", "admin", "PATCH", &format!("{all}/p0/resize"), STRATEGIC, json!({})),
        step(
            "token for another pod of this name",
            NODE,
            "POST",
            &within("serviceaccounts/default/token"),
            JSON,
            token(json!([])),
        ),
        step(
            "token without a pod",
            NODE,
            "POST",
            &within("serviceaccounts/default/token"),
            JSON,
            json!({"spec": {"audiences": []}}),
        ),
        step(
            "eviction",
            "admin",
            "POST",
            &format!("{all}/pooled/eviction"),
            JSON,
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pooled"}, "deleteOptions": {"gracePeriodSeconds": 7}}),
        ),
        get("pod after its eviction", &format!("{all}/pooled")),
        step(
            "eviction of nobody",
            "admin",
            "POST",
            &format!("{all}/none/eviction"),
            JSON,
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}}),
        ),
    ]
}
