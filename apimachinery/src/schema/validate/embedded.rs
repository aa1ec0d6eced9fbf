//! Embedded objects: each has a well-formed `apiVersion`, `kind` and `metadata`.

use serde_json::Value;

use super::lists;
use crate::{
    MAX_DEPTH,
    field::{Errors, FieldError, Path},
    names,
    schema::{Kind, Schema},
};

/// Checks all embedded objects inside of `value`; of the object itself (`root`) the API takes care.
pub(super) fn check(schema: &Schema, value: &Value, path: &mut Path, root: bool, errors: &mut Vec<FieldError>) {
    walk(schema, value, path, root, errors, 0);
}

fn walk(schema: &Schema, value: &Value, path: &mut Path, root: bool, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH || matches!(schema.kind, Kind::Named(_)) {
        return;
    }
    match value {
        Value::Object(fields) => {
            if schema.embedded_resource && !root {
                errors.extend(check_one(value, path).0);
            }
            for (key, value) in fields {
                let of = schema;
                if let Some(schema) = schema.field(key) {
                    let before = lists::enter(of, key, path);
                    walk(schema, value, path, false, errors, depth + 1);
                    path.leave(before);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.items() else { return };
            for (at, value) in items.iter().enumerate() {
                let before = path.enter_item(at);
                walk(schema, value, path, false, errors, depth + 1);
                path.leave(before);
            }
        }
        _ => {}
    }
}

pub(super) fn check_one(value: &Value, path: &Path) -> Errors {
    let mut errors = Errors::default();
    let of = match &value["metadata"] {
        Value::Null | Value::Object(_) => None,
        Value::Bool(_) => Some("bool"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("string"),
        Value::Array(_) => Some("array"),
    };
    if let Some(of) = of {
        let why = format!("json: cannot unmarshal {of} into Go value of type v1.ObjectMeta");
        errors.invalid(path.field("metadata"), &value["metadata"], &why);
        return errors;
    }
    for field in ["apiVersion", "kind"] {
        if !value[field].is_null() && !value[field].is_string() {
            errors.invalid(path.field(field), &value[field], "must be a string");
            return errors;
        }
    }
    match value["apiVersion"].as_str() {
        None => errors.required(path.field("apiVersion"), ""),
        Some("") => errors.invalid_text(path.field("apiVersion"), "", "must not be empty"),
        Some(text) if text.matches('/').count() > 1 => {
            let why = format!("unexpected GroupVersion string: {text}");
            errors.invalid_text(path.field("apiVersion"), text, &why);
        }
        Some(_) => {}
    }
    match value["kind"].as_str() {
        None => errors.required(path.field("kind"), ""),
        Some("") => errors.invalid_text(path.field("kind"), "", "must not be empty"),
        Some(kind) => {
            if let Some(why) = names::dns1035_label(&kind.to_lowercase()) {
                let why = format!("may have mixed case, but should otherwise match: {why}");
                errors.invalid_text(path.field("kind"), kind, &why);
            }
        }
    }
    check_metadata(&value["metadata"], &path.field("metadata"), &mut errors);
    errors
}

/// Upstream's limit on all annotations of an object.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

fn check_metadata(metadata: &Value, path: &str, errors: &mut Errors) {
    let field = |name: &str| format!("{path}.{name}");
    let text = |name: &str| metadata[name].as_str().unwrap_or_default();
    for c in ['/', '%'].into_iter().filter(|c| text("generateName").contains(*c)) {
        errors.invalid_text(field("generateName"), text("generateName"), &format!("may not contain '{c}'"));
    }
    errors.unless(field("name"), text("name"), names::path_segment(text("name")));
    if !text("namespace").is_empty() {
        errors.unless(field("namespace"), text("namespace"), names::label(text("namespace")));
    }
    errors.at_least_0(field("generation"), &metadata["generation"]);
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        errors.unless(field("labels"), key, names::qualified(key));
        let value = value.as_str().unwrap_or_default();
        errors.unless(field("labels"), value, names::label_value(value));
    }
    let mut bytes = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        bytes += key.len() + value.as_str().map_or(0, str::len);
        errors.unless(field("annotations"), key, names::qualified(&key.to_lowercase()));
    }
    if bytes > MAX_ANNOTATIONS_BYTES {
        errors.too_long(field("annotations"), MAX_ANNOTATIONS_BYTES);
    }
    let finalizers = metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in finalizers.clone() {
        names::qualified_problems(name).iter().for_each(|why| errors.invalid_text(field("finalizers"), name, why));
    }
    if ["orphan", "foregroundDeletion"].iter().all(|name| finalizers.clone().any(|found| found == *name)) {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(field("finalizers"), &metadata["finalizers"], why);
    }
}
