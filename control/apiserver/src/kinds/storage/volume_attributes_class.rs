//! VolumeAttributesClass. Pure; the time is a value.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::parameters;
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, Table, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{age, text},
            field::Field,
            tables::{AGE, NAME, column},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource =
        Resource::new("storage.k8s.io", "volumeattributesclasses", "VolumeAttributesClass", VolumeAttributesClass);
    resource.short_names = vec!["vac".into()];
    resource.namespaced = false;
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("storage.k8s.io/v1", "VolumeAttributesClass"));
    let columns = vec![NAME, column("DriverName", "Who knows its attributes."), AGE];
    v1.table = Table { columns, row: Box::new(row) };
    Definition::single(resource, v1)
}

fn row(object: &Value, now: Timestamp) -> Vec<Value> {
    let name = text(&object["metadata"]["name"]);
    let default = object["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
    let shown = if default { format!("{name} (default)") } else { name.to_owned() };
    let age = age(text(&object["metadata"]["creationTimestamp"]), now);
    vec![json!(shown), object["driverName"].clone(), json!(age)]
}

#[derive(Debug)]
struct VolumeAttributesClass;

impl Strategy for VolumeAttributesClass {
    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        let driver = root.at("driverName");
        if driver.text().is_empty() {
            driver.required("", errors);
        } else {
            let lower = driver.text().to_lowercase();
            errors.unless("driverName", driver.text(), names::qualified(&lower));
        }
        parameters::validate(&root.at("parameters"), true, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        for field in ["driverName", "parameters"] {
            if new[field] != old[field] {
                errors.forbidden(field, &format!("updates to {field} are forbidden."));
            }
        }
    }
}
