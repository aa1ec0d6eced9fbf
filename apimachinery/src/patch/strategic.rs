//! Strategic merge patch: objects are merged, lists with a merge key item by item, other lists replaced.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::{PatchError, check_object, go};
use crate::{
    go_type,
    schema::{Kind, Schema},
};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of the type `schema`, which says how each list is merged.
///
/// # Errors
/// When the patch is no object or nested too deep, when a directive is unknown or does not fit its list, or an item of a list
/// lacks its merge key.
pub fn strategic(schema: &Schema, current: &Value, patch: &Value) -> Result<Value, PatchError> {
    check_object(patch)?;
    let empty = Map::new();
    merge_objects(Some(schema), current.as_object().unwrap_or(&empty), patch.as_object().unwrap_or(&empty))
}

/// What `$patch` says of an object or of an item of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Directive {
    Replace,
    Delete,
}

fn directive(fields: &Map<String, Value>) -> Result<Option<Directive>, PatchError> {
    let Some(word) = fields.get(DIRECTIVE) else { return Ok(None) };
    match word.as_str() {
        Some("replace") => Ok(Some(Directive::Replace)),
        Some("delete") => Ok(Some(Directive::Delete)),
        _ => {
            let fields = go::text(&Value::Object(fields.clone()));
            Err(PatchError::Directive(format!("unknown patch type: {} in map: {fields}", go::not_text(word))))
        }
    }
}

/// The directive of an item of a list that is merged.
fn directive_of_item(fields: &Map<String, Value>) -> Result<Option<Directive>, PatchError> {
    if fields.get(DIRECTIVE).is_some_and(|word| word == "merge") {
        return Err(PatchError::Directive("merging lists cannot yet be specified in the patch".to_owned()));
    }
    directive(fields)
}

fn lacks_key(item: &Value, key: &str) -> PatchError {
    PatchError::Directive(format!("map: {} does not contain declared merge key: {key}", go::text(item)))
}

/// Whether a key of a patch is a directive; fields such as `$ref` are not.
fn is_directive(key: &str) -> bool {
    matches!(key, DIRECTIVE | RETAIN) || key.starts_with(DELETE_FROM) || key.starts_with(ORDER)
}

fn retained(value: &Value) -> Result<&Vec<Value>, PatchError> {
    value.as_array().ok_or_else(|| PatchError::Malformed("invalid patch format of retainKeys".to_owned()))
}

/// The list that a directive is about, or holds.
fn listed(value: &Value) -> Result<&Vec<Value>, PatchError> {
    let what = || format!("expected a []interface {{}}, but received a {}", go_type(value));
    value.as_array().ok_or_else(|| PatchError::Directive(what()))
}

