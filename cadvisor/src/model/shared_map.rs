//! Sorted maps whose copies cost little: a copy shares all chunks, and a change copies the chunk that it is in. So a new
//! snapshot of a thousand containers of which one is new costs as much as that one, while pages still read the snapshot
//! before. The store has another one, whose keys are in its objects: it imports nothing of ours, and nothing here may
//! import it.

use std::{borrow::Borrow, collections::HashSet, sync::Arc};

/// A chunk that grows above this is split.
const MAX_CHUNK: usize = 64;

type Chunk<K, V> = Vec<(K, V)>;

/// The position of an entry; it avoids a search until an entry before it is inserted or removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spot {
    chunk: usize,
    at: usize,
}

/// Some entries of a map, in order.
pub(super) type Entries<'a, K, V> = Vec<(&'a K, &'a V)>;

/// A sorted map.
#[derive(Debug, Clone)]
pub struct SharedMap<K, V> {
    /// Not empty each, sorted.
    chunks: Vec<Arc<Chunk<K, V>>>,
    len: usize,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<K, V> SharedMap<K, V> {
    /// How many entries there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the map has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// All keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values in order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The chunk that has or would have a key: the last one that begins at or before it.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let begins = |chunk: &Arc<Chunk<K, V>>| chunk.first().is_some_and(|(first, _)| first.borrow() <= key);
        self.chunks.partition_point(begins).saturating_sub(1)
    }

    /// The value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let at = chunk.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        chunk.get(at).map(|(_, value)| value)
    }

    /// The value of a key, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let index = self.chunk_of(key);
        let chunk = self.chunks.get_mut(index)?;
        let at = chunk.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        Arc::make_mut(chunk).get_mut(at).map(|(_, value)| value)
    }

    /// Sets the value of the entry at `spot` if that is the one whose key `is` says; otherwise sets that of `key` and
    /// remembers where it is. A search in a map of many costs more than all else that a new value does.
    pub(crate) fn insert_at(&mut self, spot: &mut Spot, is: impl Fn(&K) -> bool, key: impl FnOnce() -> K, value: V) {
        if let Some(chunk) = self.chunks.get_mut(spot.chunk)
            && chunk.get(spot.at).is_some_and(|(key, _)| is(key))
            && let Some((_, known)) = Arc::make_mut(chunk).get_mut(spot.at)
        {
            *known = value;
            return;
        }
        let key = key();
        self.insert(key.clone(), value);
        let chunk = self.chunk_of(&key);
        let at = self.chunks.get(chunk).map(|chunk| chunk.partition_point(|(other, _)| *other < key));
        *spot = Spot { chunk, at: at.unwrap_or_default() };
    }

    /// Sets the value of a key, which takes the place of the equal one; returns the value before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let index = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(index) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            self.len += 1;
            return None;
        };
        let chunk = Arc::make_mut(chunk);
        match chunk.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(at) => chunk.get_mut(at).map(|known| std::mem::replace(known, (key, value)).1),
            Err(at) => {
                chunk.insert(at, (key, value));
                self.len += 1;
                if chunk.len() > MAX_CHUNK {
                    let right = chunk.split_off(MAX_CHUNK / 2);
                    self.chunks.insert(index + 1, Arc::new(right));
                }
                None
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let index = self.chunk_of(key);
        let chunk = self.chunks.get_mut(index)?;
        let at = chunk.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        let chunk = Arc::make_mut(chunk);
        let (_, value) = chunk.remove(at);
        self.len -= 1;
        if chunk.is_empty() {
            self.chunks.remove(index);
        }
        Some(value)
    }

    /// What differs from another map, mostly an earlier copy of this one: the entries of both that are in chunks that they
    /// do not share. An entry that is in both results has not gone.
    pub(super) fn unshared<'a>(&'a self, other: &'a Self) -> (Entries<'a, K, V>, Entries<'a, K, V>) {
        // Chunks are in the same order in both, so that one that is shared is found by going on.
        let unshared = |of: &'a Self, beside: &Self| {
            let known: HashSet<*const Chunk<K, V>> = beside.chunks.iter().map(Arc::as_ptr).collect();
            let own = of.chunks.iter().filter(|chunk| !known.contains(&Arc::as_ptr(chunk)));
            own.flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value)).collect()
        };
        (unshared(self, other), unshared(other, self))
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord + Clone, V: Clone, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for SharedMap<K, V> {}

#[cfg(test)]
impl<K: Ord + Clone + Borrow<Q>, V: Clone, Q: Ord + ?Sized> std::ops::Index<&Q> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry of this key")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_is_a_map_whose_copies_stay_as_they_were() {
        // A linear congruential generator: the same walk in each run.
        let mut state = 17_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let (mut map, mut model) = (SharedMap::default(), BTreeMap::new());
        for _ in 0..20_000 {
            let (key, value) = (next() % 700, next());
            let before = map.clone();
            let had = model.get(&key).copied();
            if value.is_multiple_of(3) {
                assert_eq!(map.remove(&key), model.remove(&key));
            } else {
                assert_eq!(map.insert(key, value), model.insert(key, value));
            }
            assert_eq!((map.get(&key), before.get(&key).copied()), (model.get(&key), had));
            assert_eq!(map.len(), model.len());
        }
        assert!(map.iter().eq(&model) && map.keys().eq(model.keys()) && map.values().eq(model.values()));
        assert!(map.chunks.iter().all(|chunk| (1..=MAX_CHUNK).contains(&chunk.len())));
        let again: SharedMap<u32, u32> = model.into_iter().rev().collect();
        assert_eq!(map, again);
        *map.get_mut(again.keys().next().unwrap()).unwrap() += 1;
        assert_ne!(map, again);
    }

    /// Whatever came and went since, the value gets to its key.
    #[test]
    fn a_value_finds_its_key_where_that_was_and_anywhere_else() {
        let mut map: SharedMap<u32, u32> = (0..500).map(|key| (key, 0)).collect();
        let mut spots = vec![Spot::default(); 500];
        for round in 1..=6 {
            for key in (0..500).filter(|key| round < 3 || key % round != 0) {
                map.insert_at(&mut spots[key as usize], |known| *known == key, || key, round);
            }
            let set = map.iter().filter(|(_, value)| **value == round).map(|(key, _)| *key);
            assert!(set.eq((0..500).filter(|key| round < 3 || key % round != 0)), "{round}");
            let before = map.clone();
            (0..500).filter(|key| key % (round + 2) == 0).for_each(|key| {
                let _ = map.remove(&key);
            });
            assert!(before.iter().all(|(key, value)| map.get(key).is_none_or(|now| now == value)));
        }
    }

    #[test]
    fn a_change_costs_a_chunk_however_many_entries_there_are() {
        for many in [10_u32, 2_000, 4_000] {
            let before: SharedMap<u32, u32> = (0..many).map(|key| (key * 2, key)).collect();
            let mut after = before.clone();
            after.insert(7, 7);
            after.remove(&8);
            let (new, old) = after.unshared(&before);
            assert!(new.len() <= MAX_CHUNK + 1 && old.len() <= MAX_CHUNK, "{many}: {} {}", new.len(), old.len());
            assert!(new.contains(&(&7, &7)) && !old.contains(&(&7, &7)));
            assert!(!new.contains(&(&8, &4)) && old.contains(&(&8, &4)));
            let (new, old) = after.unshared(&after);
            assert!(new.is_empty() && old.is_empty());
        }
    }
}
