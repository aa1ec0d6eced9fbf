//! `ephemeralcontainers`: containers that are added to a running pod. Pure.

use serde_json::Value;

use crate::{
    apiserver::{
        pipeline::validation::errors::Errors,
        types::{FieldResult, Part},
    },
    kinds::shared::pod_template,
};

/// The list of ephemeral containers.
#[derive(Debug)]
pub(super) struct EphemeralContainers;

impl Part for EphemeralContainers {
    fn apply(&self, new: Value, old: &Value) -> FieldResult<Value> {
        let mut object = old.clone();
        match &new["spec"]["ephemeralContainers"] {
            Value::Array(list) => object["spec"]["ephemeralContainers"] = Value::Array(list.clone()),
            _ => drop(object["spec"].as_object_mut().map(|spec| spec.remove("ephemeralContainers"))),
        }
        Ok(object)
    }

    fn validate(&self, new: &Value, old: &Value, errors: &mut Errors) -> bool {
        if super::is_mirror(old) {
            errors.forbidden("[]", "static pods do not support ephemeral containers");
            return true;
        }
        super::validate_whole(new, Some(old), errors);
        super::validate_annotations_update(new, old, errors);
        pod_template::validate_ephemeral_containers_update(&new["spec"], &old["spec"], errors);
        true
    }
}
