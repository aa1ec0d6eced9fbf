//! Where pods may run: their affinity to nodes and to other pods, and how they spread. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::leniency::{Broken, Leniency};
use crate::{
    apiserver::pipeline::validation::{
        errors::{Cause, Errors},
        names,
    },
    kinds::shared::{field::Field, node_selector, selector},
};

pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
pub(super) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NO_KEY: &str = "can not be empty";
const NONE: &str = "must be greater than zero";

/// Validates the affinity of a pod.
pub(super) fn validate_affinity(affinity: &Field<'_>, leniency: Leniency<'_>, errors: &mut Errors) {
    let nodes = affinity.at("nodeAffinity");
    let required = nodes.at(REQUIRED);
    if required.is_set() {
        node_selector::validate_with(&required, !leniency.allows(Broken::NodeAffinityValues), errors);
    }
    let any_value = leniency.allows(Broken::AffinityValues);
    for term in nodes.at(PREFERRED).items() {
        validate_weight(&term, errors);
        node_selector::validate_term(&term.at("preference"), false, errors);
    }
    for pods in [affinity.at("podAffinity"), affinity.at("podAntiAffinity")] {
        pods.at(REQUIRED).items().for_each(|term| validate_term(&term, any_value, errors));
        for term in pods.at(PREFERRED).items() {
            validate_weight(&term, errors);
            validate_term(&term.at("podAffinityTerm"), any_value, errors);
        }
    }
}

fn validate_weight(term: &Field<'_>, errors: &mut Errors) {
    let weight = term.at("weight");
    let shown = weight.number().unwrap_or(0);
    if !(1..=100).contains(&shown) {
        weight.invalid_as(&shown.to_string(), "must be in the range 1-100", errors);
    }
}

fn validate_term_selectors(term: &Field<'_>, any_value: bool, errors: &mut Errors) {
    selector::validate_with(&term.at("labelSelector"), any_value, errors);
    selector::validate_with(&term.at("namespaceSelector"), any_value, errors);
}

/// The terms of affinity to pods, whether they are required or not.
fn terms_of_pods<'a>(spec: &Field<'a>) -> impl Iterator<Item = Field<'a>> + use<'a> {
    let pods = ["podAffinity", "podAntiAffinity"].map(|kind| spec.at("affinity").at(kind));
    pods.into_iter().flat_map(|pods| {
        let preferred = pods.at(PREFERRED).items().map(|term| term.at("podAffinityTerm"));
        pods.at(REQUIRED).items().chain(preferred)
    })
}

/// Validates the selectors of affinity to pods.
pub(super) fn validate_affinity_selectors(spec: &Field<'_>, errors: &mut Errors) {
    terms_of_pods(spec).for_each(|term| validate_term_selectors(&term, false, errors));
}

/// Whether required affinity to nodes has values that are no values of labels.
pub(super) fn has_odd_node_values(spec: &Field<'_>) -> bool {
    let terms = spec.below("affinity.nodeAffinity").at(REQUIRED).at("nodeSelectorTerms");
    let mut values = terms
        .items()
        .flat_map(|term| term.at("matchExpressions").items())
        .flat_map(|expression| expression.at("values").items());
    values.any(|value| names::label_value(value.text()).is_some())
}

/// Validates the selectors of constraints.
pub(super) fn validate_spread_selectors(spec: &Field<'_>, errors: &mut Errors) {
    let all = spec.at("topologySpreadConstraints");
    all.items().for_each(|constraint| selector::validate(&constraint.at("labelSelector"), errors));
}

/// Validates the keys of constraints whose values are taken from the pod.
pub(super) fn validate_spread_keys(spec: &Field<'_>, errors: &mut Errors) {
    spec.at("topologySpreadConstraints").items().for_each(|constraint| validate_label_keys(&constraint, errors));
}

