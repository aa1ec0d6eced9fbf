//! Validation of object metadata. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    errors::{self, Errors, text},
    names,
};
use crate::apiserver::{field_manager, types::Version};

/// Upstream's limit on all annotations of an object.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// Validates the metadata of a new object.
pub(super) fn validate(version: &Version, metadata: &Value, errors: &mut Errors) {
    match text(metadata, "name") {
        "" => errors.required("metadata.name", "name or generateName is required"),
        name => errors.unless("metadata.name", name, version.strategy.validate_name(name)),
    }
    if metadata["generation"].as_i64().is_some_and(|generation| generation < 0) {
        errors.invalid("metadata.generation", &metadata["generation"], "must be greater than or equal to 0");
    }
    names::labels(&metadata["labels"], "metadata.labels", errors);
    let mut total = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        errors.unless("metadata.annotations", key, names::qualified(&key.to_lowercase()));
    }
    if total > MAX_ANNOTATIONS_BYTES {
        errors.too_long("metadata.annotations", MAX_ANNOTATIONS_BYTES);
    }
    let mut controller = None;
    for (at, owner) in errors::list(metadata, "ownerReferences") {
        if owner["controller"] == true {
            let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &controller {
                None => controller = Some(this),
                Some(first) => errors.invalid(
                    "metadata.ownerReferences",
                    &metadata["ownerReferences"],
                    &format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"),
                ),
            }
        }
        for (key, word) in [("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")] {
            if text(owner, key).is_empty() {
                errors.invalid_text(
                    format!("metadata.ownerReferences[{at}].{key}"),
                    "",
                    &format!("{word} must not be empty"),
                );
            }
        }
    }
    for (at, finalizer) in errors::list(metadata, "finalizers") {
        let finalizer = finalizer.as_str().unwrap_or_default();
        errors.unless(format!("metadata.finalizers[{at}]"), finalizer, names::qualified(finalizer));
    }
    field_manager::validate_managed_fields(metadata, errors);
}

/// New finalizers may not be added once an object is being deleted.
fn validate_no_new_finalizers(new: &Value, old: &Value, errors: &mut Errors) {
    if old["deletionTimestamp"].is_null() {
        return;
    }
    let set = |metadata: &Value| -> BTreeSet<String> {
        errors::list(metadata, "finalizers").filter_map(|(_, name)| name.as_str().map(str::to_owned)).collect()
    };
    let added: Vec<String> = set(new).difference(&set(old)).map(|name| format!("{name:?}")).collect();
    if !added.is_empty() {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        );
        errors.forbidden("metadata.finalizers", &why);
    }
}

/// Validates the metadata of a changed object.
pub(super) fn validate_update(version: &Version, new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        if new["metadata"][field] != old["metadata"][field] {
            errors.invalid(format!("metadata.{field}"), &new["metadata"][field], "field is immutable");
        }
    }
    validate(version, &new["metadata"], errors);
    validate_no_new_finalizers(&new["metadata"], &old["metadata"], errors);
}
