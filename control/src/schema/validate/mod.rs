//! What the API refuses, in upstream's words. Objects come here with their defaults filled in.
//!
//! A new kind's rules are one arm in `of_kind` and, where some fields may not change, one in `validate_update_of_kind`.

mod container;
mod data;
mod errors;
mod names;
mod network;
mod node;
mod pod;
mod status;
mod volume;

use serde_json::Value;

use super::canonical;
use crate::registry::Gvk;
pub use errors::{Cause, FieldError};
use errors::{Errors, text};

/// Checks a new object.
#[must_use]
pub fn validate_create(gvk: &Gvk, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata(gvk, &object["metadata"], &mut errors);
    validate_kind(gvk, object, &mut errors);
    errors.0
}

/// Checks a change of an object.
#[must_use]
pub fn validate_update(gvk: &Gvk, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    validate_metadata_update(gvk, new, old, &mut errors);
    validate_kind(gvk, new, &mut errors);
    // Clients write what is empty in their own ways; that is no change.
    validate_update_of_kind(gvk, &canonical(gvk, new), &canonical(gvk, old), &mut errors);
    errors.0
}

/// Checks a change through `/status`: the rest is as it was.
#[must_use]
pub fn validate_status(gvk: &Gvk, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    validate_metadata_update(gvk, new, old, &mut errors);
    status::validate_kind(gvk, &canonical(gvk, new), &canonical(gvk, old), &mut errors);
    errors.0
}

/// Checks a change of a namespace through `/finalize`.
#[must_use]
pub fn validate_finalize(gvk: &Gvk, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    validate_metadata_update(gvk, new, old, &mut errors);
    for (at, finalizer) in errors::list(&new["spec"], "finalizers") {
        namespace_finalizer(&format!("spec.finalizers[{at}]"), finalizer, &mut errors);
    }
    errors.0
}

fn validate_metadata_update(gvk: &Gvk, new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        if new["metadata"][field] != old["metadata"][field] {
            errors.invalid(format!("metadata.{field}"), &new["metadata"][field], "field is immutable");
        }
    }
    metadata(gvk, &new["metadata"], errors);
}

/// What a namespace waits for may be upstream's own or a name with a domain.
fn namespace_finalizer(field: &str, finalizer: &Value, errors: &mut Errors) {
    let name = finalizer.as_str().unwrap_or_default();
    let own = matches!(name, "kubernetes" | "orphan" | "foregroundDeletion");
    let wrong = names::qualified(name).or_else(|| {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        (!own && !name.contains('/')).then(|| why.to_owned())
    });
    errors.unless(field, name, wrong);
}

fn validate_kind(gvk: &Gvk, object: &Value, errors: &mut Errors) {
    match gvk.kind {
        "ConfigMap" => data::config_map(object, errors),
        "Endpoints" => network::endpoints(object, errors),
        "EndpointSlice" => network::endpoint_slice(object, errors),
        "Event" => node::event(object, errors),
        "Lease" => node::lease(&object["spec"], errors),
        "Namespace" => {
            for (_, finalizer) in errors::list(&object["spec"], "finalizers") {
                namespace_finalizer("spec.finalizers", finalizer, errors);
            }
        }
        "Node" => node::node(&object["spec"], errors),
        "Pod" => pod::spec(&object["spec"], "spec", false, errors),
        "ReplicationController" => pod::replication_controller(&object["spec"], errors),
        "Secret" => data::secret(object, errors),
        "Service" => network::service(&object["spec"], errors),
        _ => {}
    }
}

fn validate_update_of_kind(gvk: &Gvk, new: &Value, old: &Value, errors: &mut Errors) {
    match gvk.kind {
        "ConfigMap" => data::immutable(new, old, errors),
        "EndpointSlice" if new["addressType"] != old["addressType"] => {
            errors.invalid("addressType", &new["addressType"], "field is immutable")
        }
        "Node" => node::change(new, old, errors),
        "Pod" => pod::change(&new["spec"], &old["spec"], errors),
        "Secret" => {
            data::immutable(new, old, errors);
            if old["type"] != new["type"] {
                errors.invalid("type", &new["type"], "field is immutable");
            }
        }
        "Service" => network::change(&new["spec"], &old["spec"], errors),
        _ => {}
    }
}

/// Upstream's limit on all annotations of an object.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

fn metadata(gvk: &Gvk, metadata: &Value, errors: &mut Errors) {
    match (text(metadata, "name"), gvk.kind) {
        ("", _) => errors.required("metadata.name", "name or generateName is required"),
        (name, "Namespace" | "Service") => errors.unless("metadata.name", name, names::label(name)),
        (name, "Event") => {
            // Their names are made by programs; they only must stand in a path.
            if name.contains(['/', '%']) || name == "." || name == ".." {
                errors.invalid_text("metadata.name", name, "may not contain '/' or '%', nor be '.' or '..'");
            }
        }
        (name, _) => errors.unless("metadata.name", name, names::subdomain(name)),
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
}
