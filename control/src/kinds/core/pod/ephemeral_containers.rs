//! `ephemeralcontainers`: containers that are added to a running pod. Pure.

use serde_json::Value;

use crate::apiserver::{
    subresource::{FieldResult, Part},
    validation::{Cause, FieldError},
};

/// The list of ephemeral containers.
#[derive(Debug)]
pub(super) struct EphemeralContainers;

impl Part for EphemeralContainers {
    fn apply(&self, new: Value, old: &Value) -> FieldResult<Value> {
        update_pod(old, &new).map_err(|why| FieldError {
            field: "spec.ephemeralContainers".to_owned(),
            cause: Cause::Forbidden,
            detail: format!("Forbidden: {why}"),
        })
    }
}

/// A pod with ephemeral containers added; existing ones must stay unchanged.
fn update_pod(old: &Value, wanted: &Value) -> Result<Value, String> {
    let mut object = old.clone();
    let before = old["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    let after = wanted["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    for one in &before {
        match after.iter().find(|c| c["name"] == one["name"]) {
            Some(same) if same == one => {}
            Some(_) => return Err(format!("existing ephemeral containers {} may not be changed", one["name"])),
            None => return Err(format!("existing ephemeral containers {} may not be removed", one["name"])),
        }
    }
    object["spec"]["ephemeralContainers"] = Value::Array(after);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ephemeral_containers_are_added_and_stay() {
        let with = |containers: Value| json!({"spec": {"nodeName": "n", "ephemeralContainers": containers}});
        let old = with(json!([{"name": "a", "image": "i"}]));
        let more = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
        let mut wanted = with(more.clone());
        wanted["spec"]["nodeName"] = json!("other");
        assert_eq!(update_pod(&old, &wanted).unwrap(), with(more));
        for bad in [json!([]), json!([{"name": "a", "image": "j"}])] {
            assert!(update_pod(&old, &with(bad)).is_err());
        }
    }
}
