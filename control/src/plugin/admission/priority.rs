//! Priority: a pod's number comes from its class. Pure.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation};

/// The value of a built-in priority class; custom classes are not served.
fn priority_of(class: &str) -> Option<i64> {
    match class {
        "" => Some(0),
        "system-cluster-critical" => Some(2_000_000_000),
        "system-node-critical" => Some(2_000_001_000),
        _ => None,
    }
}

/// Sets the number.
#[derive(Debug)]
pub(super) struct Priority;

#[async_trait]
impl AdmissionPlugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if attributes.is_core("pods") && attributes.target.subresource.is_none() {
            set_priority(object).map_err(|why| attributes.forbidden(object, &why))?;
        }
        Ok(())
    }
}

/// Sets the priority of the pod's class. Clients may not choose a number: pods are preempted by it.
fn set_priority(object: &mut Value) -> Result<(), String> {
    const POLICY: &str = "PreemptLowerPriority";
    if !object["spec"].is_object() {
        return Ok(());
    }
    let spec = &mut object["spec"];
    let class = spec["priorityClassName"].as_str().unwrap_or("");
    let Some(priority) = priority_of(class) else {
        return Err(format!("no PriorityClass with name {class} was found"));
    };
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != POLICY) {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {POLICY} from the given PriorityClass name"
        ));
    }
    spec["priority"] = json!(priority);
    spec["preemptionPolicy"] = json!(POLICY);
    Ok(())
}
