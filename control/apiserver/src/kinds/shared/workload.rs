//! What controllers of pods have in common: their template, numbers or percentages, and cells. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::{
    int_or_percent::percent,
    pod_defaults::{child, pod_spec, set},
};

use super::{
    cells::{joined, text},
    field::Field,
    pod_template::{self, Leniency, security_profiles},
    selector,
};
use crate::apiserver::pipeline::validation::{errors::Errors, names};

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
const STATUS_REPLICAS: &str = "cannot be greater than status.replicas";

/// Sets the defaults of the pod template at `spec.template`.
pub(crate) fn default_template(spec: &mut Map<String, Value>) {
    default_pod_template(child(spec, "template"));
}

/// Sets the defaults of a pod template.
pub(crate) fn default_pod_template(template: &mut Map<String, Value>) {
    set(template, "metadata", json!({}));
    pod_spec(child(template, "spec"));
    if let Some(spec) = template.get_mut("spec") {
        pod_template::drop_disabled(spec, None);
    }
}

/// The warning about a name that hosts cannot have; `part` says what it becomes a part of.
pub(crate) fn name_warning(new: &Value, old: Option<&Value>, part: &str) -> Option<String> {
    let name = new["metadata"]["name"].as_str().unwrap_or("");
    let why = names::label(name).filter(|_| old.is_none())?;
    Some(format!(
        "metadata.name: this is used in {part}, which can result in surprising behavior; a DNS label is recommended: [{why}]"
    ))
}

/// What the names of workloads become a part of.
pub(crate) const POD_NAMES: &str = "Pod names and hostnames";

/// The warnings about a workload whose pods have names of its own.
pub(crate) fn warnings(new: &Value, old: Option<&Value>, template: &Field<'_>) -> Vec<String> {
    let name = name_warning(new, old, POD_NAMES);
    name.into_iter().chain(template_warnings(new, old, template)).collect()
}

/// Validates the pod template at a path of an object, against the stored one.
pub(crate) fn validate_template_at(object: &Value, old: Option<&Value>, path: &'static str, errors: &mut Errors) {
    let at = |object| Field::root(object).below(path);
    validate_pod_template(&at(object), old.map(at).as_ref(), errors);
}

/// Validates a pod template; `old` is the stored one.
pub(crate) fn validate_pod_template(template: &Field<'_>, old: Option<&Field<'_>>, errors: &mut Errors) {
    let (labels, annotations) = (template.below("metadata.labels"), template.below("metadata.annotations"));
    names::labels(labels.value, &template.path.field("labels"), errors);
    let annotations = Field { path: template.path.field("annotations"), ..annotations };
    names::annotations(annotations.value, &annotations.path, errors);
    let spec = template.at("spec");
    let leniency = Leniency::of(old.map(|old| old.value));
    pod_template::annotations::validate(&annotations, &spec, leniency, errors);
    pod_template::validate_template(&spec, leniency, errors);
    security_profiles::validate_match(annotations.value, &spec, errors);
    let ephemeral = spec.at("ephemeralContainers");
    if !ephemeral.is_empty() {
        ephemeral.forbidden("ephemeral containers not allowed in pod template", errors);
    }
}

/// Warnings about the pod template of a new object or one whose generation has changed.
pub(crate) fn template_warnings(new: &Value, old: Option<&Value>, template: &Field<'_>) -> Vec<String> {
    if old.is_some_and(|old| old["metadata"]["generation"] == new["metadata"]["generation"]) {
        return Vec::new();
    }
    pod_template::warnings(&template.at("metadata"), &template.at("spec"), true)
}

/// Validates the template of a workload whose pods run for ever: `kind` is upstream's name of it in messages.
pub(crate) fn validate_lasting_template(spec: &Field<'_>, old: Option<&Value>, kind: &str, errors: &mut Errors) {
    let template = spec.at("template");
    selector::validate_match(spec, errors);
    validate_pod_template(&template, old.map(|old| Field::root(old).below("spec.template")).as_ref(), errors);
    lasting(&template, kind, errors);
}

/// Refuses pods that end.
pub(crate) fn lasting(template: &Field<'_>, kind: &str, errors: &mut Errors) {
    template.below("spec.restartPolicy").one_of(&["Always"], errors);
    let deadline = template.below("spec.activeDeadlineSeconds");
    if deadline.is_set() {
        deadline.forbidden(&format!("activeDeadlineSeconds in {kind} is not Supported"), errors);
    }
}

/// Validates a number or percentage that is not negative.
pub(crate) fn int_or_percent(field: &Field<'_>, errors: &mut Errors) {
    match field.value {
        Value::String(text) if percent(text).is_none() => field.invalid(PERCENT, errors),
        Value::Number(_) => field.at_least_0(errors),
        _ => {}
    }
}

/// Refuses more than all.
pub(crate) fn at_most_100_percent(field: &Field<'_>, errors: &mut Errors) {
    if percent(field.text()).is_some_and(|percent| percent > 100) {
        field.invalid("must not be greater than 100%", errors);
    }
}

/// The number, or that of the percentage.
pub(crate) fn int_or_percent_value(field: &Field<'_>) -> i64 {
    field.number().or_else(|| percent(field.text())).unwrap_or(0)
}

/// Refuses counts of a status that are greater than `status.replicas`.
pub(crate) fn at_most_replicas(status: &Field<'_>, fields: &[&'static str], errors: &mut Errors) {
    let replicas = status.at("replicas").number().unwrap_or(0);
    for field in fields.iter().map(|field| status.at(field)) {
        let count = field.number().unwrap_or(0);
        if count > replicas {
            field.invalid_as(&count.to_string(), STATUS_REPLICAS, errors);
        }
    }
}

/// Refuses more available pods than ready ones.
pub(crate) fn available_at_most_ready(status: &Field<'_>, why: &str, errors: &mut Errors) {
    let available = status.at("availableReplicas");
    let count = available.number().unwrap_or(0);
    if count > status.at("readyReplicas").number().unwrap_or(0) {
        available.invalid_as(&count.to_string(), why, errors);
    }
}

/// Refuses a count of collisions that is less than it was.
pub(crate) fn collisions_grow(status: &Field<'_>, old: &Value, errors: &mut Errors) {
    let (count, before) = (status.at("collisionCount"), old["status"]["collisionCount"].as_i64());
    if before.is_some_and(|before| count.number().is_none_or(|count| count < before)) {
        count.invalid("cannot be decremented", errors);
    }
}

/// Names of a template's containers, and their images.
pub(crate) fn containers(template: &Value) -> [Value; 2] {
    let all = |key: &str| {
        let containers = template["spec"]["containers"].as_array();
        json!(joined(containers.into_iter().flatten().map(|container| text(&container[key]).to_owned())))
    };
    [all("name"), all("image")]
}

/// A count; 0 if not set.
pub(crate) fn number(value: &Value) -> Value {
    json!(value.as_i64().unwrap_or(0))
}
