//! A sorted map of objects whose snapshots cost nothing: sorted chunks that are copied when they change while a
//! snapshot holds them. Lists read a snapshot without holding a lock.

use std::sync::Arc;

use super::{Key, Object};

/// A chunk that grows above this is split.
const MAX_CHUNK: usize = 256;

type Chunk = Vec<Arc<Object>>;

/// Objects in the order of their keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectMap {
    /// Not empty each, sorted.
    chunks: Arc<Vec<Arc<Chunk>>>,
    len: usize,
}

impl ObjectMap {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The chunk that has or would have a key: the last one that begins at or before it.
    fn chunk_of(&self, key: &Key) -> usize {
        let begins = |chunk: &Arc<Chunk>| chunk.first().is_some_and(|object| object.key <= *key);
        self.chunks.partition_point(begins).saturating_sub(1)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let at = chunk.binary_search_by(|object| object.key.cmp(key)).ok()?;
        chunk.get(at)
    }

    pub(crate) fn insert(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        let index = self.chunk_of(&object.key);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(chunk) = chunks.get_mut(index) else {
            chunks.push(Arc::new(vec![object]));
            self.len += 1;
            return None;
        };
        let chunk = Arc::make_mut(chunk);
        match chunk.binary_search_by(|other| other.key.cmp(&object.key)) {
            Ok(at) => Some(std::mem::replace(&mut chunk[at], object)),
            Err(at) => {
                chunk.insert(at, object);
                self.len += 1;
                if chunk.len() > MAX_CHUNK {
                    // Keys often come in order: the left chunk stays nearly full then.
                    let cut = if at + 1 == chunk.len() { MAX_CHUNK - 1 } else { MAX_CHUNK / 2 };
                    let right = chunk.split_off(cut);
                    chunks.insert(index + 1, Arc::new(right));
                }
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Object>> {
        let index = self.chunk_of(key);
        let at = self.chunks.get(index)?.binary_search_by(|object| object.key.cmp(key)).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[index]);
        let removed = chunk.remove(at);
        self.len -= 1;
        if chunk.is_empty() {
            chunks.remove(index);
        }
        Some(removed)
    }

    /// All objects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// The objects behind a key, or from it on.
    pub(crate) fn range<'a>(&'a self, from: &Key, inclusive: bool) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let is_before = |object: &Arc<Object>| if inclusive { object.key < *from } else { object.key <= *from };
        let first = self.chunk_of(from);
        let at = self.chunks.get(first).map_or(0, |chunk| chunk.partition_point(is_before));
        self.chunks[first.min(self.chunks.len())..].iter().flat_map(|chunk| chunk.iter()).skip(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn object(n: u32, revision: u64) -> Arc<Object> {
        let key = Key { namespace: format!("n{}", n % 3), name: format!("{:04}", n / 3) };
        Arc::new(Object { key, revision, bytes: bytes::Bytes::new(), revision_at: 0, index_values: Default::default() })
    }

    fn listed<'a>(objects: impl Iterator<Item = &'a Arc<Object>>) -> Vec<(Key, u64)> {
        objects.map(|o| (o.key.clone(), o.revision)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn it_is_a_sorted_map_and_snapshots_do_not_change(
            steps in prop::collection::vec((0..1500u32, any::<bool>()), 1..3000),
            from in 0..1500u32,
        ) {
            let (mut map, mut model) = (ObjectMap::default(), BTreeMap::new());
            let (mut snapshot, mut as_it_was) = (map.clone(), Vec::new());
            for (at, (n, deletes)) in steps.into_iter().enumerate() {
                let object = object(n, at as u64);
                if deletes {
                    let removed = map.remove(&object.key).map(|o| o.revision);
                    prop_assert_eq!(removed, model.remove(&object.key));
                } else {
                    let replaced = map.insert(Arc::clone(&object)).map(|o| o.revision);
                    prop_assert_eq!(replaced, model.insert(object.key.clone(), object.revision));
                }
                if at % 500 == 499 {
                    prop_assert_eq!(&listed(snapshot.iter()), &as_it_was);
                    (snapshot, as_it_was) = (map.clone(), listed(map.iter()));
                }
            }
            let wanted: Vec<(Key, u64)> = model.clone().into_iter().collect();
            prop_assert_eq!((listed(map.iter()), map.len()), (wanted, model.len()));
            let from = object(from, 0).key.clone();
            prop_assert_eq!(map.get(&from).map(|o| o.revision), model.get(&from).copied());
            let inclusive: Vec<(Key, u64)> = model.range(from.clone()..).map(|(k, r)| (k.clone(), *r)).collect();
            prop_assert_eq!(&listed(map.range(&from, true)), &inclusive);
            let behind: Vec<(Key, u64)> = inclusive.into_iter().filter(|(key, _)| *key != from).collect();
            prop_assert_eq!(listed(map.range(&from, false)), behind);
        }
    }
}
