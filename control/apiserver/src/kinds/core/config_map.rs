//! ConfigMap. Pure.

use serde_json::{Value, json};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells, data,
            tables::{AGE, column, named},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "configmaps", "ConfigMap", ConfigMap);
    resource.short_names = vec!["cm".into()];
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "ConfigMap"));
    v1.table = named(vec![column("Data", "Number of keys."), AGE], |object, age| {
        vec![json!(cells::keys(object, &["data", "binaryData"])), json!(age)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct ConfigMap;

impl Strategy for ConfigMap {
    fn validate(&self, object: &Value, errors: &mut Errors) {
        data::validate_keys(object, &["data", "binaryData"], Some("data"), errors);
        for (key, _) in object["data"].as_object().into_iter().flatten() {
            if object["binaryData"].get(key).is_some() {
                errors.invalid_text(format!("data[{key}]"), key, "duplicate of key present in binaryData");
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        data::validate_immutable(new, old, errors);
    }
}
