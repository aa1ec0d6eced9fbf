//! What was used last is kept, as client-go's caches of events keep it. Pure.

use std::collections::{BTreeMap, HashMap};

/// Entries that each cache of client-go's correlator has (`maxLruCacheEntries`).
const MAX_ENTRIES: usize = 4096;

#[derive(Debug)]
pub(super) struct Lru<T> {
    entries: HashMap<String, (u64, T)>,
    /// Keys in the order of their last use.
    order: BTreeMap<u64, String>,
    uses: u64,
}

impl<T> Default for Lru<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }
}

impl<T> Lru<T> {
    /// The entry of a key, which counts as a use; created if absent.
    pub(super) fn entry(&mut self, key: &str, make: impl FnOnce() -> T) -> &mut T {
        self.uses += 1;
        if let Some((used, _)) = self.entries.get(key) {
            self.order.remove(used);
        } else if self.entries.len() >= MAX_ENTRIES
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.order.insert(self.uses, key.to_owned());
        let (used, value) = self.entries.entry(key.to_owned()).or_insert_with(|| (0, make()));
        *used = self.uses;
        value
    }

    /// The entry of a key, if there is one.
    pub(super) fn peek(&mut self, key: &str) -> Option<&mut T> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut lru = Lru::default();
        for i in 0..MAX_ENTRIES {
            lru.entry(&i.to_string(), || i);
        }
        lru.entry("0", || unreachable!());
        lru.entry("new", || 0);
        assert!(lru.peek("0").is_some() && lru.peek("1").is_none() && lru.peek("2").is_some());
        assert_eq!((lru.entries.len(), lru.order.len()), (MAX_ENTRIES, MAX_ENTRIES));
    }
}
