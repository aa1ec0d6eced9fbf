//! Server-side apply without field ownership: the configuration is merged into the object, lists by their keys.
//!
//! Fields that the configuration leaves out stay, since ownership is not recorded.

use serde_json::{Map, Value};

use windlass_apimachinery::schema::{ListType, Schema};

use super::PatchError;

pub(super) fn merge(schema: &Schema, current: &Value, applied: &Value) -> Result<Value, PatchError> {
    let Some(applied) = applied.as_object() else {
        return Err(PatchError::Malformed("the patch must be a JSON object".to_owned()));
    };
    merge_objects(Some(schema), current.as_object().unwrap_or(&Map::new()), applied)
}

/// Mutually exclusive fields of a type: setting one removes the others.
fn alternatives(schema: Option<&Schema>) -> &'static [&'static str] {
    match schema.and_then(Schema::type_name) {
        Some("core/v1.EnvVar") => &["value", "valueFrom"],
        Some("core/v1.Probe") => &["exec", "grpc", "httpGet", "tcpSocket"],
        Some("core/v1.LifecycleHandler") => &["exec", "httpGet", "sleep", "tcpSocket"],
        _ => &[],
    }
}

fn merge_objects(
    schema: Option<&Schema>,
    current: &Map<String, Value>,
    applied: &Map<String, Value>,
) -> Result<Value, PatchError> {
    let mut out = current.clone();
    let rivals = alternatives(schema);
    if rivals.iter().any(|r| applied.get(*r).is_some_and(|v| !v.is_null())) {
        out.retain(|key, _| !rivals.contains(&key.as_str()) || applied.contains_key(key));
    }
    for (field, value) in applied {
        let inner = schema.and_then(|schema| schema.field(field));
        let is_atomic = inner.is_some_and(Schema::is_atomic);
        let merged = match (out.get(field), value) {
            (_, Value::Null) => continue,
            (Some(Value::Object(old)), Value::Object(new)) if !is_atomic => merge_objects(inner, old, new)?,
            (Some(Value::Array(old)), Value::Array(new)) => Value::Array(merge_lists(inner, old, new, field)?),
            (_, new) => new.clone(),
        };
        out.insert(field.clone(), merged);
    }
    Ok(Value::Object(out))
}

fn merge_lists(schema: Option<&Schema>, old: &[Value], new: &[Value], field: &str) -> Result<Vec<Value>, PatchError> {
    let Some((schema, list_type)) = schema.and_then(|schema| Some((schema, schema.list_type.as_ref()?))) else {
        return Ok(new.to_vec());
    };
    let keys = match list_type {
        ListType::Atomic => return Ok(new.to_vec()),
        ListType::Set => {
            let mut out = old.to_vec();
            out.extend(new.iter().filter(|item| !old.contains(item)).cloned());
            return Ok(out);
        }
        ListType::Map(keys) => keys,
    };
    let default = |key: &str| schema.items().and_then(|item| item.field(key)?.default.as_deref());
    let id = |item: &Value, key: &str| item.get(key).or_else(|| default(key)).cloned().unwrap_or_default();
    let mut out = old.to_vec();
    for item in new {
        let fields =
            item.as_object().ok_or_else(|| PatchError::Malformed(format!("items of {field} must be objects")))?;
        if let Some(key) = keys.iter().find(|key| fields.get(&***key).is_none() && default(key).is_none()) {
            return Err(PatchError::Malformed(format!(
                "an item of {field} lacks its key {key:?}, by which it is found in the object"
            )));
        }
        let found = out.iter().position(|other| keys.iter().all(|key| id(other, key) == id(item, key)));
        match found {
            Some(at) if schema.patch_strategy.retain_keys => out[at] = item.clone(),
            Some(at) => {
                let current = out[at].as_object().cloned().unwrap_or_default();
                out[at] = merge_objects(schema.items(), &current, fields)?;
            }
            None => out.push(item.clone()),
        }
    }
    Ok(out)
}
