//! Sets and maps among lists: no item stands twice.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use crate::{
    MAX_DEPTH,
    field::{Cause, FieldError, Path, quoted},
    schema::{Kind, ListType, Schema},
};

/// Whether no set and no map of the object has an item twice.
pub(super) fn are_unique(schema: &Schema, value: &Value) -> bool {
    let mut errors = Vec::new();
    check(schema, value, &mut Path::default(), &mut errors, 0);
    errors.is_empty()
}

/// Adds an error for each value that stands more than once, where it stands the second time.
pub(super) fn check(schema: &Schema, value: &Value, path: &mut Path, errors: &mut Vec<FieldError>, depth: usize) {
    // Metadata is one of Go's types, with validation of its own.
    if depth > MAX_DEPTH || matches!(schema.kind, Kind::Named(_)) {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let of = schema;
                if let Some(schema) = schema.field(key) {
                    let before = enter(of, key, path);
                    check(schema, value, path, errors, depth + 1);
                    path.leave(before);
                }
            }
        }
        Value::Array(items) => {
            let identities: Option<Vec<Value>> = match &schema.list_type {
                Some(ListType::Set) => Some(items.clone()),
                Some(ListType::Map(_)) => Some(items.iter().map(|item| keys(schema, item)).collect()),
                _ => None,
            };
            let is_other = |item: &Value| !item.is_object() && !item.is_null();
            let is_map = matches!(schema.list_type, Some(ListType::Map(_)));
            let other = items.iter().position(is_other).filter(|_| is_map);
            if let Some(at) = other {
                let before = path.enter_item(at);
                let detail =
                    format!("Invalid value: {}: must be an object for an array of list-type map", quoted(&items[at]));
                errors.push(FieldError { field: path.to_string(), cause: Cause::Invalid, detail });
                path.leave(before);
            }
            let identities = identities.filter(|_| other.is_none());
            for (at, identity) in repeated(&identities.unwrap_or_default()) {
                let before = path.enter_item(at);
                let detail = format!("Duplicate value: {}", quoted(identity));
                errors.push(FieldError { field: path.to_string(), cause: Cause::Duplicate, detail });
                path.leave(before);
            }
            if let Some(schema) = schema.items() {
                for (at, value) in items.iter().enumerate() {
                    let before = path.enter_item(at);
                    check(schema, value, path, errors, depth + 1);
                    path.leave(before);
                }
            }
        }
        _ => {}
    }
}

/// Goes into a field; here upstream writes keys of maps in brackets.
pub(super) fn enter(schema: &Schema, key: &str, path: &mut Path) -> usize {
    let is_field = schema.object().is_some_and(|object| object.properties.contains_key(key));
    if is_field { path.enter_field(key) } else { path.enter_key(key) }
}

/// Where each value stands the second time.
fn repeated(values: &[Value]) -> Vec<(usize, &Value)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut told = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let count = counts.entry(value.to_string()).or_default();
        *count += 1;
        if *count == 2 {
            told.push((at, value));
        }
    }
    told
}

/// The keys of an item of a map, those that it has.
fn keys(schema: &Schema, item: &Value) -> Value {
    let names: HashSet<&str> = schema.list_map_keys().iter().map(|name| &**name).collect();
    let fields = item.as_object().into_iter().flatten().filter(|(name, _)| names.contains(name.as_str()));
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<String, Value>>())
}

/// What two items have in common that are the same one in a map.
pub(super) fn identity(schema: &Schema, item: &Value) -> String {
    keys(schema, item).to_string()
}
