//! What may change of a claim, and what its status may hold.

use serde_json::{Value, json};
use windlass_kit::{
    objects::{claims::CLASS_ANNOTATION, resource_names::is_native},
    quantity::Quantity,
};

use crate::{
    apiserver::pipeline::validation::{
        errors::{Errors, text},
        names,
    },
    kinds::shared::{
        field::{Field, IMMUTABLE},
        internal_version::{Internal, Table},
        validate_basic_resource,
    },
};

const SPEC: Table = "\
AccessModes accessModes null
Selector selector null
Resources resources {}
 Limits limits null
 Requests requests null
VolumeName volumeName \"\"
StorageClassName storageClassName null
VolumeMode volumeMode null
DataSource dataSource *
 APIGroup apiGroup null
 Kind kind \"\"
 Name name \"\"
DataSourceRef dataSourceRef *
 APIGroup apiGroup null
 Kind kind \"\"
 Name name \"\"
 Namespace namespace null
VolumeAttributesClassName volumeAttributesClassName null
";

const FIXED: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

const RESIZE_STATES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Refuses changes of the spec. Both objects are in their canonical form.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (spec, was) = (Field::root(new).at("spec"), Field::root(old).at("spec"));
    if annotation(new) != annotation(old) && !class_has_moved(new, old) {
        errors.invalid_text(format!("metadata.annotations.{CLASS_ANNOTATION}"), annotation(new), IMMUTABLE);
    }
    validate_fixed(new, old, errors);
    let size = spec.below("resources.requests.storage");
    let bytes = |of: &Field<'_>| of.quantity().unwrap_or(Quantity::from_bytes(0));
    let requested = bytes(&size);
    if requested < bytes(&was.below("resources.requests.storage"))
        && requested <= bytes(&Field::root(old).below("status.capacity.storage"))
    {
        size.forbidden("field can not be less than status.capacity", errors);
    }
    let mode = Field { path: "volumeMode".to_owned().into(), ..spec.at("volumeMode") };
    mode.unchanged(&was.at("volumeMode"), errors);
    let class = spec.at("volumeAttributesClassName");
    let has_one = !old["status"]["currentVolumeAttributesClassName"].is_null();
    if has_one && class.is_empty() && class.value != was.at("volumeAttributesClassName").value {
        let what = if class.is_set() { "empty string" } else { "nil" };
        let why = format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
        class.forbidden(&why, errors);
    }
}

/// The class that an annotation names.
fn annotation(claim: &Value) -> &str {
    text(&claim["metadata"]["annotations"], CLASS_ANNOTATION)
}

/// Whether the class has moved from the annotation to the spec.
fn class_has_moved(new: &Value, old: &Value) -> bool {
    let (is, was) = (annotation(new), annotation(old));
    let has_class = !old["spec"]["storageClassName"].is_null();
    !was.is_empty() && !has_class && new["spec"]["storageClassName"] == was && (is.is_empty() || is == was)
}

/// Refuses changes of what is fixed.
fn validate_fixed(new: &Value, old: &Value, errors: &mut Errors) {
    let (mut is, mut was) = (new["spec"].clone(), old["spec"].clone());
    if text(&was, "volumeName").is_empty() {
        was["volumeName"] = is["volumeName"].clone();
    }
    if was["storageClassName"].is_null() && (annotation(old).is_empty() || class_has_moved(new, old)) {
        is["storageClassName"] = Value::Null;
    }
    if old["status"]["phase"] == "Bound" {
        is["resources"]["requests"]["storage"] = was["resources"]["requests"]["storage"].clone();
        is["volumeAttributesClassName"] = was["volumeAttributesClassName"].clone();
    }
    let (is, was) = (Internal::new(SPEC, &is), Internal::new(SPEC, &was));
    if is.text() != was.text() {
        errors.forbidden("spec", &format!("{FIXED}\n{}", was.diff(&is)));
    }
}

/// Validates a status.
pub(super) fn validate_status(object: &Value, errors: &mut Errors) {
    let status = Field::root(object).at("status");
    status.at("capacity").entries().for_each(|(_, amount)| validate_basic_resource(&amount, errors));
    let states = status.at("allocatedResourceStatuses");
    for (resource, state) in states.entries() {
        validate_resource(&states, resource, errors);
        if !RESIZE_STATES.contains(&state.text()) {
            errors.not_supported(&states.path, &json!(resource), &RESIZE_STATES);
        }
    }
    let allocated = status.at("allocatedResources");
    for (resource, amount) in allocated.entries() {
        validate_resource(&allocated, resource, errors);
        validate_basic_resource(&amount, errors);
    }
}

/// Refuses what a claim cannot have.
fn validate_resource(of: &Field<'_>, resource: &str, errors: &mut Errors) {
    errors.unless(&of.path, resource, names::qualified(resource));
    if names::qualified(resource).is_none() && is_native(resource) && resource != "storage" {
        errors.not_supported(&of.path, &json!(resource), &["storage"]);
    }
}
