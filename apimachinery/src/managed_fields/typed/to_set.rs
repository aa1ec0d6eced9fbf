//! The fields of an object.

use serde_json::Value;

use super::atom::{ListAtom, MapAtom, Type};
use crate::managed_fields::{path::PathElement, set::FieldSet};

impl Type<'_> {
    /// The set of all leaves and items of a value: what an applier of it owns.
    #[must_use]
    pub fn to_set(self, value: &Value) -> FieldSet {
        walk(self, value).0
    }
}

/// The fields in a value, and whether the value itself is one.
fn walk(ty: Type<'_>, value: &Value) -> (FieldSet, bool) {
    let atom = ty.atom(value);
    if let Some(map) = &atom.map {
        return if map.atomic { (FieldSet::default(), true) } else { (fields_of(map, value), false) };
    }
    match &atom.list {
        Some(list) if atom.scalar.is_none() => {
            if list.is_atomic() {
                (FieldSet::default(), true)
            } else {
                (items_of(list, value), false)
            }
        }
        _ => (FieldSet::default(), true),
    }
}

fn fields_of(map: &MapAtom<'_>, value: &Value) -> FieldSet {
    let mut out = FieldSet::default();
    for (name, field) in value.as_object().into_iter().flatten() {
        let Some(ty) = map.entry(name) else { continue };
        let element = PathElement::Field(name.clone());
        let (set, is_leaf) = walk(ty, field);
        let is_empty = field.is_null() || field.as_object().is_some_and(serde_json::Map::is_empty);
        // The entries of a map are its members; a struct declares its fields by type.
        if is_leaf || is_empty || map.field(name).is_none() {
            out.insert_member(element.clone());
        }
        out.insert_child(element, set);
    }
    out
}

fn items_of(list: &ListAtom<'_>, value: &Value) -> FieldSet {
    let mut out = FieldSet::default();
    let mut items: Vec<(PathElement, &Value)> = Vec::new();
    for item in value.as_array().into_iter().flatten() {
        items.extend(list.element(item).ok().map(|element| (element, item)));
    }
    items.sort_by(|a, b| a.0.cmp(&b.0));
    for same in items.chunk_by(|a, b| a.0 == b.0) {
        let (element, item) = &same[0];
        // Items that share a key are owned together, as one.
        if same.len() == 1 {
            out.insert_child(element.clone(), walk(list.item, item).0);
        }
        out.insert_member(element.clone());
    }
    out
}
