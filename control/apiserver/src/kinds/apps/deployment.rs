//! Deployment. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set, set_pointer};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, Resource, ScalePaths, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            field::{Field, immutable, none_negative},
            selector,
            tables::{AGE, column, named, wide},
            workload::{self, containers, number},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("apps", "deployments", "Deployment", Deployment);
    resource.short_names = vec!["deploy".into()];
    resource.categories = vec!["all".into()];
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("apps/v1", "Deployment"));
    v1.subresources = vec![Subresource::scale(ScalePaths::built_in()), Subresource::status()];
    let columns = vec![
        column("Ready", "Pods that are ready, of those that are wanted."),
        column("Up-to-date", "Pods of the current template."),
        column("Available", "Pods that have been ready for long enough."),
        AGE,
        wide("Containers", "Names of the template's containers."),
        wide("Images", "Images of the template's containers."),
        wide("Selector", "Labels of its pods."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let [names, images] = containers(&spec["template"]);
    vec![
        json!(format!("{}/{}", number(&status["readyReplicas"]), number(&spec["replicas"]))),
        number(&status["updatedReplicas"]),
        number(&status["availableReplicas"]),
        json!(age),
        names,
        images,
        json!(selector::shown(&spec["selector"])),
    ]
}

#[derive(Debug)]
struct Deployment;

impl Strategy for Deployment {
    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        set(spec, "replicas", json!(1));
        let strategy = child(spec, "strategy");
        set(strategy, "type", json!("RollingUpdate"));
        if strategy["type"] == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            set_pointer(rolling, "maxUnavailable", json!("25%"));
            set_pointer(rolling, "maxSurge", json!("25%"));
        }
        set(spec, "revisionHistoryLimit", json!(10));
        set(spec, "progressDeadlineSeconds", json!(600));
        workload::default_template(spec);
    }

    fn counts_metadata(&self, new: &Value, old: &Value) -> bool {
        let annotations = |metadata: &Value| metadata["annotations"].as_object().cloned().unwrap_or_default();
        annotations(new) != annotations(old)
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        crate::apiserver::types::keep_field(&mut object["metadata"], &old["metadata"], "labels");
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        (subresource == "status").then_some(&["spec", "metadata.labels"])
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        spec.at("replicas").at_least_0(errors);
        selector::validate_workload(&spec, "deployment", errors);
        if selector::is_readable(&spec.at("selector")) {
            workload::validate_lasting_template(&spec, old, "ReplicaSet", errors);
        } else {
            selector::unreadable(&spec.at("selector"), ": invalid label selector", errors);
        }
        strategy(&spec.at("strategy"), errors);
        none_negative(&spec, &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"], errors);
        let deadline = spec.at("progressDeadlineSeconds");
        if deadline.number().is_some_and(|seconds| seconds <= spec.at("minReadySeconds").number().unwrap_or(0)) {
            deadline.invalid("must be greater than minReadySeconds", errors);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["spec.selector"], errors);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        workload::warnings(new, old, &Field::root(new).below("spec.template"))
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let status = Field::root(new).at("status");
        let counts = [
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ];
        none_negative(&status, &counts, errors);
        workload::at_most_replicas(&status, &["updatedReplicas", "readyReplicas", "availableReplicas"], errors);
        workload::available_at_most_ready(&status, "cannot be greater than readyReplicas", errors);
        workload::collisions_grow(&status, old, errors);
    }
}

fn strategy(strategy: &Field<'_>, errors: &mut Errors) {
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").text() {
        "Recreate" if rolling.is_set() => {
            rolling.forbidden("may not be specified when strategy `type` is 'Recreate'", errors);
        }
        "Recreate" => {}
        "RollingUpdate" if !rolling.is_set() => {
            rolling.required("this should be defaulted and never be nil", errors);
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
            workload::int_or_percent(&unavailable, errors);
            workload::int_or_percent(&surge, errors);
            if workload::int_or_percent_value(&unavailable) == 0 && workload::int_or_percent_value(&surge) == 0 {
                unavailable.invalid("may not be 0 when `maxSurge` is 0", errors);
            }
            workload::at_most_100_percent(&unavailable, errors);
        }
        _ => {
            let shown = strategy.internal(&[("Type", "type"), ("RollingUpdate", "rollingUpdate")]);
            strategy.not_supported_as(&shown, &["Recreate", "RollingUpdate"], errors);
        }
    }
}
