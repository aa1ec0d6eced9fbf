//! What was used last is kept. Pure.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// Values by key, as many as weigh no more than a limit: those that were used least recently go first.
#[derive(Debug)]
pub struct Lru<K, V> {
    limit: usize,
    weight: usize,
    entries: HashMap<K, Entry<V>>,
    /// Keys in the order of their last use.
    order: BTreeMap<u64, K>,
    uses: u64,
}

#[derive(Debug)]
struct Entry<V> {
    used: u64,
    weight: usize,
    value: V,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    /// An empty one whose values weigh up to `limit` together; at least one is always kept.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, weight: 0, entries: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// The value of a key, which counts as a use; made, with its weight, if absent.
    pub fn entry(&mut self, key: &K, weight: usize, make: impl FnOnce() -> V) -> &mut V {
        self.uses += 1;
        if let Some(entry) = self.entries.get(key) {
            self.order.remove(&entry.used);
        } else {
            self.weight += weight;
            while self.weight > self.limit
                && let Some((_, oldest)) = self.order.pop_first()
                && let Some(gone) = self.entries.remove(&oldest)
            {
                self.weight -= gone.weight;
            }
        }
        self.order.insert(self.uses, key.clone());
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry { used: 0, weight, value: make() });
        entry.used = self.uses;
        &mut entry.value
    }

    /// The value of a key, if there is one, which counts as a use.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        self.order.remove(&entry.used);
        self.order.insert(self.uses, key.clone());
        entry.used = self.uses;
        Some(&mut entry.value)
    }

    /// The same, which counts as none.
    pub fn peek<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut lru = Lru::new(4);
        for i in 0..4 {
            lru.entry(&i, 1, || i);
        }
        lru.entry(&0, 1, || unreachable!());
        lru.entry(&4, 1, || 4);
        assert!(lru.peek(&0).is_some() && lru.peek(&1).is_none() && lru.get(&2).is_some());
        assert_eq!((lru.entries.len(), lru.order.len()), (4, 4));
        lru.entry(&5, 3, || 5);
        assert!(lru.peek(&2).is_some(), "it was used last");
    }

    #[test]
    fn what_is_heavy_costs_many_and_stays_alone_at_worst() {
        let mut lru = Lru::new(10);
        for i in 0..10 {
            lru.entry(&i, 1, || i);
        }
        lru.entry(&10, 8, || 10);
        assert_eq!((lru.entries.len(), lru.weight), (3, 10));
        lru.entry(&11, 30, || 11);
        assert_eq!((lru.entries.len(), lru.weight), (1, 30));
        lru.entry(&12, 1, || 12);
        assert_eq!((lru.entries.len(), lru.order.len(), lru.weight), (1, 1, 1));
    }
}
