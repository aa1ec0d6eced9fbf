//! DaemonSet. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{map_of, or_none},
            field::{Field, immutable, none_negative},
            selector,
            tables::{AGE, column, count, named, wide},
            tolerance,
            workload::{self, containers, number},
        },
        types,
    },
};

/// The annotation with the generation of the template: a field of an old version.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("apps", "daemonsets", "DaemonSet", DaemonSet);
    resource.short_names = vec!["ds".into()];
    resource.categories = vec!["all".into()];
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("apps/v1", "DaemonSet"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        count("Desired", "Nodes that should run its pod."),
        count("Current", "Nodes that run its pod and should."),
        count("Ready", "Nodes whose pod is ready."),
        count("Up-to-date", "Nodes whose pod has the current template."),
        count("Available", "Nodes whose pod has been ready for long enough."),
        column("Node Selector", "Labels of its nodes."),
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
        number(&status["desiredNumberScheduled"]),
        number(&status["currentNumberScheduled"]),
        number(&status["numberReady"]),
        number(&status["updatedNumberScheduled"]),
        number(&status["numberAvailable"]),
        json!(or_none(map_of(&spec["template"]["spec"]["nodeSelector"]))),
        json!(age),
        names,
        images,
        json!(selector::shown(&spec["selector"])),
    ]
}

fn template_generation(object: &Value) -> i64 {
    let text = object["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    let metadata = &mut object["metadata"];
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    metadata["annotations"][TEMPLATE_GENERATION] = json!(generation.to_string());
}

#[derive(Debug)]
struct DaemonSet;

impl Strategy for DaemonSet {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        tolerance::label_values(error, &["spec.selector"])
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        let strategy = child(spec, "updateStrategy");
        set(strategy, "type", json!("RollingUpdate"));
        if strategy["type"] == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            set(rolling, "maxUnavailable", json!(1));
            set(rolling, "maxSurge", json!(0));
        }
        set(spec, "revisionHistoryLimit", json!(10));
        workload::default_template(spec);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        if template_generation(object) < 1 {
            set_template_generation(object, 1);
        }
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        let before = template_generation(old);
        let changed = object["spec"]["template"] != old["spec"]["template"];
        set_template_generation(object, before.saturating_add(i64::from(changed)));
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        if spec.at("selector").is_set() {
            selector::validate_workload(&spec, "daemonset", errors);
        }
        selector::validate_match(&spec, errors);
        let template = spec.at("template");
        workload::validate_template_at(object, old, "spec.template", errors);
        workload::lasting(&template, "DaemonSet", errors);
        spec.at("minReadySeconds").at_least_0(errors);
        update_strategy(&spec.at("updateStrategy"), errors);
        spec.at("revisionHistoryLimit").at_least_0(errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["spec.selector"], errors);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        // Upstream asks whether the template has changed, and not the rest of the spec.
        let is_unchanged = old.is_some_and(|old| template_generation(old) == template_generation(new));
        if is_unchanged {
            Vec::new()
        } else {
            workload::template_warnings(new, None, &Field::root(new).below("spec.template"))
        }
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let status = Field::root(new).at("status");
        let counts = [
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ];
        none_negative(&status, &counts, errors);
        workload::collisions_grow(&status, old, errors);
    }
}

fn update_strategy(strategy: &Field<'_>, errors: &mut Errors) {
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_set() => rolling.required("", errors),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.at("maxUnavailable"), rolling.at("maxSurge"));
            for field in [&unavailable, &surge] {
                workload::int_or_percent(field, errors);
            }
            for field in [&unavailable, &surge] {
                workload::at_most_100_percent(field, errors);
            }
            let some = |field: &Field<'_>| workload::int_or_percent_value(field) != 0;
            match (some(&unavailable), some(&surge)) {
                (true, true) => surge.invalid("may not be set when maxUnavailable is non-zero", errors),
                (false, false) => unavailable.required("cannot be 0 when maxSurge is 0", errors),
                _ => {}
            }
        }
        _ => {
            let shown = strategy.internal(&[("Type", "type"), ("RollingUpdate", "rollingUpdate")]);
            strategy.not_supported_as(&shown, &["RollingUpdate", "OnDelete"], errors);
        }
    }
}
