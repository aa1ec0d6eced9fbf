//! The cached objects of one type, and indexes over them: lookups cost what they return. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    ops::Bound,
    sync::Arc,
};

use super::key::Key;

/// Under which values an object is found; client-go's `IndexFunc`.
///
/// The name identifies the index within its type: controllers that name the same one share it.
pub(crate) struct Index<K> {
    name: &'static str,
    values: fn(&K) -> Vec<String>,
}

impl<K> Index<K> {
    pub(crate) const fn new(name: &'static str, values: fn(&K) -> Vec<String>) -> Self {
        Self { name, values }
    }
}

impl<K> fmt::Debug for Index<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Index").field(&self.name).finish()
    }
}

/// The keys of one index by value.
struct Postings<K> {
    values: fn(&K) -> Vec<String>,
    keys: HashMap<String, BTreeSet<Arc<Key>>>,
}

impl<K> Postings<K> {
    fn update(&mut self, key: &Arc<Key>, old: Option<&K>, new: Option<&K>) {
        let values = |object: Option<&K>| object.map(self.values).unwrap_or_default();
        let (before, after) = (values(old), values(new));
        for value in before.iter().filter(|value| !after.contains(value)) {
            if let Some(keys) = self.keys.get_mut(value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(value);
                }
            }
        }
        for value in after.into_iter().filter(|value| !before.contains(value)) {
            self.keys.entry(value).or_default().insert(Arc::clone(key));
        }
    }
}

/// The objects of one type by namespace and name, with their indexes.
pub(crate) struct Contents<K> {
    objects: BTreeMap<Arc<Key>, Arc<K>>,
    indexes: HashMap<&'static str, Postings<K>>,
}

impl<K> Default for Contents<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), indexes: HashMap::new() }
    }
}

impl<K> Contents<K> {
    /// Adds an index, which covers the present objects as well. An index of that name stays.
    pub(crate) fn add_index(&mut self, index: &Index<K>) {
        let objects = &self.objects;
        self.indexes.entry(index.name).or_insert_with(|| {
            let mut postings = Postings { values: index.values, keys: HashMap::new() };
            objects.iter().for_each(|(key, object)| postings.update(key, None, Some(object)));
            postings
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    /// All objects, ordered by namespace and name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<Key>, &Arc<K>)> {
        self.objects.iter()
    }

    /// The objects of one namespace, ordered by name.
    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        let from = Key::new(namespace, "");
        self.objects
            .range::<Key, _>((Bound::Included(&from), Bound::Unbounded))
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, object)| object)
    }

    /// The objects that `index` finds under `value`, ordered by namespace and name. An index that was never added is
    /// replaced by a walk over all objects.
    pub(crate) fn by_index(&self, index: &Index<K>, value: &str) -> Vec<Arc<K>> {
        match self.indexes.get(index.name) {
            Some(postings) => {
                let keys = postings.keys.get(value).into_iter().flatten();
                keys.filter_map(|key| self.objects.get(key).cloned()).collect()
            }
            None => {
                let found = |object: &&Arc<K>| (index.values)(object).iter().any(|v| v == value);
                self.objects.values().filter(found).cloned().collect()
            }
        }
    }

    /// The number of objects that [`by_index`](Self::by_index) returns.
    pub(crate) fn count(&self, index: &Index<K>, value: &str) -> usize {
        match self.indexes.get(index.name) {
            Some(postings) => postings.keys.get(value).map_or(0, BTreeSet::len),
            None => self.by_index(index, value).len(),
        }
    }

    /// Adds or replaces an object; returns the previous one.
    pub(crate) fn insert(&mut self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let key = self.objects.get_key_value(&key).map_or_else(|| Arc::new(key), |(known, _)| Arc::clone(known));
        let old = self.objects.insert(Arc::clone(&key), Arc::clone(&object));
        self.reindex(&key, old.as_deref(), Some(&object));
        old
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let (key, old) = self.objects.remove_entry(key)?;
        self.reindex(&key, Some(&old), None);
        Some(old)
    }

    fn reindex(&mut self, key: &Arc<Key>, old: Option<&K>, new: Option<&K>) {
        self.indexes.values_mut().for_each(|postings| postings.update(key, old, new));
    }

    /// Replaces all objects by those of a full list; returns the previous ones.
    pub(crate) fn replace(&mut self, listed: BTreeMap<Arc<Key>, Arc<K>>) -> BTreeMap<Arc<Key>, Arc<K>> {
        let old = std::mem::replace(&mut self.objects, listed);
        for postings in self.indexes.values_mut() {
            postings.keys.clear();
            self.objects.iter().for_each(|(key, object)| postings.update(key, None, Some(object)));
        }
        old
    }
}
