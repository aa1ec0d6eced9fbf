//! What differs between two objects of one type.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::atom::{ListAtom, MapAtom, Type};
use crate::managed_fields::{path::PathElement, set::FieldSet, value::equal};

/// The fields that differ between two objects. No field is in more than one of the sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that only the old object has.
    pub removed: FieldSet,
    /// Fields that both have, with different values.
    pub modified: FieldSet,
    /// Fields that only the new object has.
    pub added: FieldSet,
}

impl Comparison {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Fields whose value is the new object's alone.
    #[must_use]
    pub fn changed(&self) -> FieldSet {
        self.modified.union(&self.added)
    }

    /// The same, of a comparison that is not needed any more.
    #[must_use]
    pub fn into_changed(self) -> FieldSet {
        if self.modified.is_empty() { self.added } else { self.changed() }
    }

    /// Each of the sets through a function.
    #[must_use]
    pub fn map(&self, each: impl Fn(&FieldSet) -> FieldSet) -> Self {
        Self { removed: each(&self.removed), modified: each(&self.modified), added: each(&self.added) }
    }

    fn insert(&mut self, element: &PathElement, inside: Self, itself: Change) {
        match itself {
            Change::None => {}
            Change::Removed => self.removed.insert_member(element.clone()),
            Change::Modified => self.modified.insert_member(element.clone()),
            Change::Added => self.added.insert_member(element.clone()),
        }
        for (set, inside) in [
            (&mut self.removed, inside.removed),
            (&mut self.modified, inside.modified),
            (&mut self.added, inside.added),
        ] {
            set.insert_child(element.clone(), inside);
        }
    }
}

/// What happened to the value itself, whatever happened in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Removed,
    Modified,
    Added,
}

impl Type<'_> {
    /// Compares two values that fit this type.
    #[must_use]
    pub fn compare(self, old: &Value, new: &Value) -> Comparison {
        compare(self, Some(old), Some(new)).0
    }
}

fn compare(ty: Type<'_>, old: Option<&Value>, new: Option<&Value>) -> (Comparison, Change) {
    let mut out = Comparison::default();
    // Most of an object does not change.
    if let (Some(old), Some(new)) = (old, new)
        && old == new
    {
        return (out, Change::None);
    }
    let mut change = match (old, new) {
        (None, _) => Change::Added,
        (_, None) => Change::Removed,
        _ => Change::None,
    };
    // A value that changes its kind is compared as both.
    let kinds = match (old, new) {
        (Some(old), Some(new)) if !ty.atom(old).is_like(&ty.atom(new)) => vec![old, new],
        (_, Some(one)) | (Some(one), None) => vec![one],
        (None, None) => return (out, Change::None),
    };
    for one in kinds {
        let atom = ty.atom(one);
        let inside = if let Some(map) = &atom.map {
            compare_maps(map, old, new, &mut out)
        } else if let Some(list) = atom.list.as_ref().filter(|_| atom.scalar.is_none()) {
            compare_lists(list, old, new, &mut out)
        } else {
            false
        };
        if let (false, Some(old), Some(new)) = (inside, old, new)
            && !equal(old, new)
        {
            change = Change::Modified;
        }
    }
    (out, change)
}

/// Whether the maps were compared field by field.
fn compare_maps(map: &MapAtom<'_>, old: Option<&Value>, new: Option<&Value>, out: &mut Comparison) -> bool {
    let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
    // Stored objects may leave out what Go writes though it is empty. Where there is a struct, there are such fields of it.
    let zeros: Vec<(&str, Value)> = if map.atomic { Vec::new() } else { map.always().collect() };
    let is_empty =
        |fields: Option<&Map<String, Value>>| fields.is_none_or(|fields| fields.is_empty() && zeros.is_empty());
    // Both empty: a leaf, so that null and empty differ.
    if map.atomic || (is_empty(old) && is_empty(new)) {
        return false;
    }
    let of_zeros = zeros.iter().map(|(name, _)| *name);
    let names = old.into_iter().chain(new).flat_map(Map::keys).map(String::as_str).chain(of_zeros);
    for name in names.collect::<BTreeSet<_>>() {
        let Some(ty) = map.entry(name) else { continue };
        let zero = || zeros.iter().find(|(zero, _)| *zero == name).map(|(_, value)| value);
        let [old, new] = [old, new].map(|fields| fields.and_then(|fields| fields.get(name).or_else(zero)));
        let (inside, itself) = compare(ty, old, new);
        out.insert(&PathElement::Field(name.to_owned()), inside, itself);
    }
    true
}

/// Whether the lists were compared item by item.
fn compare_lists(list: &ListAtom<'_>, old: Option<&Value>, new: Option<&Value>, out: &mut Comparison) -> bool {
    let is_empty = |list: Option<&Value>| list.and_then(Value::as_array).is_none_or(Vec::is_empty);
    if list.is_atomic() || (is_empty(old) && is_empty(new)) {
        return false;
    }
    let mut elements: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for item in old.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = list.element(item) {
            elements.entry(element).or_default().0.push(item);
        }
    }
    for item in new.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = list.element(item) {
            elements.entry(element).or_default().1.push(item);
        }
    }
    for (element, (old, new)) in &elements {
        compare_items(list, element, old, new, out);
    }
    true
}

/// Items that share a key are one leaf.
fn compare_items(list: &ListAtom<'_>, element: &PathElement, old: &[&Value], new: &[&Value], out: &mut Comparison) {
    let mut item = |old: Option<&Value>, new: Option<&Value>| {
        let (inside, itself) = compare(list.item, old, new);
        out.insert(element, inside, itself);
    };
    match (old, new) {
        ([] | [_], [] | [_]) => item(old.first().copied(), new.first().copied()),
        ([_, _, ..], [_, _, ..]) => {
            if old.len() != new.len() || !old.iter().zip(new).all(|(old, new)| equal(old, new)) {
                out.modified.insert_member(element.clone());
            }
        }
        (_, [] | [_]) => {
            if let Some(new) = new.first() {
                item(None, Some(new));
            }
            out.removed.insert_member(element.clone());
        }
        _ => {
            if let Some(old) = old.first() {
                item(Some(old), None);
            }
            out.added.insert_member(element.clone());
        }
    }
}
