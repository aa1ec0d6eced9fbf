//! TaintNodesByCondition: a new node takes no pods before it is ready. Pure.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation};

/// Adds the taint.
#[derive(Debug)]
pub(super) struct TaintNodesByCondition;

#[async_trait]
impl AdmissionPlugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if attributes.is_core("nodes") && attributes.target.subresource.is_none() {
            taint(object);
        }
        Ok(())
    }
}

/// Taints a new node as not ready.
fn taint(object: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    if let Some(spec) = object["spec"].as_object_mut().map(|s| s.entry("taints").or_insert_with(|| json!([]))) {
        if let Some(taints) = spec.as_array_mut().filter(|t| !t.contains(&taint)) {
            taints.push(taint);
        }
    } else {
        object["spec"] = json!({"taints": [taint]});
    }
}
