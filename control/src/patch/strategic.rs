//! Strategic merge patch: objects are merged, lists with a merge key item by item, other lists replaced.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::{
    PatchError,
    keys::{is_set, merge_key},
};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

pub(super) fn merge(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let empty = Map::new();
    let patch = patch.as_object().unwrap_or(&empty);
    merge_objects(current.as_object().unwrap_or(&empty), patch, "")
}

fn directive(fields: &Map<String, Value>) -> Result<Option<&str>, PatchError> {
    match fields.get(DIRECTIVE) {
        None => Ok(None),
        Some(Value::String(word)) if matches!(word.as_str(), "merge" | "replace" | "delete") => Ok(Some(word)),
        Some(other) => Err(PatchError::Malformed(format!(
            "unknown patch type {other} in the $patch directive: use merge, replace or delete"
        ))),
    }
}

fn listed<'a>(field: &str, value: &'a Value) -> Result<&'a Vec<Value>, PatchError> {
    value.as_array().ok_or_else(|| PatchError::Malformed(format!("{field} in the patch must be a list")))
}

fn merge_objects(current: &Map<String, Value>, patch: &Map<String, Value>, parent: &str) -> Result<Value, PatchError> {
    match directive(patch)? {
        Some("replace") => return Ok(Value::Object(without_directives(patch))),
        Some("delete") => return Ok(Value::Object(Map::new())),
        _ => {}
    }
    let mut out = current.clone();
    if let Some(keep) = patch.get(RETAIN) {
        let keep = listed(RETAIN, keep)?;
        if let Some(extra) =
            patch.iter().find(|(k, v)| !k.starts_with('$') && !v.is_null() && !keep.iter().any(|kept| kept == *k))
        {
            return Err(PatchError::Malformed(format!(
                "{RETAIN} in the patch must name {:?}, which the patch sets",
                extra.0
            )));
        }
        out.retain(|key, _| keep.iter().any(|k| k == key));
    }
    for (field, value) in patch {
        if let Some(list) = field.strip_prefix(DELETE_FROM) {
            let deleted = listed(field, value)?;
            if let Some(items) = out.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|item| !deleted.contains(item));
            }
        }
    }
    for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with('$')) {
        let merged = match (out.get(field), value) {
            (_, Value::Null) => {
                out.remove(field);
                continue;
            }
            (Some(Value::Object(old)), Value::Object(new)) => merge_objects(old, new, field)?,
            (_, Value::Object(new)) => merge_objects(&Map::new(), new, field)?,
            (Some(Value::Array(old)), Value::Array(new)) if !old.is_empty() => merge_lists(old, new, parent, field)?,
            // Without a current list there is nothing to merge with: two items with the same key, such as a port for
            // TCP and UDP, both stay.
            (_, Value::Array(new)) => Value::Array(additions(new)?),
            (_, new) => new.clone(),
        };
        out.insert(field.clone(), merged);
    }
    for (field, order) in patch {
        if let Some(list) = field.strip_prefix(ORDER) {
            let order = listed(field, order)?;
            let before = current.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            if let Some(items) = out.get_mut(list).and_then(Value::as_array_mut) {
                set_element_order(items, order, before, merge_key(parent, list));
            }
        }
    }
    Ok(Value::Object(out))
}

/// A list of the patch without a current list, without its directives.
fn additions(new: &[Value]) -> Result<Vec<Value>, PatchError> {
    let mut out = Vec::with_capacity(new.len());
    for item in new {
        match item.as_object() {
            Some(fields) if directive(fields)?.is_some() => {}
            _ => out.push(clean(item)),
        }
    }
    Ok(out)
}

fn merge_lists(old: &[Value], new: &[Value], parent: &str, field: &str) -> Result<Value, PatchError> {
    if is_set(parent, field) {
        let mut out = old.to_vec();
        out.extend(new.iter().filter(|item| !old.contains(item)).cloned());
        set_element_order(&mut out, new, old, None);
        return Ok(Value::Array(out));
    }
    let Some(key) = merge_key(parent, field) else {
        return additions(new).map(Value::Array);
    };
    if new.iter().any(|item| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace")) {
        return additions(new).map(Value::Array);
    }
    let mut out = old.to_vec();
    let mut named = Vec::with_capacity(new.len());
    for item in new {
        let fields = item
            .as_object()
            .ok_or_else(|| PatchError::Malformed(format!("items of {field} in the patch must be objects")))?;
        let delete = directive(fields)? == Some("delete");
        let id = fields.get(key).ok_or_else(|| {
            PatchError::Malformed(format!(
                "an item of {field} in the patch lacks its merge key {key:?}, by which it is found in the object"
            ))
        })?;
        if delete {
            out.retain(|o| o.get(key) != Some(id));
            continue;
        }
        named.push(item.clone());
        match out.iter().position(|o| o.get(key) == Some(id)) {
            Some(at) => {
                let current = out[at].as_object().cloned().unwrap_or_default();
                out[at] = merge_objects(&current, fields, field)?;
            }
            None => out.push(merge_objects(&Map::new(), fields, field)?),
        }
    }
    set_element_order(&mut out, &named, old, Some(key));
    Ok(Value::Array(out))
}

/// Sorts items by `order`; items that it does not name stay before those that they preceded.
fn set_element_order(items: &mut Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) {
    let same = |a: &Value, b: &Value| match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    };
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same(other, item));
    let (mut ordered, others): (Vec<Value>, Vec<Value>) =
        items.drain(..).partition(|item| place(order, item).is_some());
    ordered.sort_by_key(|item| place(order, item));
    let stood_before = |a: &Value, b: &Value| match (place(before, a), place(before, b)) {
        (Some(a), Some(b)) => a.cmp(&b) == Ordering::Less,
        _ => false,
    };
    let mut ordered = ordered.into_iter().peekable();
    for other in others {
        while let Some(next) = ordered.next_if(|next| !stood_before(&other, next)) {
            items.push(next);
        }
        items.push(other);
    }
    items.extend(ordered);
}

fn clean(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(without_directives(fields)),
        Value::Array(items) => Value::Array(items.iter().map(clean).collect()),
        other => other.clone(),
    }
}

fn without_directives(fields: &Map<String, Value>) -> Map<String, Value> {
    fields.iter().filter(|(k, v)| !k.starts_with('$') && !v.is_null()).map(|(k, v)| (k.clone(), clean(v))).collect()
}
