//! Where pods may run: their affinity to nodes and to other pods, and how they spread. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    apiserver::validation::{
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
pub(super) fn validate_affinity(affinity: &Field<'_>, errors: &mut Errors) {
    let nodes = affinity.at("nodeAffinity");
    let required = nodes.at(REQUIRED);
    if required.is_set() {
        node_selector::validate(&required, errors);
    }
    for term in nodes.at(PREFERRED).items() {
        validate_weight(&term, errors);
        node_selector::validate_term(&term.at("preference"), false, errors);
    }
    for pods in [affinity.at("podAffinity"), affinity.at("podAntiAffinity")] {
        pods.at(REQUIRED).items().for_each(|term| validate_term(&term, errors));
        for term in pods.at(PREFERRED).items() {
            validate_weight(&term, errors);
            validate_term(&term.at("podAffinityTerm"), errors);
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

fn validate_term(term: &Field<'_>, errors: &mut Errors) {
    selector::validate(&term.at("labelSelector"), errors);
    selector::validate(&term.at("namespaceSelector"), errors);
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
pub(super) fn validate_spread(constraints: &Field<'_>, errors: &mut Errors) {
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
        validate_label_keys(constraint, errors);
        selector::validate(&constraint.at("labelSelector"), errors);
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
