//! Priority: a pod's number comes from its class. Pure.

use serde_json::{Value, json};

use crate::api::{error::ApiError, request_info::RequestInfo};

/// The value of a built-in priority class; custom classes are not served.
fn priority_of(class: &str) -> Option<i64> {
    match class {
        "" => Some(0),
        "system-cluster-critical" => Some(2_000_000_000),
        "system-node-critical" => Some(2_000_001_000),
        _ => None,
    }
}

/// Sets the priority of the pod's class. Clients may not choose a number: pods are preempted by it.
pub(super) fn admit(info: &RequestInfo, object: &mut Value) -> Result<(), ApiError> {
    const POLICY: &str = "PreemptLowerPriority";
    if !object["spec"].is_object() {
        return Ok(());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let forbidden = |why: &str| Err(ApiError::forbidden(info.resource, &name, why));
    let spec = &mut object["spec"];
    let class = spec["priorityClassName"].as_str().unwrap_or("");
    let Some(priority) = priority_of(class) else {
        return forbidden(&format!("no PriorityClass with name {class} was found"));
    };
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return forbidden(&format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != POLICY) {
        return forbidden(&format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {POLICY} from the given PriorityClass name"
        ));
    }
    spec["priority"] = json!(priority);
    spec["preemptionPolicy"] = json!(POLICY);
    Ok(())
}
