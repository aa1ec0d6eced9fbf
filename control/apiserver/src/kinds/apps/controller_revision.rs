//! ControllerRevision. Pure.

use serde_json::{Value, json};
use windlass_apimachinery::group_version::GroupVersion;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::text,
            field::{Field, immutable},
            tables::{AGE, column, named},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let resource = Resource::new("apps", "controllerrevisions", "ControllerRevision", ControllerRevision);
    let mut v1 = VersionSpec::new("v1", types::built_in("apps/v1", "ControllerRevision"));
    let columns = vec![column("Controller", "What it is a revision of."), column("Revision", "Its number."), AGE];
    v1.table = named(columns, |object, age| {
        vec![json!(controller(object)), json!(object["revision"].as_i64().unwrap_or(0)), json!(age)]
    });
    Definition::single(resource, v1)
}

/// The resource and name of what controls an object.
fn controller(object: &Value) -> String {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let Some(owner) = owners.into_iter().flatten().find(|owner| owner["controller"] == true) else {
        return "<none>".to_owned();
    };
    let group = GroupVersion::parse(text(&owner["apiVersion"])).group;
    let kind = text(&owner["kind"]).to_lowercase();
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}{dot}{group}/{}", text(&owner["name"]))
}

#[derive(Debug)]
struct ControllerRevision;

impl Strategy for ControllerRevision {
    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        root.at("revision").at_least_0(errors);
        match &object["data"] {
            Value::Null => root.at("data").required("data is mandatory", errors),
            Value::Object(_) => {}
            _ => root.at("data").required("data must be a valid JSON object", errors),
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["data"], errors);
    }
}
