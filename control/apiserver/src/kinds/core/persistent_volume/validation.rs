//! What a volume may be, and what of it may change.

use serde_json::Value;

use super::sources;
use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::{
        field::Field,
        internal_version::{Internal, Table},
        node_selector,
        old_volumes::{self, OF_PERSISTENT_VOLUMES},
        validate_basic_resource,
        volume_claims::{POSITIVE, VOLUME_MODES, class_annotation_warning, is_positive, validate_access_modes},
    },
};

const SOURCE: Table = include_str!("internal_version.txt");
const NODE_AFFINITY: Table = "\
Required required *
 NodeSelectorTerms nodeSelectorTerms [] NodeSelectorTerm
";
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const RECYCLE: &str = "Recycle";

/// Validates a volume.
pub(super) fn validate(object: &Value, errors: &mut Errors) {
    let (root, spec) = (Field::root(object), Field::root(object).at("spec"));
    validate_access(&spec, errors);
    validate_capacity(&spec.at("capacity"), errors);
    let policy = spec.at("persistentVolumeReclaimPolicy");
    policy.optional_one_of(&["Delete", RECYCLE, "Retain"], errors);
    let affinity = spec.at("nodeAffinity");
    if affinity.at("required").is_set() {
        node_selector::validate(&affinity.at("required"), errors);
    } else if affinity.is_set() {
        affinity.at("required").required("must specify required node constraints", errors);
    }
    validate_source(root.below("metadata.name").text(), &spec, errors);
    spec.at("storageClassName").optionally_fits(names::subdomain, errors);
    spec.at("volumeMode").optional_one_of(&VOLUME_MODES, errors);
    validate_attributes_class(&spec, errors);
    if !object["metadata"]["annotations"][MOUNT_OPTIONS].is_null() && !sources::takes_options(spec.value) {
        let why = "may not specify mount options for this volume type";
        errors.forbidden(format!("metadata.annotations.{MOUNT_OPTIONS}"), why);
    }
}

fn validate_access(spec: &Field<'_>, errors: &mut Errors) {
    let modes = spec.at("accessModes");
    if modes.is_empty() {
        modes.required("", errors);
    }
    validate_access_modes(&modes, errors);
}

fn validate_source(name: &str, spec: &Field<'_>, errors: &mut Errors) {
    sources::validate(name, spec, errors);
    let is_root = |path: &str| path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "."));
    let policy = spec.at("persistentVolumeReclaimPolicy");
    if policy.text() == RECYCLE && is_root(spec.below("hostPath.path").text()) {
        policy.forbidden("may not be 'recycle' for a hostPath mount of '/'", errors);
    }
}

/// Validates the volume that a VolumeAttachment has within itself: one of a pod that has been migrated to CSI.
pub(crate) fn validate_inline(spec: &Field<'_>, errors: &mut Errors) {
    const WHY: &str = "may not be specified in the context of inline volumes";
    for field in ["claimRef", "capacity"].map(|field| spec.at(field)) {
        if !field.is_empty() {
            field.forbidden(WHY, errors);
        }
    }
    if !spec.at("csi").is_set() {
        spec.at("csi").required("has to be specified in the context of inline volumes", errors);
    }
    validate_access(spec, errors);
    let policy = spec.at("persistentVolumeReclaimPolicy");
    if !policy.is_empty() && policy.text() != "Retain" {
        policy.forbidden("may only be Retain in the context of inline volumes", errors);
    }
    if spec.at("nodeAffinity").is_set() {
        spec.at("nodeAffinity").forbidden(WHY, errors);
    }
    validate_source("", spec, errors);
    if !spec.at("storageClassName").is_empty() {
        spec.at("storageClassName").forbidden(WHY, errors);
    }
    let mode = spec.at("volumeMode");
    if mode.is_set() && mode.text() != "Filesystem" {
        mode.forbidden("may not specify volumeMode other than Filesystem in the context of inline volumes", errors);
    }
}

