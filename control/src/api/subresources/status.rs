//! `status`: which fields a status update may change. Pure.

use serde_json::{Value, json};

use super::keep_field;

/// Restores the fields of `old` that this subresource does not reach.
pub(in crate::api) fn reset_fields(kind: &str, object: &mut Value, old: &Value) {
    let others = old.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
    for field in others.chain(["spec"]).filter(|f| !matches!(*f, "metadata" | "status")) {
        keep_field(object, old, field);
    }
    if kind == "Pod" {
        match old["metadata"].get("ownerReferences") {
            Some(owners) => object["metadata"]["ownerReferences"] = owners.clone(),
            None => drop(object["metadata"].as_object_mut().map(|m| m.remove("ownerReferences"))),
        }
        if object["status"]["qosClass"].as_str().is_none_or(str::is_empty) && old["status"]["qosClass"].is_string() {
            if !object["status"].is_object() {
                object["status"] = json!({});
            }
            object["status"]["qosClass"] = old["status"]["qosClass"].clone();
        }
        keep_observed_generations(&mut object["status"], &old["status"]);
    }
}

/// Keeps `observedGeneration` where a client leaves it out, since older clients do not know the field.
fn keep_observed_generations(status: &mut Value, old: &Value) {
    const FIELD: &str = "observedGeneration";
    let restore = |new: &mut Value, old: &Value| {
        if new.is_object() && new[FIELD].as_i64().unwrap_or(0) == 0 && old[FIELD].as_i64().unwrap_or(0) != 0 {
            new[FIELD] = old[FIELD].clone();
        }
    };
    restore(status, old);
    let before = old["conditions"].as_array().cloned().unwrap_or_default();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(old) = before.iter().find(|old| old["type"] == condition["type"]) {
            restore(condition, old);
        }
    }
}
