//! Removing fields from an object, and taking out only some.

use serde_json::{Map, Value};

use super::atom::{ListAtom, MapAtom, Type};
use crate::managed_fields::{path::PathElement, set::FieldSet};

impl Type<'_> {
    /// The value without the fields and items of a set. What becomes empty by it is null. Atomic lists and maps lose all
    /// when something in them is removed.
    #[must_use]
    pub fn remove(self, value: &Value, fields: &FieldSet) -> Value {
        let atom = self.atom(value);
        match (value, &atom.map, &atom.list) {
            (Value::Object(_), Some(map), _) if map.atomic => Value::Null,
            (Value::Object(entries), Some(map), _) => remove_fields(map, entries, fields),
            (Value::Array(_), _, Some(list)) if list.is_atomic() => Value::Null,
            (Value::Array(items), _, Some(list)) => remove_items(list, items, fields),
            (Value::Object(_) | Value::Array(_), ..) => Value::Null,
            (scalar, ..) => scalar.clone(),
        }
    }

    /// Only the fields and items of a set, with what they are in and the keys of list items.
    #[must_use]
    pub fn extract(self, value: &Value, fields: &FieldSet) -> Value {
        let atom = self.atom(value);
        match (value, &atom.map, &atom.list) {
            (Value::Object(entries), Some(map), _) if !map.atomic => extract_fields(map, entries, fields),
            (Value::Array(items), _, Some(list)) if !list.is_atomic() => extract_items(list, items, fields),
            (whole, ..) => whole.clone(),
        }
    }
}

fn remove_fields(map: &MapAtom<'_>, entries: &Map<String, Value>, fields: &FieldSet) -> Value {
    let mut out = Map::new();
    for (name, value) in entries {
        let element = PathElement::Field(name.clone());
        if fields.has_member(&element) {
            continue;
        }
        let value = match (fields.child(&element), map.entry(name)) {
            (Some(inside), Some(ty)) if !inside.is_empty() => ty.remove(value, inside),
            _ => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    if out.is_empty() { Value::Null } else { Value::Object(out) }
}

fn remove_items(list: &ListAtom<'_>, items: &[Value], fields: &FieldSet) -> Value {
    let mut out = Vec::new();
    for item in items {
        let Ok(element) = list.element(item) else {
            out.push(item.clone());
            continue;
        };
        if fields.has_member(&element) {
            continue;
        }
        out.push(match fields.child(&element) {
            Some(inside) if !inside.is_empty() => list.item.remove(item, inside),
            _ => item.clone(),
        });
    }
    if out.is_empty() { Value::Null } else { Value::Array(out) }
}

fn extract_fields(map: &MapAtom<'_>, entries: &Map<String, Value>, fields: &FieldSet) -> Value {
    let mut out = Map::new();
    for (name, value) in entries {
        let element = PathElement::Field(name.clone());
        match (fields.child(&element), map.entry(name)) {
            (Some(inside), Some(ty)) if !inside.is_empty() => drop(out.insert(name.clone(), ty.extract(value, inside))),
            _ if fields.has_member(&element) => drop(out.insert(name.clone(), value.clone())),
            _ => {}
        }
    }
    if out.is_empty() { Value::Null } else { Value::Object(out) }
}

fn extract_items(list: &ListAtom<'_>, items: &[Value], fields: &FieldSet) -> Value {
    let mut out = Vec::new();
    for item in items {
        let Ok(element) = list.element(item) else { continue };
        match fields.child(&element) {
            Some(inside) if !inside.is_empty() => {
                let mut extracted = list.item.extract(item, inside);
                if let (PathElement::Key(key), Value::Object(fields)) = (&element, &mut extracted) {
                    for (name, value) in key.iter().filter(|(name, _)| item.get(name).is_some()) {
                        fields.insert(name.clone(), value.clone());
                    }
                }
                out.push(extracted);
            }
            _ if fields.has_member(&element) => out.push(item.clone()),
            _ => {}
        }
    }
    if out.is_empty() { Value::Null } else { Value::Array(out) }
}
