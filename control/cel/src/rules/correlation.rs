//! Which old value a value had, and whether it is as it was: upstream's `CorrelatedObject` and `MapList`
//! (`apiserver/pkg/cel/common`). Properties and keys of maps are matched by name, items of lists of type map by their keys, items
//! of other lists not at all.

use std::{
    cell::{Cell, OnceCell},
    collections::HashMap,
};

use serde_json::Value as Json;

use super::validator::list_map_keys;

/// The items of an old list of type map, by their keys.
#[derive(Debug, Default)]
pub(super) struct MapList<'a> {
    items: HashMap<String, &'a Json>,
}

impl<'a> MapList<'a> {
    /// Of items with one key the first one counts.
    pub(super) fn new(items: &'a [Json], keys: &[&str]) -> Self {
        let mut found = HashMap::new();
        for item in items.iter().filter(|_| !keys.is_empty()) {
            if let Some(key) = composite_key(item, keys) {
                found.entry(key).or_insert(item);
            }
        }
        Self { items: found }
    }

    /// The old item with the keys of `item`.
    pub(super) fn get(&self, item: &Json, keys: &[&str]) -> Option<&'a Json> {
        if self.items.is_empty() {
            return None;
        }
        self.items.get(&composite_key(item, keys)?).copied()
    }
}

/// The keys of an item, which are all there, and scalars.
fn composite_key(item: &Json, keys: &[&str]) -> Option<String> {
    let mut key = String::new();
    for name in keys {
        match item.as_object()?.get(*name)? {
            Json::Null | Json::Array(_) | Json::Object(_) => return None,
            // Texts are quoted: they differ from numbers, and end where they end.
            scalar => key.push_str(&scalar.to_string()),
        }
        key.push('\0');
    }
    Some(key)
}

/// A value with the old one that it is compared with.
#[derive(Debug)]
pub(super) struct Correlated<'a> {
    new: &'a Json,
    old: &'a Json,
    schema: &'a Json,
    items: OnceCell<MapList<'a>>,
    unchanged: Cell<Option<bool>>,
}

impl<'a> Correlated<'a> {
    pub(super) const fn new(new: &'a Json, old: &'a Json, schema: &'a Json) -> Self {
        Self { new, old, schema, items: OnceCell::new(), unchanged: Cell::new(None) }
    }

    fn key(&self, name: &str) -> Option<Self> {
        let (old, new) = (self.old.as_object()?.get(name)?, self.new.as_object()?.get(name)?);
        Some(Self::new(new, old, field_schema(self.schema, name)?))
    }

    fn index(&self, at: usize) -> Option<Self> {
        let (old, new) = (self.old.as_array()?, self.new.as_array()?.get(at)?);
        let keys: Vec<&str> = list_map_keys(self.schema).collect();
        let old = self.items.get_or_init(|| MapList::new(old, &keys)).get(new, &keys)?;
        Some(Self::new(new, old, item_schema(self.schema)?))
    }

    fn is_unchanged(&self) -> bool {
        let known = self.unchanged.get();
        let unchanged = known.unwrap_or_else(|| is_unchanged(self.schema, self.new, self.old));
        self.unchanged.set(Some(unchanged));
        unchanged
    }
}

fn field_schema<'a>(schema: &'a Json, name: &str) -> Option<&'a Json> {
    let declared = schema["properties"].get(name);
    declared.or_else(|| Some(&schema["additionalProperties"]).filter(|values| values.is_object()))
}

fn item_schema(schema: &Json) -> Option<&Json> {
    Some(&schema["items"]).filter(|items| items.is_object())
}

/// Whether a value is as it was; upstream's `CachedDeepEqual`. The order of items of a list of type map does not count, and
/// what the schema does not describe counts as changed.
fn is_unchanged(schema: &Json, new: &Json, old: &Json) -> bool {
    match (new, old) {
        (Json::Array(new), Json::Array(old)) if schema["x-kubernetes-list-type"] == "map" => {
            let keys: Vec<&str> = list_map_keys(schema).collect();
            let before = MapList::new(old, &keys);
            new.len() == old.len()
                && new.iter().all(|item| match (before.get(item, &keys), item_schema(schema)) {
                    (Some(old), Some(schema)) => is_unchanged(schema, item, old),
                    _ => false,
                })
        }
        (Json::Object(new), Json::Object(old)) => {
            new.len() == old.len()
                && new.iter().all(|(name, value)| match (old.get(name), field_schema(schema, name)) {
                    (Some(old), Some(schema)) => is_unchanged(schema, value, old),
                    _ => false,
                })
        }
        _ => new == old,
    }
}

