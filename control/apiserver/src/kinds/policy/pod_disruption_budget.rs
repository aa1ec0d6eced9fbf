//! PodDisruptionBudget. Pure.

use serde_json::{Value, json};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            conditions,
            field::{Field, none_negative},
            selector,
            tables::{AGE, column, count, named},
            tolerance,
            workload::{self, number},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("policy", "poddisruptionbudgets", "PodDisruptionBudget", PodDisruptionBudget);
    resource.short_names = vec!["pdb".into()];
    resource.allow_unconditional_update = false;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("policy/v1", "PodDisruptionBudget"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        column("Min Available", "Pods that must stay."),
        column("Max Unavailable", "Pods that may be missing."),
        count("Allowed Disruptions", "Pods that may be evicted now."),
        AGE,
    ];
    v1.table = named(columns, |object, age| {
        let (spec, status) = (&object["spec"], &object["status"]);
        let shown = |value: &Value| match value {
            Value::Null => json!("N/A"),
            Value::String(text) => json!(text),
            other => json!(other.to_string()),
        };
        vec![
            shown(&spec["minAvailable"]),
            shown(&spec["maxUnavailable"]),
            number(&status["disruptionsAllowed"]),
            json!(age),
        ]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct PodDisruptionBudget;

impl Strategy for PodDisruptionBudget {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        tolerance::label_values(error, &["spec.selector"])
    }

    /// Upstream asks no more of the name than that it can stand in a path.
    fn validate_name(&self, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        let (least, most) = (spec.at("minAvailable"), spec.at("maxUnavailable"));
        if least.is_set() && most.is_set() {
            let shown = spec.internal(&[
                ("MinAvailable", "minAvailable"),
                ("Selector", "selector"),
                ("MaxUnavailable", "maxUnavailable"),
                ("UnhealthyPodEvictionPolicy", "unhealthyPodEvictionPolicy"),
            ]);
            spec.invalid_as(&shown, "minAvailable and maxUnavailable cannot be both set", errors);
        }
        for field in [&least, &most] {
            workload::int_or_percent(field, errors);
            workload::at_most_100_percent(field, errors);
        }
        selector::validate(&spec.at("selector"), errors);
        spec.at("unhealthyPodEvictionPolicy").optional_one_of(&["AlwaysAllow", "IfHealthyBudget"], errors);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        let status = Field::root(new).at("status");
        conditions::validate(&status.at("conditions"), errors);
        none_negative(&status, &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"], errors);
    }
}