fn merge_objects(
    schema: Option<&Schema>,
    current: &Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Value, PatchError> {
    match directive(patch)? {
        Some(Directive::Replace) => return Ok(Value::Object(without_directives(patch))),
        Some(Directive::Delete) => return Ok(Value::Object(Map::new())),
        None => {}
    }
    let mut out = current.clone();
    if let Some(keep) = patch.get(RETAIN) {
        let keep = retained(keep)?;
        if patch.iter().any(|(k, v)| !is_directive(k) && !v.is_null() && !keep.iter().any(|kept| kept == k)) {
            return Err(PatchError::Malformed("invalid patch format of retainKeys".to_owned()));
        }
        out.retain(|key, _| keep.iter().any(|k| k == key));
    }
    for (field, value) in patch {
        if let Some(list) = field.strip_prefix(DELETE_FROM)
            && let Some(items) = out.get_mut(list).and_then(Value::as_array_mut)
        {
            let deleted = listed(value)?;
            items.retain(|item| !deleted.contains(item));
        }
        if let Some(list) = field.strip_prefix(ORDER) {
            let key = field_of(schema, list).and_then(|schema| schema.merge_key.as_deref());
            check_order(listed(value)?, out.get(list), patch.get(list), key)?;
        }
    }
    for (field, value) in patch.iter().filter(|(field, _)| !is_directive(field)) {
        let schema = field_of(schema, field);
        let merged = match (out.get(field), value) {
            (_, Value::Null) => {
                out.remove(field);
                continue;
            }
            (_, Value::Object(new)) if schema.is_some_and(|schema| schema.patch_strategy.replace) => {
                Value::Object(new.clone())
            }
            (Some(Value::Object(old)), Value::Object(new)) => merge_objects(schema, old, new)?,
            // There is nothing to direct: upstream leaves the field out, whatever the directive says.
            (None, Value::Object(new)) if has_directive(new) => continue,
            (None, Value::Object(_)) => {
                let new = without_nulls(value);
                merge_objects(schema, &Map::new(), new.as_object().unwrap_or(&Map::new()))?
            }
            (_, Value::Object(new)) => merge_objects(schema, &Map::new(), new)?,
            (Some(Value::Array(old)), Value::Array(new)) if !old.is_empty() => merge_lists(schema, old, new, field)?,
            // Without a current list there is nothing to merge with: two items with the same key, such as a port for
            // TCP and UDP, both stay.
            (_, Value::Array(new)) => Value::Array(additions(new)),
            (_, new) => new.clone(),
        };
        out.insert(field.clone(), merged);
    }
    for (field, order) in patch {
        if let Some(list) = field.strip_prefix(ORDER) {
            let order = listed(order)?;
            let before = current.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            if let Some(items) = out.get_mut(list).and_then(Value::as_array_mut) {
                let key = field_of(schema, list).and_then(|schema| schema.merge_key.as_deref());
                let set = patch.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let before = known_order(before, set, items, key);
                set_element_order(items, order, &before, key);
            }
        }
    }
    Ok(Value::Object(out))
}

/// Whether a map of a patch has a directive, known or not; null does not count.
fn has_directive(fields: &Map<String, Value>) -> bool {
    fields.get(DIRECTIVE).is_some_and(|word| !word.is_null())
}

/// A list of the patch where there is nothing to merge with, without its directives.
fn additions(new: &[Value]) -> Vec<Value> {
    new.iter().filter(|item| !item.as_object().is_some_and(has_directive)).map(clean).collect()
}

/// A list of the patch that replaces the current one: its directives are read.
fn replacements(new: &[Value]) -> Result<Value, PatchError> {
    for fields in new.iter().filter_map(Value::as_object) {
        directive_of_item(fields)?;
    }
    Ok(Value::Array(additions(new)))
}

fn merge_lists(schema: Option<&Schema>, old: &[Value], new: &[Value], field: &str) -> Result<Value, PatchError> {
    let Some(schema) = schema.filter(|schema| schema.patch_strategy.merge) else {
        // The list is replaced as it is: a directive in it is an unknown field.
        return Ok(Value::Array(new.iter().map(without_nulls).collect()));
    };
    let Some(key) = &schema.merge_key else {
        let mut out = old.to_vec();
        out.extend(new.iter().filter(|item| !old.contains(item)).cloned());
        set_element_order(&mut out, new, old, None);
        return Ok(Value::Array(out));
    };
    let key = &**key;
    if new.iter().any(|item| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace")) {
        return replacements(new);
    }
    let mut out = old.to_vec();
    let mut named = Vec::with_capacity(new.len());
    for item in new {
        let fields = item
            .as_object()
            .ok_or_else(|| PatchError::Malformed(format!("items of {field} in the patch must be objects")))?;
        let delete = directive_of_item(fields)? == Some(Directive::Delete);
        let id = fields.get(key).ok_or_else(|| lacks_key(item, key))?;
        if delete {
            out.retain(|o| o.get(key) != Some(id));
            continue;
        }
        named.push(item.clone());
        match out.iter().position(|o| o.get(key) == Some(id)) {
            Some(at) => {
                let current = out[at].as_object().cloned().unwrap_or_default();
                out[at] = merge_objects(schema.items(), &current, fields)?;
            }
            // As upstream: a new item is added as it is, and a directive in it is an unknown field.
            None => out.push(without_nulls(item)),
        }
    }
    set_element_order(&mut out, &named, old, Some(key));
    Ok(Value::Array(out))
}

/// Refuses an order that does not fit its list: the items that the patch sets must be in it in their order.
fn check_order(
    order: &[Value],
    current: Option<&Value>,
    patch: Option<&Value>,
    key: Option<&str>,
) -> Result<(), PatchError> {
    current.map(listed).transpose()?;
    let set = patch.map(listed).transpose()?;
    if let Some(key) = key.filter(|_| current.is_some() || set.is_some()) {
        for (at, item) in order.iter().enumerate() {
            let fields = item.as_object();
            let fields = fields.ok_or_else(|| PatchError::Directive(format!("value for key {at} is not a map")))?;
            fields.get(key).ok_or_else(|| lacks_key(item, key))?;
        }
    }
    let set = set.map_or(&[][..], Vec::as_slice);
    let mut order_left = order.iter();
    for item in set.iter().filter(|item| item.get(DIRECTIVE).is_none_or(|word| word != "delete")) {
        if !order_left.any(|wanted| is_same(wanted, item, key)) {
            return Err(PatchError::Directive(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                go::list(set),
                go::list(order)
            )));
        }
    }
    Ok(())
}

/// Whether two items are one: by their key, or by themselves where they have none.
fn is_same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    }
}

/// What a field holds; a union has the fields of the form that is an object.
fn field_of<'a>(schema: Option<&'a Schema>, field: &str) -> Option<&'a Schema> {
    let schema = schema?;
    match &schema.resolved().kind {
        Kind::Union(_) => schema.alternative(&Value::Object(Map::new()))?.field(field),
        _ => schema.field(field),
    }
}

/// The order that items had, by which those that an order does not name are put among the others. Upstream removes items from
/// the list itself and adds new ones behind it, so that as many new ones as were removed count as if they had been there.
fn known_order(before: &[Value], set: &[Value], items: &[Value], key: Option<&str>) -> Vec<Value> {
    let is_in = |list: &[Value], item: &Value| list.iter().any(|other| is_same(other, item, key));
    let kept = before.iter().filter(|item| key.is_none() || is_in(items, item));
    let added = set.iter().filter(|item| key.is_some() && item.get(DIRECTIVE).is_none() && !is_in(before, item));
    kept.chain(added).take(before.len()).cloned().collect()
}

/// Sorts items by `order`; items that it does not name stay before those that they preceded.
fn set_element_order(items: &mut Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) {
    let place = |list: &[Value], item: &Value| list.iter().position(|other| is_same(other, item, key));
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

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

fn without_directives(fields: &Map<String, Value>) -> Map<String, Value> {
    fields.iter().filter(|(k, v)| !is_directive(k) && !v.is_null()).map(|(k, v)| (k.clone(), clean(v))).collect()
}
