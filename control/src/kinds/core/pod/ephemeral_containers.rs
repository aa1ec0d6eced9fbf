//! `ephemeralcontainers`: containers that are added to a running pod. Pure.

use serde_json::Value;

use crate::{
    apiserver::{
        subresource::{FieldResult, Part},
        validation::errors::Errors,
    },
    kinds::shared::{field::Field, pod_template},
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
        super::validate_whole(new, errors);
        if super::is_mirror(old) {
            Field::root(new).forbidden("static pods do not support ephemeral containers", errors);
        }
        pod_template::validate_ephemeral_containers_update(&new["spec"], &old["spec"], errors);
        true
    }
}
