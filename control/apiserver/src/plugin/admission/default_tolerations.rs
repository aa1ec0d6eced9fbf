//! DefaultTolerationSeconds: how long a pod stays on a node that is not ready or unreachable. Pure.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation};

/// Adds the tolerations; again when an update replaces them.
#[derive(Debug)]
pub(super) struct DefaultTolerationSeconds;

#[async_trait]
impl AdmissionPlugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if attributes.is_core("pods") && attributes.target.subresource.is_none() {
            add_defaults(object);
        }
        Ok(())
    }
}

/// Adds the default tolerations that a pod lacks.
fn add_defaults(pod: &mut Value) {
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
