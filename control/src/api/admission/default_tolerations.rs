//! DefaultTolerationSeconds: how long a pod stays on a node that is not ready or unreachable. Pure.

use serde_json::{Value, json};

/// Adds the default tolerations that a pod lacks.
pub(super) fn admit(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    let tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let mut all = tolerations.clone();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = tolerations.iter().any(|t| {
            let same_key = t["key"] == key || t["key"].as_str().is_none_or(str::is_empty);
            same_key && matches!(t["effect"].as_str(), None | Some("" | "NoExecute"))
        });
        if !tolerated {
            all.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    spec["tolerations"] = Value::Array(all);
}