fn validate_term(term: &Field<'_>, any_value: bool, errors: &mut Errors) {
    validate_term_selectors(term, any_value, errors);
    for name in term.at("namespaces").texts() {
        errors.unless(format!("{}.namespace", term.path), name, names::label(name));
    }
    validate_label_keys(term, errors);
    let key = term.at("topologyKey");
    if key.is_empty() {
        key.required(NO_KEY, errors);
    }
    key.label_key(errors);
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` of a term or constraint.
fn validate_label_keys(term: &Field<'_>, errors: &mut Errors) {
    let (matching, mismatching, labels) =
        (term.at("matchLabelKeys"), term.at("mismatchLabelKeys"), term.at("labelSelector"));
    for keys in [&matching, &mismatching] {
        if keys.is_empty() {
        } else if labels.is_set() {
            keys.items().for_each(|key| key.label_key(errors));
        } else {
            keys.forbidden("must not be specified when labelSelector is not set", errors);
        }
    }
    let places: BTreeMap<&str, usize> = matching.texts().into_iter().enumerate().map(|(at, key)| (key, at)).collect();
    // The values of these keys are in the selectors of pods already, so one place in a selector is no contradiction.
    let mut seen: BTreeSet<&str> = labels.at("matchLabels").entries().map(|(key, _)| key).collect();
    for expression in labels.at("matchExpressions").items() {
        let key = expression.at("key").text();
        if let Some(at) = places.get(key).filter(|_| seen.contains(key)) {
            let why = "exists in both matchLabelKeys and labelSelector";
            errors.invalid_text(format!("{}[{at}]", term.path), key, why);
        }
        seen.insert(key);
    }
    let mismatching: BTreeSet<&str> = mismatching.texts().into_iter().collect();
    for key in matching.items().filter(|key| mismatching.contains(key.text())) {
        key.invalid("exists in both matchLabelKeys and mismatchLabelKeys", errors);
    }
}

/// Validates how pods spread.
pub(super) fn validate_spread(constraints: &Field<'_>, leniency: Leniency<'_>, errors: &mut Errors) {
    let all: Vec<Field<'_>> = constraints.items().collect();
    for (at, constraint) in all.iter().enumerate() {
        let (skew, key, action) =
            (constraint.at("maxSkew"), constraint.at("topologyKey"), constraint.at("whenUnsatisfiable"));
        let shown = skew.number().unwrap_or(0);
        if shown <= 0 {
            skew.invalid_as(&shown.to_string(), NONE, errors);
        }
        if key.is_empty() {
            key.required(NO_KEY, errors);
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        if !actions.contains(&action.text()) {
            action.not_supported_as(&format!("{:?}", action.text()), &actions, errors);
        }
        let same = |other: &Field<'_>| {
            other.at("topologyKey").text() == key.text() && other.at("whenUnsatisfiable").text() == action.text()
        };
        if all.iter().skip(at + 1).any(same) {
            let shown = format!("Duplicate value: \"{{{}, {}}}\"", key.text(), action.text());
            let path = format!("{}.{{topologyKey, whenUnsatisfiable}}", constraint.path);
            errors.push(path, Cause::Duplicate, shown);
        }
        let domains = constraint.at("minDomains");
        if let Some(count) = domains.number() {
            if count <= 0 {
                domains.invalid(NONE, errors);
            }
            if action.text() != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}", action.text());
                domains.invalid(&why, errors);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.at(policy).optional_one_of(&["Honor", "Ignore"], errors);
        }
        if leniency.allows(Broken::SpreadKeys) {
            validate_old_spread_keys(constraint, errors);
        } else {
            validate_label_keys(constraint, errors);
        }
        if !leniency.allows(Broken::SpreadSelectors) {
            selector::validate(&constraint.at("labelSelector"), errors);
        }
    }
}

/// The rules of earlier versions (upstream: `ValidateMatchLabelKeysInTopologySpread`).
fn validate_old_spread_keys(constraint: &Field<'_>, errors: &mut Errors) {
    let (keys, labels) = (constraint.at("matchLabelKeys"), constraint.at("labelSelector"));
    if keys.is_empty() {
        return;
    }
    if !labels.is_set() {
        return keys.forbidden("must not be specified when labelSelector is not set", errors);
    }
    let mut own: BTreeSet<&str> = labels.at("matchLabels").entries().map(|(key, _)| key).collect();
    own.extend(labels.at("matchExpressions").items().map(|expression| expression.at("key").text()));
    for key in keys.items() {
        key.label_key(errors);
        if own.contains(key.text()) {
            key.invalid("exists in both matchLabelKeys and labelSelector", errors);
        }
    }
}

/// Adds what `matchLabelKeys` and `mismatchLabelKeys` mean for a new pod to its selectors.
pub(crate) fn complete(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].clone();
    if !labels.is_object() {
        return;
    }
    for affinity in ["podAffinity", "podAntiAffinity"] {
        for (list, inner) in [(REQUIRED, ""), (PREFERRED, "/podAffinityTerm")] {
            let terms = pod.pointer_mut(&format!("/spec/affinity/{affinity}/{list}")).and_then(Value::as_array_mut);
            for term in terms.into_iter().flatten().filter_map(|term| term.pointer_mut(inner)) {
                add_labels(term, "matchLabelKeys", "In", &labels);
                add_labels(term, "mismatchLabelKeys", "NotIn", &labels);
            }
        }
    }
    let constraints = pod.pointer_mut("/spec/topologySpreadConstraints").and_then(Value::as_array_mut);
    for constraint in constraints.into_iter().flatten() {
        add_labels(constraint, "matchLabelKeys", "In", &labels);
    }
}

fn add_labels(term: &mut Value, keys: &str, operator: &str, labels: &Value) {
    let keys = term[keys].as_array().cloned().unwrap_or_default();
    let found = keys.iter().filter_map(|key| Some((key, labels.get(key.as_str()?)?)));
    let mut added: Vec<Value> =
        found.map(|(key, value)| json!({"key": key, "operator": operator, "values": [value]})).collect();
    let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut).filter(|_| !added.is_empty())
    else {
        return;
    };
    match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        Some(expressions) => expressions.append(&mut added),
        None => drop(selector.insert("matchExpressions".to_owned(), Value::Array(added))),
    }
}
