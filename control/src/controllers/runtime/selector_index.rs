//! Finds the selectors that match an object's labels without trying all of them. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::key::Key;

/// Namespace, and one pair that labels must have.
type Slot = (String, String, String);

/// Map selectors of objects (Services, ReplicationControllers) by the pairs that they require.
///
/// Each selector stands under one of its pairs: the one that the fewest others stood under when it came, so that a pair
/// that all share (`tier=prod`) does not bring them together.
#[derive(Debug, Default)]
pub(crate) struct SelectorIndex {
    by_pair: HashMap<Slot, BTreeSet<String>>,
    slots: HashMap<Key, Slot>,
}

impl SelectorIndex {
    /// Sets the selector of the object `key`; an empty one selects nothing, as does one that is removed.
    pub(crate) fn set(&mut self, key: &Key, selector: Option<&BTreeMap<String, String>>) {
        if let Some(slot) = self.slots.get(key) {
            let same = selector.is_some_and(|selector| selector.get(&slot.1) == Some(&slot.2));
            if same {
                return;
            }
        }
        if let Some(slot) = self.slots.remove(key)
            && let Some(names) = self.by_pair.get_mut(&slot)
        {
            names.remove(&key.name);
            if names.is_empty() {
                self.by_pair.remove(&slot);
            }
        }
        let slots = selector.into_iter().flatten().map(|(k, v)| (key.namespace.clone(), k.clone(), v.clone()));
        if let Some(slot) = slots.min_by_key(|slot| self.by_pair.get(slot).map_or(0, BTreeSet::len)) {
            self.by_pair.entry(slot.clone()).or_default().insert(key.name.clone());
            self.slots.insert(key.clone(), slot);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_pair.is_empty() && self.slots.is_empty()
    }

    /// The objects of a namespace whose selectors may match any of `labels`, ordered by name. The caller compares the
    /// whole selector.
    pub(crate) fn candidates<'a>(
        &self,
        namespace: &str,
        labels: impl IntoIterator<Item = &'a BTreeMap<String, String>>,
    ) -> Vec<Key> {
        let mut found = HashSet::new();
        for (k, v) in labels.into_iter().flatten() {
            let slot = (namespace.to_owned(), k.clone(), v.clone());
            found.extend(self.by_pair.get(&slot).into_iter().flatten());
        }
        let mut found: Vec<Key> = found.into_iter().map(|name| Key::new(namespace, name)).collect();
        found.sort_unstable();
        found
    }
}
