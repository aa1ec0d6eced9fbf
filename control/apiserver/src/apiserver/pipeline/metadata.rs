//! Type and object metadata: which fields the server decides, and which ones clients may not change. Pure, except for
//! the clock and random numbers.

use serde_json::{Map, Value, json};

use crate::apiserver::{
    generate::{generated_name, new_uid, now},
    request::{error::ApiError, target::Target},
    types::{Generation, Gvk, Version},
};

/// Sets `kind` and `apiVersion`. Clients may leave them out, but not send other values.
///
/// # Errors
/// When the object has another kind or version.
pub(crate) fn set_type_meta(gvk: &Gvk, object: &mut Value) -> Result<(), String> {
    let Some(fields) = object.as_object_mut() else { return Err("it is no JSON object".to_owned()) };
    let fields_of_type = [("kind", "kind", gvk.kind.to_string()), ("apiVersion", "API version", gvk.api_version())];
    for (field, told, wanted) in fields_of_type {
        match fields.get(field) {
            Some(Value::String(given)) if *given == wanted => {}
            Some(Value::String(given)) if !given.is_empty() => {
                return Err(format!("the {told} in the data ({given}) does not match the expected {told} ({wanted})"));
            }
            None | Some(Value::Null | Value::String(_)) => drop(fields.insert(field.to_owned(), json!(wanted))),
            Some(_) => return Err(format!("the {field} in the data is no text; expected {wanted}")),
        }
    }
    Ok(())
}

pub(in crate::apiserver) fn metadata_of(object: &mut Value) -> Result<&mut Map<String, Value>, ApiError> {
    let fields = object.as_object_mut().ok_or_else(|| ApiError::bad_request("the body must be a JSON object"))?;
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    metadata.as_object_mut().ok_or_else(|| ApiError::bad_request("metadata must be a JSON object"))
}

/// Refuses a new object that says to be stored, or to be elsewhere than its path does. The former only where it is to be stored: it
/// is upstream's storage that refuses it, which a dry run does not reach.
pub(in crate::apiserver) fn check_for_create(
    target: &Target,
    object: &mut Value,
    is_dry_run: bool,
) -> Result<(), ApiError> {
    let metadata = metadata_of(object)?;
    // What is no number is left out without a word, as upstream does.
    let revision = metadata.get("resourceVersion").and_then(Value::as_str).and_then(|text| text.parse::<u64>().ok());
    if !is_dry_run && revision.is_some_and(|revision| revision != 0) {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    ensure_namespace(target, metadata)
}

/// Sets the server-controlled fields of a new object, removes those that clients may not set, and generates its name if
/// it asks for one and no plugin has set one. Upstream's `BeforeCreate` with `FillObjectMetaSystemFields`.
pub(in crate::apiserver) fn fill_for_create(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    let metadata = metadata_of(object)?;
    // A webhook may have named another one.
    ensure_namespace(target, metadata)?;
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
        metadata.remove(field);
    }
    metadata.insert("uid".to_owned(), json!(new_uid()?));
    metadata.insert("creationTimestamp".to_owned(), json!(now()));
    if matches!(target.version.generation, Generation::Fixed | Generation::Counted) {
        metadata.insert("generation".to_owned(), json!(1));
    }
    let named = metadata.get("name").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    if let (false, Some(base)) = (named, metadata.get("generateName").and_then(Value::as_str).filter(|b| !b.is_empty()))
    {
        let name = generated_name(base)?;
        metadata.insert("name".to_owned(), json!(name));
    }
    Ok(())
}

pub(in crate::apiserver) fn ensure_namespace(
    target: &Target,
    metadata: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or("");
    match &target.namespace {
        Some(namespace) if given.is_empty() => drop(metadata.insert("namespace".to_owned(), json!(namespace))),
        Some(namespace) if given != namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Some(_) => {}
        None if !target.version.namespaced => drop(metadata.remove("namespace")),
        None => return Err(ApiError::bad_request("an object of this kind needs a namespace in its path")),
    }
    Ok(())
}

/// Checks that a changed object is the one in the path. What only the server writes is still as the client has sent it: so
/// admission sees it, as upstream's.
pub(in crate::apiserver) fn check_for_update(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    let metadata = metadata_of(object)?;
    ensure_namespace(target, metadata)?;
    metadata.remove("selfLink");
    check_name(target, object)
}

/// Restores the system fields of a changed object, whatever the client sent.
pub(in crate::apiserver) fn restore_system_fields(object: &mut Value, old: &Value) -> Result<(), ApiError> {
    let metadata = metadata_of(object)?;
    for field in
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"]
    {
        match old["metadata"].get(field) {
            Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
            // Only a deletion begins one: validation refuses an update that does.
            None if field.starts_with("deletion") && !metadata.get(field).is_none_or(Value::is_null) => {}
            None => drop(metadata.remove(field)),
        }
    }
    Ok(())
}

/// Refuses an object whose name differs from the name in the path.
pub(crate) fn check_name(target: &Target, object: &Value) -> Result<(), ApiError> {
    let (name, wanted) = (object["metadata"]["name"].as_str().unwrap_or(""), target.name());
    if name == wanted {
        return Ok(());
    }
    Err(ApiError::bad_request(if name.is_empty() {
        format!("the name of the object ({wanted} based on URL) was undeterminable: name must be provided")
    } else {
        format!("the name of the object ({name}) does not match the name on the URL ({wanted})")
    }))
}

/// Increments the generation when the spec has changed, or what the strategy counts as such.
pub(in crate::apiserver) fn bump_generation(version: &Version, object: &mut Value, old: &Value) {
    let unset = match version.generation {
        Generation::Unset | Generation::Fixed => return,
        Generation::Counted => 1,
        Generation::CountedFromUnset => 0,
    };
    // Everything but metadata, and the status if it is written by itself.
    let others: &[&str] = if version.has_status() { &["metadata", "status"] } else { &["metadata"] };
    let counts = !version.spec.schema.same_except(others, object, old)
        || version.strategy.counts_metadata(&object["metadata"], &old["metadata"]);
    if counts {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(unset).saturating_add(1);
        object["metadata"]["generation"] = json!(generation);
    }
}

/// Whether a terminating object can be removed: no finalizers and no grace period are left.
pub(in crate::apiserver) fn is_finalized(version: &Version, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let graceful = metadata["deletionGracePeriodSeconds"].as_i64().is_some_and(|grace| grace > 0);
    !metadata["deletionTimestamp"].is_null()
        && metadata["finalizers"].as_array().is_none_or(Vec::is_empty)
        && !graceful
        && version.strategy.is_finalized(object)
}