fn validate_capacity(capacity: &Field<'_>, errors: &mut Errors) {
    if capacity.is_empty() {
        capacity.required("", errors);
    }
    if capacity.len() != 1 || !capacity.at("storage").is_set() {
        capacity.not_supported_as(&capacity.value.to_string(), &["storage"], errors);
    }
    for (_, amount) in capacity.entries() {
        validate_basic_resource(&amount, errors);
        if amount.quantity().is_some_and(|size| !is_positive(size)) {
            amount.invalid(POSITIVE, errors);
        }
    }
}

fn validate_attributes_class(spec: &Field<'_>, errors: &mut Errors) {
    let class = spec.at("volumeAttributesClassName");
    if !class.is_set() {
        return;
    }
    if class.is_empty() {
        class.required("an empty string is disallowed", errors);
    }
    class.optionally_fits(names::subdomain, errors);
    if !spec.at("csi").is_set() {
        spec.at("csi").required("has to be specified when using volumeAttributesClassName", errors);
    }
}

/// Refuses changes of what is fixed. Both objects are in their canonical form.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (spec, was) = (Field::root(new).at("spec"), Field::root(old).at("spec"));
    let mut source = spec.value.clone();
    // The secret for growing may come later.
    let secret = |spec: &Value| spec["csi"]["controllerExpandSecretRef"].clone();
    if was.at("csi").is_set() && secret(was.value).is_null() && !secret(&source).is_null() {
        source["csi"]["controllerExpandSecretRef"] = Value::Null;
    }
    let (before, after) = (Internal::new(SOURCE, was.value), Internal::new(SOURCE, &source));
    if before.text() != after.text() {
        let diff = before.diff(&after);
        let why = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        spec.at("persistentvolumesource").forbidden(&why, errors);
    }
    Field { path: "volumeMode".to_owned().into(), ..spec.at("volumeMode") }.unchanged(&was.at("volumeMode"), errors);
    let (affinity, before) = (spec.at("nodeAffinity"), was.at("nodeAffinity"));
    if before.is_set() && *affinity.value != with_new_labels(before.value, affinity.value) {
        let shown =
            if affinity.is_set() { Internal::new(NODE_AFFINITY, affinity.value).text() } else { "null".to_owned() };
        let affinity = Field { path: "nodeAffinity".to_owned().into(), ..affinity };
        affinity.invalid_as(&shown, "field is immutable, except for updating from beta label to GA", errors);
    }
    let class = spec.at("volumeAttributesClassName");
    if was.at("volumeAttributesClassName").is_set() && !class.is_set() {
        class.forbidden("update from non-nil value to nil is forbidden", errors);
    }
}

/// The old affinity with the new names of labels, where the new one has them.
fn with_new_labels(old: &Value, new: &Value) -> Value {
    match (old, new) {
        (Value::Object(fields), _) => {
            let renamed = fields.iter().map(|(name, value)| (name.clone(), with_new_labels(value, &new[name])));
            Value::Object(renamed.collect())
        }
        (Value::Array(items), Value::Array(others)) => {
            let nothing = std::iter::repeat(&Value::Null);
            let pairs = items.iter().zip(others.iter().chain(nothing));
            pairs.map(|(item, other)| with_new_labels(item, other)).collect()
        }
        (Value::String(label), Value::String(other)) => {
            let is_renamed = node_selector::DEPRECATED_LABELS.iter().any(|(from, _, to)| from == label && to == other);
            if is_renamed { new.clone() } else { old.clone() }
        }
        _ => old.clone(),
    }
}

/// Warnings about what is on its way out.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let spec = Field::root(object).at("spec");
    let mut found: Vec<String> = class_annotation_warning(object).into_iter().collect();
    if !object["metadata"]["annotations"][MOUNT_OPTIONS].is_null() {
        let why = "deprecated since v1.31; use \"mountOptions\" attribute instead";
        found.push(format!("metadata.annotations[{MOUNT_OPTIONS}]: {why}"));
    }
    if spec.at("persistentVolumeReclaimPolicy").text() == RECYCLE {
        let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
        found.push(format!("spec.persistentVolumeReclaimPolicy: {why}"));
    }
    found.extend(node_selector::warnings(&spec.below("nodeAffinity.required")));
    found.extend(old_volumes::warnings(&spec, &OF_PERSISTENT_VOLUMES));
    found
}
