//! Strategic merge patch: objects are merged, lists with a merge key item by item, other lists replaced.

use serde_json::{Map, Value};

use super::PatchError;

/// The merge key of a list, by the name of its field and of the one that holds it. Upstream's table for the
/// built-in kinds; a list that is not here is replaced as a whole.
#[must_use]
pub fn merge_key(holder: &str, field: &str) -> Option<&'static str> {
    Some(match field {
        "containers" | "initContainers" | "ephemeralContainers" | "env" | "imagePullSecrets" | "schedulingGates"
        | "resourceClaims" => "name",
        "volumes" if holder == "spec" => "name",
        "secrets" if holder.is_empty() => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "hostAliases" | "podIPs" | "hostIPs" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        "conditions" => "type",
        "addresses" if holder == "status" => "type",
        "ownerReferences" => "uid",
        "ports" if holder == "containers" || holder == "initContainers" || holder == "ephemeralContainers" => "containerPort",
        "ports" if holder == "spec" => "port",
        _ => return None,
    })
}

/// Lists of plain values that are merged as sets.
fn is_set(holder: &str, field: &str) -> bool {
    matches!((holder, field), ("metadata", "finalizers") | ("spec", "podCIDRs"))
}

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

pub(super) fn merge(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let empty = Map::new();
    let patch = patch.as_object().unwrap_or(&empty);
    merge_objects(current.as_object().unwrap_or(&empty), patch, "")
}

fn merge_objects(current: &Map<String, Value>, patch: &Map<String, Value>, holder: &str) -> Result<Value, PatchError> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => return Ok(Value::Object(without_directives(patch))),
        Some("delete") => return Ok(Value::Object(Map::new())),
        Some("merge") | None => {}
        Some(other) => return Err(PatchError::Malformed(format!("unknown $patch directive {other:?}"))),
    }
    let mut out = current.clone();
    if let Some(keep) = patch.get(RETAIN).and_then(Value::as_array) {
        out.retain(|key, _| keep.iter().any(|k| k == key));
    }
    for (field, value) in patch {
        if let Some(list) = field.strip_prefix(DELETE_FROM) {
            if let (Some(items), Some(gone)) = (out.get_mut(list).and_then(Value::as_array_mut), value.as_array()) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if field.starts_with('$') {
            continue;
        }
        let merged = match (out.get(field), value) {
            (_, Value::Null) => {
                out.remove(field);
                continue;
            }
            (Some(Value::Object(old)), Value::Object(new)) => merge_objects(old, new, field)?,
            (None, Value::Object(new)) => merge_objects(&Map::new(), new, field)?,
            (Some(Value::Array(old)), Value::Array(new)) => merge_lists(old, new, holder, field)?,
            (None, Value::Array(new)) => merge_lists(&[], new, holder, field)?,
            (_, new) => new.clone(),
        };
        out.insert(field.clone(), merged);
    }
    for (field, order) in patch {
        if let (Some(list), Some(order)) = (field.strip_prefix(ORDER), order.as_array()) {
            if let Some(items) = out.get_mut(list).and_then(Value::as_array_mut) {
                put_in_order(items, order, merge_key(holder, list));
            }
        }
    }
    Ok(Value::Object(out))
}

fn merge_lists(old: &[Value], new: &[Value], holder: &str, field: &str) -> Result<Value, PatchError> {
    if is_set(holder, field) {
        let mut out = old.to_vec();
        out.extend(new.iter().filter(|item| !old.contains(item)).cloned());
        return Ok(Value::Array(out));
    }
    let Some(key) = merge_key(holder, field) else {
        return Ok(Value::Array(new.iter().map(clean).collect()));
    };
    if new.iter().any(|item| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace")) {
        let kept = new.iter().filter(|item| item.get(DIRECTIVE).is_none());
        return Ok(Value::Array(kept.map(clean).collect()));
    }
    let mut out = old.to_vec();
    for item in new {
        let fields = item.as_object().ok_or_else(|| PatchError::Malformed(format!("items of {field} must be objects")))?;
        let id = fields
            .get(key)
            .ok_or_else(|| PatchError::Malformed(format!("an item of {field} lacks its merge key {key:?}")))?;
        let at = out.iter().position(|o| o.get(key) == Some(id));
        let delete = fields.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
        match (at, delete) {
            (Some(at), true) => drop(out.remove(at)),
            (None, true) => {}
            (Some(at), false) => {
                let current = out[at].as_object().cloned().unwrap_or_default();
                out[at] = merge_objects(&current, fields, field)?;
            }
            (None, false) => out.push(merge_objects(&Map::new(), fields, field)?),
        }
    }
    Ok(Value::Array(out))
}

/// Items named by `order` stand in its order; others keep their place after those that they followed.
fn put_in_order(items: &mut Vec<Value>, order: &[Value], key: Option<&str>) {
    let id = |value: &Value| key.map_or_else(|| value.clone(), |key| value.get(key).cloned().unwrap_or(Value::Null));
    let wanted: Vec<Value> = order.iter().map(id).collect();
    let place = |item: &Value| wanted.iter().position(|w| *w == id(item));
    let mut last = -1i64;
    let mut keyed: Vec<(i64, usize, Value)> = Vec::with_capacity(items.len());
    for (at, item) in items.drain(..).enumerate() {
        if let Some(place) = place(&item) {
            last = i64::try_from(place).unwrap_or(i64::MAX);
        }
        keyed.push((last, at, item));
    }
    keyed.sort_by_key(|(place, at, _)| (*place, *at));
    items.extend(keyed.into_iter().map(|(_, _, item)| item));
}

fn clean(value: &Value) -> Value {
    value.as_object().map_or_else(|| value.clone(), |fields| Value::Object(without_directives(fields)))
}

fn without_directives(fields: &Map<String, Value>) -> Map<String, Value> {
    fields.iter().filter(|(k, v)| !k.starts_with('$') && !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect()
}
