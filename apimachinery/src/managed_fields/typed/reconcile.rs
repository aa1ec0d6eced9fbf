//! Sets that were recorded under another schema, and sets with the fields that structs have by their type.

use serde_json::{Map, Value};

use super::atom::Type;
use crate::{
    MAX_DEPTH,
    managed_fields::{path::PathElement, set::FieldSet},
};

impl Type<'_> {
    /// The set, extended by each declared field that contains one of its paths: `to_set` leaves these out, since their
    /// struct declares them, but they are removed and kept together with their contents.
    #[must_use]
    pub fn with_named_fields(self, set: &FieldSet) -> FieldSet {
        let map = self.atom(&Value::Null).map;
        let mut out = FieldSet { members: set.members.clone(), children: Vec::new() };
        for (element, inside) in &set.children {
            if let PathElement::Field(name) = element
                && map.as_ref().is_some_and(|map| map.field(name).is_some())
            {
                out.insert_member(element.clone());
            }
            let inside = self.inside(element).map_or_else(|| inside.clone(), |ty| ty.with_named_fields(inside));
            out.children.push((element.clone(), inside));
        }
        out
    }

    /// The type of the value at a path element.
    fn inside(self, element: &PathElement) -> Option<Self> {
        let atom = self.atom(&Value::Null);
        match element {
            PathElement::Field(name) => atom.map?.entry(name),
            PathElement::Key(_) | PathElement::Value(_) => Some(atom.list?.item),
            PathElement::Index(_) => None,
        }
    }

    /// The set as it would be had it been recorded under this type: what has become atomic is owned as a whole. What has
    /// become granular stays owned as a whole too, as kube-apiserver 1.36 has it.
    #[must_use]
    pub fn reconcile(self, set: &FieldSet) -> FieldSet {
        let mut out = FieldSet { members: set.members.clone(), children: Vec::new() };
        for (element, inside) in &set.children {
            match self.inside(element) {
                Some(ty) if ty.is_atomic() => out.insert_member(element.clone()),
                Some(ty) => out.children.push((element.clone(), ty.reconcile(inside))),
                None => out.children.push((element.clone(), inside.clone())),
            }
        }
        out
    }

    /// Whether [`Type::reconcile`] would change nothing of a stored set.
    pub(in crate::managed_fields) fn is_current(self, fields: &Map<String, Value>) -> bool {
        self.is_current_at(fields, 0)
    }

    fn is_current_at(self, fields: &Map<String, Value>, depth: usize) -> bool {
        let atom = self.atom(&Value::Null);
        fields.iter().filter(|(key, _)| *key != ".").all(|(key, inside)| {
            let Some(inside) = inside.as_object().filter(|_| depth < MAX_DEPTH) else { return false };
            if inside.keys().all(|key| key == ".") {
                return true;
            }
            let ty = match key.split_once(':') {
                Some(("f", name)) => atom.map.as_ref().and_then(|map| map.entry(name)),
                Some(("k" | "v", _)) => atom.list.as_ref().map(|list| list.item),
                _ => return false,
            };
            ty.is_none_or(|ty| !ty.is_atomic() && ty.is_current_at(inside, depth + 1))
        })
    }

    /// Whether nothing in such a value is owned by itself.
    fn is_atomic(self) -> bool {
        let atom = self.atom(&Value::Null);
        match (&atom.map, &atom.list) {
            (Some(map), _) => map.atomic,
            (None, Some(list)) if atom.scalar.is_none() => list.is_atomic(),
            _ => false,
        }
    }
}