/// What errors of a node are compared with: upstream's `ratchetingOptions`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ratcheting<'r, 'a> {
    current: Option<&'r Correlated<'a>>,
    /// The nearest node around that has an old value, if this one has none.
    parent: Option<&'r Correlated<'a>>,
}

impl<'r, 'a> Ratcheting<'r, 'a> {
    pub(super) const fn of(root: &'r Correlated<'a>) -> Self {
        Self { current: Some(root), parent: None }
    }

    /// Whether an error of the node is one that the old object had.
    pub(super) fn is_tolerated(self) -> bool {
        self.current.or(self.parent).is_some_and(Correlated::is_unchanged)
    }

    /// A field with its old value.
    pub(super) fn correlated_key(self, name: &str) -> Option<Correlated<'a>> {
        self.current?.key(name)
    }

    /// An item with its old value.
    pub(super) fn correlated_item(self, at: usize) -> Option<Correlated<'a>> {
        self.current?.index(at)
    }

    /// Goes into a field. The type of the root itself cannot change.
    pub(super) fn key<'c>(self, name: &str, child: Option<&'c Correlated<'a>>) -> Ratcheting<'c, 'a>
    where
        'r: 'c,
    {
        if self.current.is_some() && self.parent.is_none() && matches!(name, "apiVersion" | "kind") {
            return Ratcheting { current: None, parent: None };
        }
        self.item(child)
    }

    /// Goes into an item.
    pub(super) const fn item<'c>(self, child: Option<&'c Correlated<'a>>) -> Ratcheting<'c, 'a>
    where
        'r: 'c,
    {
        match self.current {
            None => Ratcheting { current: None, parent: self.parent },
            Some(current) => Ratcheting { current: child, parent: Some(current) },
        }
    }

    /// Goes into a member of `allOf`, whose own errors are reported unless all around is as it was.
    pub(super) const fn all_of(self) -> Self {
        Self { current: None, parent: self.parent }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_unchanged_depends_on_how_items_are_matched() {
        let item = json!({"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}});
        let list = |of: &str| json!({"type": "array", "items": item, "x-kubernetes-list-type": of, "x-kubernetes-list-map-keys": ["k"]});
        let (one, other) = (json!({"k": "a", "v": 1}), json!({"k": "b", "v": 2}));
        let ordered = json!([one, other]);
        let reordered = json!([other, one]);
        assert!(is_unchanged(&list("map"), &reordered, &ordered));
        assert!(!is_unchanged(&list("set"), &reordered, &ordered));
        assert!(is_unchanged(&list("atomic"), &ordered, &ordered));
        assert!(!is_unchanged(&list("map"), &json!([one]), &ordered));
        // A repeated key finds the first item.
        assert!(!is_unchanged(&list("map"), &json!([one, {"k": "a", "v": 2}]), &json!([one, {"k": "a", "v": 2}])));
        let known = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert!(is_unchanged(&known, &json!({"a": "x"}), &json!({"a": "x"})));
        assert!(!is_unchanged(&known, &json!({"a": "x", "b": 1}), &json!({"a": "x", "b": 1})));
        assert!(is_unchanged(&json!({"x-kubernetes-preserve-unknown-fields": true}), &json!({}), &json!({})));
    }

    #[test]
    fn keys_of_items_are_scalars_of_one_type() {
        let old = [json!({"k": 1}), json!({"k": "1"}), json!({"k": true}), json!({"k": null}), json!({}), json!(7)];
        let list = MapList::new(&old, &["k"]);
        assert_eq!(list.get(&json!({"k": 1}), &["k"]), Some(&old[0]));
        assert_eq!(list.get(&json!({"k": "1"}), &["k"]), Some(&old[1]));
        assert_eq!(list.get(&json!({"k": true}), &["k"]), Some(&old[2]));
        for missing in [json!({"k": null}), json!({}), json!({"k": [1]}), json!(7), json!({"k": 2})] {
            assert_eq!(list.get(&missing, &["k"]), None, "{missing}");
        }
        assert_eq!(MapList::new(&old, &[]).get(&old[0], &[]), None);
    }
}
