//! What a write must fulfil: its precondition, its guards, its allocations. Each sees the writes before it.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Instant,
};

use super::{
    super::{Allocation, AllocationRecord, Encoded, Error, Event, Expected, Key, Object, RecordChange, ResourceId},
    Accepted, Content, Prepared, Writer,
    queue::Queued,
    unix_seconds,
};
use crate::state::State;

/// The state that a write leaves, or none after a deletion, and its revision.
type After = (u64, Option<Arc<Object>>);

/// Objects as accepted writes that are not published yet leave them, with the revisions of these writes.
#[derive(Default)]
pub(super) struct Pending {
    by_resource: HashMap<ResourceId, HashMap<Key, After>>,
}

impl Pending {
    fn get(&self, resource: ResourceId, key: &Key) -> Option<&Option<Arc<Object>>> {
        self.by_resource.get(&resource)?.get(key).map(|(_, object)| object)
    }

    fn insert(&mut self, resource: ResourceId, object: &Arc<Object>, deleted: bool) {
        let after = (!deleted).then(|| Arc::clone(object));
        self.by_resource.entry(resource).or_default().insert(object.key.clone(), (object.revision, after));
    }

    /// A write was published.
    pub(super) fn remove(&mut self, event: &Event) {
        let (key, revision) = (&event.object.key, event.object.revision);
        // A later write of the same object stays.
        if let Some(objects) = self.by_resource.get_mut(&event.resource)
            && objects.get(key).is_some_and(|(last, _)| *last == revision)
        {
            objects.remove(key);
        }
    }

    /// No write is pending any more.
    pub(super) fn clear(&mut self) {
        self.by_resource.values_mut().for_each(HashMap::clear);
    }
}

/// The state as it is after the writes that were accepted so far.
struct View<'a> {
    state: &'a State,
    pending: Pending,
}

impl View<'_> {
    fn get(&self, resource: ResourceId, key: &Key) -> Option<Arc<Object>> {
        let pending = self.pending.get(resource, key);
        pending.cloned().unwrap_or_else(|| self.state.get(resource, key).cloned())
    }
}

impl Writer {
    /// Checks writes in order and adds the accepted ones to the next transaction; refused ones are answered immediately.
    pub(super) fn check(&mut self, writes: impl Iterator<Item = Queued>) {
        let shared = Arc::clone(&self.shared.state);
        let state = shared.read().unwrap_or_else(PoisonError::into_inner);
        let mut view = View { state: &state, pending: std::mem::take(&mut self.pending) };
        let (now, unix_seconds) = (Instant::now(), unix_seconds());
        for (write, reply) in writes {
            let (resource, current) = (write.resource, view.get(write.resource, &write.key));
            let (object, deleted, allocation) = match self.check_one(&view, write, current.as_ref()) {
                Ok(checked) => checked,
                Err(error) => {
                    let _ = reply.send(Err(error));
                    continue;
                }
            };
            let options = state.resource(resource).map(|r| &r.options);
            self.needs_sync |= !options.is_some_and(|o| o.relaxed_durability.holds(&object.key.namespace));
            view.pending.insert(resource, &object, deleted);
            let event = Arc::new(Event::new(resource, object, current, deleted, now, unix_seconds));
            let Allocation { rollback, records } = allocation;
            self.checked.push(Accepted { event, reply: Some(reply), rollback });
            for record in records {
                let resource = record.resource;
                let current = view.get(resource, &record.key);
                let Some((object, deleted)) = self.write_record(record, current.as_ref()) else { continue };
                view.pending.insert(resource, &object, deleted);
                let event = Arc::new(Event::new(resource, object, current, deleted, now, unix_seconds));
                self.checked.push(Accepted { event, reply: None, rollback: None });
            }
        }
        self.pending = view.pending;
    }

    /// The new state of the object at a revision of its own, and whether it is deleted.
    fn check_one(
        &mut self,
        view: &View<'_>,
        write: Prepared,
        current: Option<&Arc<Object>>,
    ) -> Result<(Arc<Object>, bool, Allocation), Error> {
        let holds = match (write.expected, current) {
            // What is not there cannot be deleted.
            (Expected::Absent, None) => !matches!(write.content, Content::Deleted),
            (Expected::Revision(wanted), Some(object)) => object.revision == wanted,
            _ => false,
        };
        if !holds {
            return Err(Error::Conflict);
        }
        for guard in &write.guards {
            if !guard.holds(view.get(guard.resource, &guard.key).as_deref()) {
                let resource = view.state.resource(guard.resource).map(|r| Arc::clone(&r.name)).unwrap_or_default();
                return Err(Error::Guard { resource, key: guard.key.clone() });
            }
        }
        let mut content = write.content;
        let allocators = self.shared.allocators.read().unwrap_or_else(PoisonError::into_inner);
        let allocation = match (allocators.get(&write.resource), &mut content) {
            (Some(allocator), Content::Value(value)) => allocator.allocate(Some(value), current.map(|c| &**c)),
            (Some(allocator), Content::Deleted) => allocator.allocate(None, current.map(|c| &**c)),
            // An allocator that was set after the object was encoded has seen nothing of this write.
            (Some(_), Content::Encoded(_)) => return Err(Error::Conflict),
            (None, _) => Ok(Allocation::default()),
        };
        let allocation = allocation.map_err(Error::Allocation)?;
        drop(allocators);
        self.revision += 1;
        let (object, deleted) = match (content, current) {
            (Content::Encoded(encoded), _) => (encoded.finish(write.key, self.revision), false),
            (Content::Value(value), _) => (Encoded::new(&value).finish(write.key, self.revision), false),
            (Content::Deleted, Some(current)) => (current.at_revision(self.revision), true),
            (Content::Deleted, None) => return Err(Error::Conflict),
        };
        Ok((Arc::new(object), deleted, allocation))
    }

    /// The new state of an object that is written with another one; `None` if it stays.
    fn write_record(&mut self, record: AllocationRecord, current: Option<&Arc<Object>>) -> Option<(Arc<Object>, bool)> {
        let revision = self.revision + 1;
        let (object, deleted) = match ((record.change)(current.map(|current| &**current)), current) {
            (RecordChange::Put(value), _) => (Encoded::new(&value).finish(record.key, revision), false),
            (RecordChange::Delete, Some(current)) => (current.at_revision(revision), true),
            (RecordChange::Delete, None) | (RecordChange::Keep, _) => return None,
        };
        self.revision = revision;
        Some((Arc::new(object), deleted))
    }
}
