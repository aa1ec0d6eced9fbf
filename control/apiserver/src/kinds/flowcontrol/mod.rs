//! Kinds of the group `flowcontrol.apiserver.k8s.io`.

mod conditions;
pub(crate) mod flow_schema;
pub(crate) mod priority_level_configuration;

use serde_json::{Value, json};

use super::types;
use crate::apiserver::pipeline::validation::errors::Errors;

/// What every cluster gets, one object in a line. Of these the mandatory ones are fixed.
const OBJECTS: &str = include_str!("../../control_plane/bootstrap/objects.jsonl");
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// The spec that an object of a name has in every cluster.
fn fixed(kind: &str, name: &str) -> Option<Value> {
    let lines = OBJECTS.lines().filter(|_| MANDATORY.contains(&name));
    let mut objects = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.find(|object| object["kind"] == kind && object["name"] == name).map(|mut object| object["spec"].take())
}

/// Refuses another spec of what every cluster relies on, but for `free`, a part of it. Upstream:
/// `ValidateIfMandatoryPriorityLevelConfigurationObject`, and the same in `ValidateFlowSchema`.
fn validate_fixed(object: &Value, kind: &str, free: Option<&str>, errors: &mut Errors) {
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    let Some(wanted) = fixed(kind, name) else { return };
    let mut spec = object["spec"].clone();
    if let Some(free) = free {
        spec[free] = wanted[free].clone();
    }
    let schema = types::built_in("flowcontrol.apiserver.k8s.io/v1", kind);
    if !schema.same_except(&[], &json!({"spec": spec}), &json!({"spec": wanted})) {
        let but = free.map(|free| format!(" except the 'spec.{free}' field")).unwrap_or_default();
        errors.invalid("spec", &object["spec"], &format!("spec of '{name}'{but} must equal the fixed value"));
    }
}
