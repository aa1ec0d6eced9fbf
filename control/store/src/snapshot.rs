//! Lists: the objects of a resource at one revision, the present or an earlier one, which is the present with the events
//! of the history undone. A snapshot is read without a lock, page by page or as a whole.

use std::{collections::BTreeMap, iter::Peekable, sync::Arc, time::Instant};

use super::{Error, Key, Object, ResourceId, Store, object_map::ObjectMap};

/// The objects of a resource at one revision.
#[derive(Debug, Clone)]
pub struct Snapshot {
    present: ObjectMap,
    /// What was different at the revision: the state of then, or none.
    undone: BTreeMap<Key, Option<Arc<Object>>>,
    revision: u64,
}

impl Snapshot {
    /// The revision of the list.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The objects in the order of their keys, of one namespace or all, behind a key that is excluded itself.
    pub fn objects<'a>(
        &'a self,
        namespace: Option<&'a str>,
        after: Option<&'a Key>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let first = Key { namespace: namespace.unwrap_or_default().to_owned(), name: String::new() };
        // No object has an empty name, so that the first key is before all of its namespace.
        let from = after.filter(|after| **after > first).unwrap_or(&first).clone();
        let present = self.present.range(&from, false).filter(|object| !self.undone.contains_key(&object.key));
        let undone = self.undone.range(from.clone()..).filter(move |(key, _)| **key > from);
        let merged = Merge { present: present.peekable(), undone: undone.filter_map(|(_, o)| o.as_ref()).peekable() };
        merged.take_while(move |object| namespace.is_none_or(|namespace| object.key.namespace == namespace))
    }
}

/// Two sorted sequences without common keys as one.
struct Merge<A: Iterator, B: Iterator> {
    present: Peekable<A>,
    undone: Peekable<B>,
}

impl<'a, A, B> Iterator for Merge<A, B>
where
    A: Iterator<Item = &'a Arc<Object>>,
    B: Iterator<Item = &'a Arc<Object>>,
{
    type Item = &'a Arc<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        match (self.present.peek(), self.undone.peek()) {
            (Some(present), Some(undone)) if undone.key < present.key => self.undone.next(),
            (Some(_), _) => self.present.next(),
            (None, _) => self.undone.next(),
        }
    }
}

impl Store {
    /// The objects of a resource now.
    #[must_use]
    pub fn snapshot(&self, resource: ResourceId) -> Snapshot {
        let state = self.state();
        let present = state.resource(resource).map(|r| r.objects.clone()).unwrap_or_default();
        Snapshot { present, undone: BTreeMap::new(), revision: state.revision }
    }

    /// The objects of a resource at a revision that is not in the future.
    ///
    /// # Errors
    /// [`Error::TooOld`] when changes after it were compacted.
    pub fn snapshot_at(&self, resource: ResourceId, revision: u64) -> Result<Snapshot, Error> {
        let state = self.state();
        state.check_listable(resource, revision, Instant::now())?;
        let Some(resource) = state.resource(resource) else {
            return Ok(Snapshot { present: ObjectMap::default(), undone: BTreeMap::new(), revision });
        };
        let mut undone = BTreeMap::new();
        // The state of then is the one before the first event since.
        for event in resource.history.after(revision) {
            undone.entry(event.object.key.clone()).or_insert_with(|| event.previous.clone());
        }
        Ok(Snapshot { present: resource.objects.clone(), undone, revision })
    }

    /// The objects of a resource in the order of their keys, of one namespace or all, and the revision of this list.
    #[must_use]
    pub fn list(&self, resource: ResourceId, namespace: Option<&str>) -> (Vec<Arc<Object>>, u64) {
        let snapshot = self.snapshot(resource);
        (snapshot.objects(namespace, None).cloned().collect(), snapshot.revision)
    }

    /// The same at an earlier revision.
    ///
    /// # Errors
    /// [`Error::TooOld`] when changes after it were compacted.
    pub fn list_at(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object>>, Error> {
        Ok(self.snapshot_at(resource, revision)?.objects(namespace, None).cloned().collect())
    }
}
