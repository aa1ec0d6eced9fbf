//! ReplicaSet. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set};

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
            tables::{AGE, count, named, wide},
            workload::{self, containers, number},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("apps", "replicasets", "ReplicaSet", ReplicaSet);
    resource.short_names = vec!["rs".into()];
    resource.categories = vec!["all".into()];
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("apps/v1", "ReplicaSet"));
    v1.subresources = vec![Subresource::scale(ScalePaths::built_in()), Subresource::status()];
    let columns = vec![
        count("Desired", "Pods that are wanted."),
        count("Current", "Pods that there are."),
        count("Ready", "Pods that are ready."),
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
        number(&spec["replicas"]),
        number(&status["replicas"]),
        number(&status["readyReplicas"]),
        json!(age),
        names,
        images,
        json!(selector::shown(&spec["selector"])),
    ]
}

#[derive(Debug)]
struct ReplicaSet;

impl Strategy for ReplicaSet {
    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        set(spec, "replicas", json!(1));
        workload::default_template(spec);
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        none_negative(&spec, &["replicas", "minReadySeconds"], errors);
        selector::validate_workload(&spec, "deployment", errors);
        if selector::is_readable(&spec.at("selector")) {
            workload::validate_lasting_template(&spec, old, "ReplicaSet", errors);
        } else {
            selector::unreadable(&spec.at("selector"), ": invalid label selector", errors);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["spec.selector"], errors);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        workload::warnings(new, old, &Field::root(new).below("spec.template"))
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        let status = Field::root(new).at("status");
        let counts = [
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ];
        none_negative(&status, &counts, errors);
        workload::at_most_replicas(&status, &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"], errors);
        workload::available_at_most_ready(&status, "cannot be greater than readyReplicas", errors);
    }
}
