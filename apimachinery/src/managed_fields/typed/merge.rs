//! Merging what is applied into an object.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::atom::{ListAtom, MapAtom, Type};
use crate::managed_fields::path::PathElement;

impl Type<'_> {
    /// The live object with all that is applied. Nothing is removed; where both have a leaf, it is the applied one. Lists
    /// are in the order of the applied one, with the items of the live one between.
    #[must_use]
    pub fn merge(self, live: &Value, applied: &Value) -> Value {
        merge(self, Some(live), Some(applied)).unwrap_or_default()
    }
}

fn merge(ty: Type<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    // Where the kind of value changes, the applied one decides.
    let kind = applied.or(live)?;
    let atom = ty.atom(kind);
    let inside = if let Some(map) = &atom.map {
        merge_maps(map, live, applied)
    } else if let Some(list) = atom.list.as_ref().filter(|_| atom.scalar.is_none()) {
        merge_lists(list, live, applied)
    } else {
        None
    };
    // Of a leaf, all is the applied one's.
    inside.unwrap_or_else(|| Some(kind.clone()))
}

/// `None` for a leaf; `Some(None)` if nothing is left.
#[allow(clippy::option_option)]
fn merge_maps(map: &MapAtom<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Option<Value>> {
    let (live, applied) = (live.and_then(Value::as_object), applied.and_then(Value::as_object));
    let is_empty = |fields: Option<&Map<_, _>>| fields.is_none_or(Map::is_empty);
    if map.atomic || (is_empty(live) && is_empty(applied)) {
        return None;
    }
    let mut out = Map::new();
    let names = live.into_iter().chain(applied).flatten().map(|(name, _)| name);
    for name in names {
        if out.contains_key(name) {
            continue;
        }
        let (live, applied) = (live.and_then(|fields| fields.get(name)), applied.and_then(|fields| fields.get(name)));
        let merged = match map.entry(name) {
            Some(ty) => merge(ty, live, applied),
            None => applied.or(live).cloned(),
        };
        out.extend(merged.map(|merged| (name.clone(), merged)));
    }
    Some((!out.is_empty()).then_some(Value::Object(out)))
}

#[allow(clippy::option_option)]
fn merge_lists(list: &ListAtom<'_>, live: Option<&Value>, applied: Option<&Value>) -> Option<Option<Value>> {
    let none = Vec::new();
    let live = live.and_then(Value::as_array).unwrap_or(&none);
    let applied = applied.and_then(Value::as_array).unwrap_or(&none);
    if list.is_atomic() || (live.is_empty() && applied.is_empty()) {
        return None;
    }
    let items = ListMerge::new(list, live, applied).run();
    Some((!items.is_empty()).then_some(Value::Array(items)))
}

/// A merge of two lists by the keys of their items.
struct ListMerge<'a> {
    list: &'a ListAtom<'a>,
    live: Vec<(PathElement, &'a Value)>,
    applied: Vec<(PathElement, &'a Value)>,
    /// The item of each key in the live list; `None` where several share it: those are not merged into, but replaced.
    live_by_key: BTreeMap<PathElement, Option<&'a Value>>,
    applied_by_key: BTreeMap<PathElement, &'a Value>,
}

impl<'a> ListMerge<'a> {
    fn new(list: &'a ListAtom<'a>, live: &'a [Value], applied: &'a [Value]) -> Self {
        let keyed = |items: &'a [Value]| -> Vec<(PathElement, &'a Value)> {
            items.iter().filter_map(|item| Some((list.element(item).ok()?, item))).collect()
        };
        let (live, applied) = (keyed(live), keyed(applied));
        let mut live_by_key = BTreeMap::new();
        for (element, item) in &live {
            live_by_key.entry(element.clone()).and_modify(|known| *known = None).or_insert(Some(*item));
        }
        let applied_by_key = applied.iter().cloned().collect();
        Self { list, live, applied, live_by_key, applied_by_key }
    }

    /// Both lists are gone through at once. Items of the live list that are not applied keep their place before the next
    /// item that both have; the others are in the order in which they are applied.
    fn run(&self) -> Vec<Value> {
        let mut out = Vec::new();
        let shared = self.applied.iter().map(|(element, _)| element).filter(|e| self.live_by_key.contains_key(e));
        let mut shared = shared.peekable();
        let mut merged: Vec<&PathElement> = Vec::new();
        let (mut at_live, mut at_applied) = (0, 0);
        while at_live < self.live.len() || at_applied < self.applied.len() {
            if let Some((element, item)) = self.live.get(at_live) {
                let is_applied = self.applied_by_key.contains_key(element);
                if let Some((next, _)) = self.applied.get(at_applied) {
                    if next == element {
                        merged.push(next);
                        out.extend(self.merge_item(next));
                        (at_live, at_applied) = (at_live + 1, at_applied + 1);
                        shared.next();
                        continue;
                    }
                    if is_applied && shared.peek().is_some_and(|shared| *shared != element) {
                        // It comes later, where the applied list has it.
                        at_live += 1;
                        continue;
                    }
                }
                if !is_applied {
                    out.extend(merge(self.list.item, Some(item), None));
                    at_live += 1;
                    continue;
                }
                if merged.contains(&element) {
                    at_live += 1;
                }
            }
            if let Some((element, _)) = self.applied.get(at_applied) {
                merged.push(element);
                out.extend(self.merge_item(element));
                at_applied += 1;
                if shared.peek() == Some(&element) {
                    shared.next();
                }
            }
        }
        out
    }

    fn merge_item(&self, element: &PathElement) -> Option<Value> {
        let live = self.live_by_key.get(element).copied().flatten();
        merge(self.list.item, live, self.applied_by_key.get(element).copied())
    }
}
