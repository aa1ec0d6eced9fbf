//! Finds the selectors that match an object's labels without trying all of them. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use windlass_kit::objects::label_selector::Selector;

use super::key::Key;

/// What a selector requires of labels, in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Slot {
    namespace: String,
    /// `None` for selectors that only say what labels must not have.
    key: Option<String>,
    /// `None` for any value.
    value: Option<String>,
}

impl Slot {
    fn new(namespace: &str, key: Option<&str>, value: Option<&str>) -> Self {
        Self { namespace: namespace.to_owned(), key: key.map(str::to_owned), value: value.map(str::to_owned) }
    }
}

/// Selectors of objects (Services, ReplicaSets) by the pairs that they require.
///
/// Each selector stands under one of its pairs: the one that the fewest others stood under when it came, so that a pair
/// that all share (`tier=prod`) does not bring them together. One without pairs stands under each value of an `In`, else
/// under a key of an `Exists`, else it is a candidate for all labels of its namespace.
#[derive(Debug, Default)]
pub(crate) struct SelectorIndex {
    by_slot: HashMap<Slot, BTreeSet<String>>,
    slots: HashMap<Key, Vec<Slot>>,
}

impl SelectorIndex {
    /// Sets the selector of the object `key`; an empty one selects nothing, as does one that is removed.
    pub(crate) fn set(&mut self, key: &Key, selector: Option<Selector<'_>>) {
        let selector = selector.filter(|selector| !selector.is_empty());
        if let Some(selector) = &selector
            && let Some([slot]) = self.slots.get(key).map(Vec::as_slice)
            && selector.pairs().any(|(k, v)| slot.key.as_ref() == Some(k) && slot.value.as_ref() == Some(v))
        {
            return;
        }
        for slot in self.slots.remove(key).unwrap_or_default() {
            if let Some(names) = self.by_slot.get_mut(&slot) {
                names.remove(&key.name);
                if names.is_empty() {
                    self.by_slot.remove(&slot);
                }
            }
        }
        let Some(selector) = selector else { return };
        let slots = self.choose(&key.namespace, &selector);
        self.add(key, slots);
    }

    /// Sets a selector of everything for the object `key`.
    pub(crate) fn set_all(&mut self, key: &Key) {
        self.set(key, None);
        self.add(key, vec![Slot::new(&key.namespace, None, None)]);
    }

    fn add(&mut self, key: &Key, slots: Vec<Slot>) {
        for slot in &slots {
            self.by_slot.entry(slot.clone()).or_default().insert(key.name.clone());
        }
        self.slots.insert(key.clone(), slots);
    }

    fn choose(&self, namespace: &str, selector: &Selector<'_>) -> Vec<Slot> {
        let pairs = selector.pairs().map(|(k, v)| Slot::new(namespace, Some(k), Some(v)));
        if let Some(slot) = pairs.min_by_key(|slot| self.by_slot.get(slot).map_or(0, BTreeSet::len)) {
            return vec![slot];
        }
        if let Some((key, values)) = selector.one_of() {
            return values.iter().map(|value| Slot::new(namespace, Some(key), Some(value))).collect();
        }
        vec![Slot::new(namespace, selector.exists(), None)]
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_slot.is_empty() && self.slots.is_empty()
    }

    /// The objects of a namespace whose selectors may match any of `labels`, ordered by name. The caller compares the
    /// whole selector.
    pub(crate) fn candidates<'a>(
        &self,
        namespace: &str,
        labels: impl IntoIterator<Item = &'a BTreeMap<String, String>>,
    ) -> Vec<Key> {
        let mut found = HashSet::new();
        let mut add = |slot: Slot| found.extend(self.by_slot.get(&slot).into_iter().flatten());
        add(Slot::new(namespace, None, None));
        for (k, v) in labels.into_iter().flatten() {
            add(Slot::new(namespace, Some(k), Some(v)));
            add(Slot::new(namespace, Some(k), None));
        }
        let mut found: Vec<Key> = found.into_iter().map(|name| Key::new(namespace, name)).collect();
        found.sort_unstable();
        found
    }
}
