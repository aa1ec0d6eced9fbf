//! Server-side apply without field ownership: the configuration is merged into the object, lists by their keys.
//!
//! Fields that the configuration leaves out stay, since ownership is not recorded.

use serde_json::{Map, Value};

use super::{
    PatchError,
    keys::{alternatives, is_atomic_map, is_set, key_default, list_keys, retains_keys},
};

pub(super) fn merge(current: &Value, applied: &Value) -> Result<Value, PatchError> {
    let empty = Map::new();
    merge_objects(current.as_object().unwrap_or(&empty), applied.as_object().unwrap_or(&empty), "")
}

fn merge_objects(
    current: &Map<String, Value>,
    applied: &Map<String, Value>,
    parent: &str,
) -> Result<Value, PatchError> {
    let mut out = current.clone();
    let rivals = alternatives(parent);
    if rivals.iter().any(|r| applied.get(*r).is_some_and(|v| !v.is_null())) {
        out.retain(|key, _| !rivals.contains(&key.as_str()) || applied.contains_key(key));
    }
    for (field, value) in applied {
        let merged = match (out.get(field), value) {
            (_, Value::Null) => continue,
            (Some(Value::Object(old)), Value::Object(new)) if !is_atomic_map(field) => merge_objects(old, new, field)?,
            (Some(Value::Array(old)), Value::Array(new)) => Value::Array(merge_lists(old, new, parent, field)?),
            (_, new) => new.clone(),
        };
        out.insert(field.clone(), merged);
    }
    Ok(Value::Object(out))
}

fn merge_lists(old: &[Value], new: &[Value], parent: &str, field: &str) -> Result<Vec<Value>, PatchError> {
    if is_set(parent, field) {
        let mut out = old.to_vec();
        out.extend(new.iter().filter(|item| !old.contains(item)).cloned());
        return Ok(out);
    }
    let keys = list_keys(parent, field);
    if keys.is_empty() {
        return Ok(new.to_vec());
    }
    let mut out = old.to_vec();
    for item in new {
        let fields =
            item.as_object().ok_or_else(|| PatchError::Malformed(format!("items of {field} must be objects")))?;
        if let Some(key) = keys.iter().find(|key| fields.get(**key).is_none() && key_default(key).is_none()) {
            return Err(PatchError::Malformed(format!(
                "an item of {field} lacks its key {key:?}, by which it is found in the object"
            )));
        }
        let found = out.iter().position(|other| keys.iter().all(|key| id(other, key) == id(item, key)));
        match found {
            Some(at) if retains_keys(field) => out[at] = item.clone(),
            Some(at) => {
                let current = out[at].as_object().cloned().unwrap_or_default();
                out[at] = merge_objects(&current, fields, field)?;
            }
            None => out.push(item.clone()),
        }
    }
    Ok(out)
}

fn id(item: &Value, key: &str) -> Value {
    item.get(key).cloned().or_else(|| key_default(key).map(Value::from)).unwrap_or_default()
}
