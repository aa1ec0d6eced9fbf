//! PriorityClass. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::set_pointer;

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            field::{Field, immutable},
            tables::{AGE, column, count, flag, named},
            tolerance,
            workload::number,
        },
        types,
    },
};

/// The highest value that users may give.
const HIGHEST_USER_VALUE: i64 = 1_000_000_000;
/// The classes of the system, and their values.
pub(crate) const SYSTEM: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("scheduling.k8s.io", "priorityclasses", "PriorityClass", PriorityClass);
    resource.short_names = vec!["pc".into()];
    resource.namespaced = false;
    resource.generation = Generation::Fixed;
    let mut v1 = VersionSpec::new("v1", types::built_in("scheduling.k8s.io/v1", "PriorityClass"));
    let columns = vec![
        count("Value", "The priority of its pods."),
        flag("Global-Default", "Whether pods without a class have it."),
        AGE,
        column("PreemptionPolicy", "Whether its pods preempt others."),
    ];
    v1.table = named(columns, |object, age| {
        let preemption = object["preemptionPolicy"].as_str().unwrap_or("");
        vec![number(&object["value"]), json!(object["globalDefault"] == true), json!(age), json!(preemption)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct PriorityClass;

impl Strategy for PriorityClass {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        // It does not change.
        tolerance::rule_of(error, &[("preemptionPolicy", "preemption policy")])
    }

    fn default(&self, object: &mut Map<String, Value>) {
        set_pointer(object, "preemptionPolicy", json!("PreemptLowerPriority"));
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        let (name, value) = (root.below("metadata.name"), root.at("value"));
        if name.text().starts_with("system-") {
            if let Err(why) = check_system_class(object) {
                name.forbidden(
                    &format!(
                        "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
                    ),
                    errors,
                );
            }
        } else if value.number().is_some_and(|value| value > HIGHEST_USER_VALUE) {
            value.forbidden(
                &format!("maximum allowed value of a user defined priority is {HIGHEST_USER_VALUE}"),
                errors,
            );
        }
        root.at("preemptionPolicy").required_one_of(&["PreemptLowerPriority", "Never"], errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        if new["value"] != old["value"] {
            errors.forbidden("value", "may not be changed in an update.");
        }
        immutable(new, old, &["preemptionPolicy"], errors);
    }
}

/// Refuses a class with the system's prefix that is not one of the system's own.
fn check_system_class(object: &Value) -> Result<(), String> {
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    let Some((_, value)) = SYSTEM.iter().find(|(known, _)| *known == name) else {
        return Err(format!("{name} is not a known system priority class"));
    };
    if object["value"].as_i64() != Some(*value) {
        return Err(format!("value of {name} PriorityClass must be {value}"));
    }
    if object["globalDefault"] == true {
        return Err(format!("globalDefault of {name} PriorityClass must be false"));
    }
    Ok(())
}
