//! Three-way merge of the last applied, desired and live object into a JSON merge patch. Pure.

use serde_json::{Map, Value};

/// Candidate merge keys of lists of objects, in order of preference.
const KEYS: [&str; 7] = ["name", "containerPort", "port", "mountPath", "devicePath", "ip", "type"];

/// The merge patch (RFC 7386) that sets the fields of `desired` and removes those that only `last` has. Empty when
/// nothing changes.
pub(crate) fn patch(last: &Value, desired: &Value, live: &Value) -> Map<String, Value> {
    let empty = Map::new();
    objects(
        last.as_object().unwrap_or(&empty),
        desired.as_object().unwrap_or(&empty),
        live.as_object().unwrap_or(&empty),
    )
}

fn objects(last: &Map<String, Value>, desired: &Map<String, Value>, live: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, want) in desired {
        let (before, have) = (last.get(key).unwrap_or(&Value::Null), live.get(key).unwrap_or(&Value::Null));
        match (want, have) {
            // Null in a file means absent.
            (Value::Null, Value::Null) => {}
            (Value::Null, _) => drop(patch.insert(key.clone(), Value::Null)),
            (Value::Object(want), Value::Object(have)) => {
                let empty = Map::new();
                let inner = objects(before.as_object().unwrap_or(&empty), want, have);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (Value::Array(want), Value::Array(have)) => {
                let merged = lists(before.as_array().map_or(&[], Vec::as_slice), want, have);
                if merged != *have {
                    patch.insert(key.clone(), Value::Array(merged));
                }
            }
            _ if want != have => drop(patch.insert(key.clone(), want.clone())),
            _ => {}
        }
    }
    for key in last.keys() {
        if !desired.contains_key(key) && live.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch
}

/// Lists of objects with a merge key are merged by it, so that fields set by the server stay; other lists are replaced.
fn lists(last: &[Value], desired: &[Value], live: &[Value]) -> Vec<Value> {
    let Some(key) = KEYS.iter().find(|key| is_key(key, desired) && is_key(key, live)) else {
        return desired.to_vec();
    };
    let find = |list: &[Value], element: &Value| list.iter().find(|e| e.get(key) == element.get(key)).cloned();
    let mut merged: Vec<Value> = desired
        .iter()
        .map(|want| match find(live, want) {
            Some(mut have) => {
                let inner = patch(&find(last, want).unwrap_or(Value::Null), want, &have);
                apply(&mut have, &inner);
                have
            }
            None => want.clone(),
        })
        .collect();
    // Items added by other clients stay.
    let others = live.iter().filter(|e| find(desired, e).is_none() && find(last, e).is_none());
    merged.extend(others.cloned());
    merged
}

/// Whether every element is an object with this field, with unique values.
fn is_key(key: &str, list: &[Value]) -> bool {
    let mut seen: Vec<&Value> = Vec::new();
    list.iter().all(|element| match element.get(key) {
        Some(value) if !value.is_null() && !seen.contains(&value) => {
            seen.push(value);
            true
        }
        _ => false,
    })
}

fn apply(target: &mut Value, patch: &Map<String, Value>) {
    let Some(target) = target.as_object_mut() else { return };
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(key)),
            Value::Object(inner) if target.get(key).is_some_and(Value::is_object) => {
                if let Some(below) = target.get_mut(key) {
                    apply(below, inner);
                }
            }
            _ => drop(target.insert(key.clone(), value.clone())),
        }
    }
}
