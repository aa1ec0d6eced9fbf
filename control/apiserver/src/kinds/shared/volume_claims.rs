//! The spec of a PersistentVolumeClaim, in the claim itself and in the templates of StatefulSets. Pure.

use serde_json::{Value, json};
use windlass_kit::{objects::claims::CLASS_ANNOTATION, quantity::Quantity};

use super::{field::Field, fractional_bytes, selector};
use crate::apiserver::pipeline::validation::{errors::Errors, names};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const ALONE: &str = "ReadWriteOncePod";
pub(crate) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
pub(crate) const POSITIVE: &str = "must be greater than zero";

/// Validates the spec of a claim.
pub(crate) fn validate_spec(spec: &Field<'_>, errors: &mut Errors) {
    let modes = spec.at("accessModes");
    if modes.is_empty() {
        modes.required("at least 1 access mode is required", errors);
    }
    selector::validate(&spec.at("selector"), errors);
    validate_access_modes(&modes, errors);
    let storage = spec.below("resources.requests.storage");
    let path = format!("{}.resources[storage]", spec.path);
    match storage.quantity() {
        None => errors.required(path, ""),
        Some(size) if !is_positive(size) => errors.invalid(path, storage.value, POSITIVE),
        Some(_) => {}
    }
    spec.at("storageClassName").optionally_fits(names::subdomain, errors);
    spec.at("volumeMode").optional_one_of(&VOLUME_MODES, errors);
    let (source, reference) = (spec.at("dataSource"), spec.at("dataSourceRef"));
    for each in [&source, &reference] {
        validate_source(each, errors);
    }
    if source.is_set() && reference.is_set() {
        let differs = |part: &&str| source.value[*part] != reference.value[*part];
        // Upstream shows a path, which has no public fields.
        if !reference.at("namespace").is_empty() {
            spec.invalid_as("{}", "may not be specified when dataSourceRef.namespace is specified", errors);
        } else if ["apiGroup", "kind", "name"].iter().any(differs) {
            spec.invalid_as("{}", "must match dataSourceRef", errors);
        }
    }
    spec.at("volumeAttributesClassName").optionally_fits(names::subdomain, errors);
}

/// Whether it is more than nothing.
pub(crate) fn is_positive(amount: Quantity) -> bool {
    !amount.is_negative() && !amount.is_zero()
}

/// Refuses access modes that do not exist, or not together with others.
pub(crate) fn validate_access_modes(modes: &Field<'_>, errors: &mut Errors) {
    let texts = modes.texts();
    for mode in &texts {
        errors.one_of(&modes.path, &json!(mode), &ACCESS_MODES);
    }
    if texts.contains(&ALONE) && texts.iter().any(|mode| *mode != ALONE && ACCESS_MODES.contains(mode)) {
        modes.forbidden("may not use ReadWriteOncePod with other access modes", errors);
    }
}

/// Validates what a volume is to be filled from.
fn validate_source(source: &Field<'_>, errors: &mut Errors) {
    if !source.is_set() {
        return;
    }
    let (group, kind) = (source.at("apiGroup"), source.at("kind"));
    for needed in [&source.at("name"), &kind] {
        if needed.is_empty() {
            needed.required("", errors);
        }
    }
    if group.is_empty() && kind.text() != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid_text(&source.path, kind.text(), why);
    }
    group.optionally_fits(names::subdomain, errors);
    source.at("namespace").optionally_fits(names::label, errors);
}

/// Whether a source is of the two kinds that were there before others were allowed.
fn is_claim_or_snapshot(source: &Value) -> bool {
    let of = |field: &str| source[field].as_str().unwrap_or_default();
    matches!(
        (of("apiGroup"), of("kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}

/// Drops sources that are not supported, as clients may send them, and makes `dataSource` and `dataSourceRef` the same.
pub(crate) fn normalize_sources(object: &mut Value, old: Option<&Value>) {
    let Some(spec) = object["spec"].as_object_mut() else { return };
    let in_use = |field: &str| old.is_some_and(|old| !old["spec"][field].is_null());
    let crosses = |reference: &Value| reference["namespace"].as_str().is_some_and(|namespace| !namespace.is_empty());
    if !in_use("dataSourceRef") && spec.get("dataSourceRef").is_some_and(crosses) {
        spec.remove("dataSourceRef");
    }
    if !in_use("dataSource") && spec.get("dataSource").is_some_and(|source| !is_claim_or_snapshot(source)) {
        spec.remove("dataSource");
    }
    let set = |name: &str| spec.get(name).filter(|source| !source.is_null()).cloned();
    match (set("dataSource"), set("dataSourceRef")) {
        (Some(source), None) => drop(spec.insert("dataSourceRef".to_owned(), source)),
        (None, Some(mut reference)) if !crosses(&reference) => {
            reference.as_object_mut().map(|fields| fields.remove("namespace"));
            spec.insert("dataSource".to_owned(), reference);
        }
        _ => {}
    }
}

/// The warning about the annotation.
pub(crate) fn class_annotation_warning(object: &Value) -> Option<String> {
    let is_set = !object["metadata"]["annotations"][CLASS_ANNOTATION].is_null();
    let why = "deprecated since v1.8; use \"storageClassName\" attribute instead";
    is_set.then(|| format!("metadata.annotations[{CLASS_ANNOTATION}]: {why}"))
}

/// Warnings about amounts that are no whole bytes.
pub(crate) fn fractions(spec: &Field<'_>) -> Vec<String> {
    let resources = spec.at("resources");
    ["requests", "limits"].iter().filter_map(|list| fractional_bytes(&resources.at(list), "storage")).collect()
}
