//! Which changes of a pod are refused. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::{
    apiserver::pipeline::validation::errors::{Errors, list},
    kinds::shared::{
        field::Field,
        internal_version::{Internal, NODE_SELECTOR_TERM},
        pod_template::{self, Leniency},
    },
};

const IMMUTABLE_FIELDS: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const REQUIRED: &str = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

/// Images, a shorter deadline, added tolerations and removed scheduling gates are the changes that are allowed; and while
/// there are gates, what narrows the choice of nodes.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let leniency = Leniency::of(Some(old));
    let [new, old] = [new, old].map(|pod| Field::root(pod).at("spec"));
    for key in ["containers", "initContainers"] {
        if new.at(key).len() != old.at(key).len() {
            return new.at(key).forbidden("pod updates may not add or remove containers", errors);
        }
        for image in new.at(key).items().map(|container| container.at("image")) {
            if image.is_empty() {
                image.required("", errors);
            }
            if image.text().trim() != image.text() {
                image.invalid("must not have leading or trailing whitespace", errors);
            }
        }
    }
    if !validate_deadline(&new.at("activeDeadlineSeconds"), &old.at("activeDeadlineSeconds"), errors) {
        return;
    }
    validate_tolerations(&new.at("tolerations"), &old.at("tolerations"), leniency, errors);
    let gates = old.at("schedulingGates");
    for gate in new.at("schedulingGates").items() {
        let name = gate.at("name");
        if !gates.items().any(|was| was.at("name").text() == name.text()) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", name.text());
            name.forbidden(&why, errors);
        }
    }
    if new.value == old.value {
        return;
    }
    let is_gated = !gates.is_empty();
    if is_gated {
        validate_narrowing(&new, &old, errors);
    }
    let changed = other_changes(new.value, old.value, is_gated);
    if !changed.is_empty() {
        new.forbidden(&format!("{IMMUTABLE_FIELDS}\nchanged: {}", changed.join(", ")), errors);
    }
}

/// Whether the rest is to be looked at: a deadline may come, and come closer.
fn validate_deadline(new: &Field<'_>, old: &Field<'_>, errors: &mut Errors) -> bool {
    match (new.number(), old.number()) {
        (Some(is), _) if !(0..=i64::from(i32::MAX)).contains(&is) => {
            new.invalid("must be between 0 and 2147483647, inclusive", errors);
            false
        }
        (Some(is), Some(was)) if is > was => {
            new.invalid("must be less than or equal to previous value", errors);
            false
        }
        (None, Some(_)) => {
            new.invalid("must not update from a positive integer to nil value", errors);
            true
        }
        _ => true,
    }
}

/// How long one lasts may change, nothing else of it.
fn validate_tolerations(new: &Field<'_>, old: &Field<'_>, leniency: Leniency<'_>, errors: &mut Errors) {
    let lasting = |toleration: Field<'_>| {
        let mut toleration = toleration.value.clone();
        toleration.as_object_mut().and_then(|fields| fields.remove("tolerationSeconds"));
        toleration
    };
    let there: Vec<Value> = new.items().map(lasting).collect();
    if old.items().any(|kept| !there.contains(&lasting(kept))) {
        return new.forbidden("existing toleration can not be modified except its tolerationSeconds", errors);
    }
    // Upstream looks at them once more.
    pod_template::validate_tolerations(new, leniency, errors);
}

/// Lets the choice of nodes become narrower, and refuses that it becomes another one.
fn validate_narrowing(new: &Field<'_>, old: &Field<'_>, errors: &mut Errors) {
    let (selector, was) = (new.at("nodeSelector"), old.at("nodeSelector"));
    if was.entries().any(|(key, value)| selector.value.get(key) != Some(value.value)) {
        selector.invalid("only additions to spec.nodeSelector are allowed (no mutations or deletions)", errors);
    }
    let (terms, before) = (new.below(REQUIRED), old.below(REQUIRED));
    if before.is_empty() {
        return;
    }
    if terms.len() != before.len() {
        let shown = Internal::list(NODE_SELECTOR_TERM, terms.value).text();
        return terms.invalid_as(
            &shown,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
            errors,
        );
    }
    for (term, before) in terms.items().zip(before.items()) {
        if !only_adds(&term, &before) {
            let shown = Internal::new(NODE_SELECTOR_TERM, term.value).text();
            term.invalid_as(&shown, "only additions are allowed (no mutations or deletions)", errors);
        }
    }
}

/// Whether a term has what it had, and maybe more. One that had nothing selects nothing, and stays so.
fn only_adds(new: &Field<'_>, old: &Field<'_>) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    if lists.iter().all(|list| old.at(list).is_empty()) {
        return lists.iter().all(|list| new.at(list).is_empty());
    }
    lists.iter().all(|list| {
        let (is, was) = (new.value[*list].as_array(), old.value[*list].as_array());
        was.is_none_or(|was| is.is_some_and(|is| is.starts_with(was)))
    })
}

/// The affinity besides that to nodes, which is checked for itself.
fn other_affinity(spec: &Value) -> Map<String, Value> {
    let mut affinity = spec["affinity"].as_object().cloned().unwrap_or_default();
    affinity.remove("nodeAffinity");
    affinity
}

/// The fields that differ and may not.
fn other_changes(new: &Value, old: &Value, is_gated: bool) -> Vec<String> {
    let mut changed = Vec::new();
    let keys: BTreeSet<&String> = [new, old].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
    for key in keys {
        match key.as_str() {
            "activeDeadlineSeconds" | "tolerations" | "schedulingGates" => {}
            "nodeSelector" if is_gated => {}
            "affinity" if is_gated && other_affinity(new) == other_affinity(old) => {}
            "containers" | "initContainers" => {
                for ((at, is), (_, was)) in list(new, key).zip(list(old, key)) {
                    let fields: BTreeSet<&String> =
                        [is, was].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
                    let others = fields.into_iter().filter(|f| *f != "image" && is[f.as_str()] != was[f.as_str()]);
                    changed.extend(others.map(|field| format!("spec.{key}[{at}].{field}")));
                }
            }
            "terminationGracePeriodSeconds" if old[key].as_i64().is_some_and(|n| n < 0) && new[key] == 1 => {}
            key if new[key] != old[key] => changed.push(format!("spec.{key}")),
            _ => {}
        }
    }
    changed
}
