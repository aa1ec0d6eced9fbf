//! TaintNodesByCondition: a new node takes no pods before it is ready. Pure.

use serde_json::{Value, json};

/// Taints a new node as not ready.
pub(super) fn admit(object: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    if let Some(spec) = object["spec"].as_object_mut().map(|s| s.entry("taints").or_insert_with(|| json!([]))) {
        if let Some(taints) = spec.as_array_mut().filter(|t| !t.contains(&taint)) {
            taints.push(taint);
        }
    } else {
        object["spec"] = json!({"taints": [taint]});
    }
}
