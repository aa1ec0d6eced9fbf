//! What a write must fulfil: its precondition, its guards, its companions, its allocations. Each sees the writes before it.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Instant,
};

use super::{
    super::{
        Allocation, Change, Companion, Encoded, Error, Event, Expected, Key, MAX_OBJECT_BYTES, Object, ResourceId,
    },
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
            let Checked { object, deleted, allocation, decided } = match self.check_one(&view, write, current.as_ref())
            {
                Ok(checked) => checked,
                Err(error) => {
                    let _ = reply.send(Err(error));
                    continue;
                }
            };
            let Allocation { rollback, companions } = allocation;
            let accept = |writer: &mut Self, view: &mut View<'_>, written: Written, reply, rollback| {
                let Written { resource, object, current, deleted } = written;
                let options = state.resource(resource).map(|r| &r.options);
                writer.needs_sync |= !options.is_some_and(|o| o.relaxed_durability.holds(&object.key.namespace));
                view.pending.insert(resource, &object, deleted);
                let event = Arc::new(Event::new(resource, object, current, deleted, now, unix_seconds));
                writer.checked.push(Accepted { event, reply, rollback });
            };
            let written = Written { resource, object, current, deleted };
            accept(self, &mut view, written, Some(reply), rollback);
            for decided in decided {
                let Some(written) = self.change(decided) else { continue };
                accept(self, &mut view, written, None, None);
            }
            // Each of these sees those before it.
            for companion in companions {
                let decided = Decided::of(&view, companion);
                let Some(written) = self.change(decided) else { continue };
                accept(self, &mut view, written, None, None);
            }
        }
        self.pending = view.pending;
    }

    /// The new state of the object at a revision of its own, and what becomes of the companions that the write brings.
    fn check_one(&mut self, view: &View<'_>, write: Prepared, current: Option<&Arc<Object>>) -> Result<Checked, Error> {
        let holds = match (write.expected, current) {
            // A missing object cannot be deleted.
            (Expected::Absent, None) => !matches!(write.content, Content::Deleted),
            (Expected::Revision(wanted), Some(object)) => object.revision == wanted,
            _ => false,
        };
        if !holds {
            return Err(Error::Conflict);
        }
        for guard in &write.guards {
            let guarded = view.state.resource(guard.resource);
            let indexes = guarded.map(|resource| resource.options.indexes.as_slice()).unwrap_or_default();
            if !guard.holds(view.get(guard.resource, &guard.key).as_deref(), indexes) {
                let resource = guarded.map(|resource| Arc::clone(&resource.name)).unwrap_or_default();
                return Err(Error::Guard { resource, key: guard.key.clone() });
            }
        }
        let mut decided = Vec::new();
        for companion in write.companions {
            let one = Decided::of(view, companion);
            match &one.decision {
                Decision::Refuse => {
                    let resource = view.state.resource(one.resource).map(|r| Arc::clone(&r.name)).unwrap_or_default();
                    return Err(Error::Guard { resource, key: one.key });
                }
                Decision::Put(encoded) => check_size(encoded.bytes(), one.current.as_ref())?,
                Decision::Keep | Decision::Delete => {}
            }
            decided.push(one);
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
        if !deleted && let Err(error) = check_size(object.bytes.len(), current) {
            if let Some(rollback) = allocation.rollback {
                rollback();
            }
            return Err(error);
        }
        Ok(Checked { object: Arc::new(object), deleted, allocation, decided })
    }

    /// The new state of a companion; `None` if it stays.
    fn change(&mut self, decided: Decided) -> Option<Written> {
        let Decided { resource, key, current, decision } = decided;
        let revision = self.revision + 1;
        let (object, deleted) = match (decision, &current) {
            // Its indexed fields are read when somebody asks for them.
            (Decision::Put(encoded), _) => (encoded.finish(key, revision), false),
            (Decision::Delete, Some(current)) => (current.at_revision(revision), true),
            // The write of an allocator's companion is accepted already.
            (Decision::Delete, None) | (Decision::Keep | Decision::Refuse, _) => return None,
        };
        self.revision = revision;
        Some(Written { resource, object: Arc::new(object), current, deleted })
    }
}

/// Refuses an object that is too large. One that was larger before may shrink, and lose its finalizers.
fn check_size(bytes: usize, current: Option<&Arc<Object>>) -> Result<(), Error> {
    let is_allowed = bytes <= MAX_OBJECT_BYTES || current.is_some_and(|current| bytes <= current.bytes.len());
    if is_allowed { Ok(()) } else { Err(Error::TooLarge { bytes }) }
}

/// A write that may be committed.
struct Checked {
    object: Arc<Object>,
    deleted: bool,
    allocation: Allocation,
    decided: Vec<Decided>,
}

/// What becomes of a companion: a [`Change`] whose object is encoded, so that its size is known.
enum Decision {
    Keep,
    Put(Encoded),
    Delete,
    Refuse,
}

/// A companion, and what becomes of it.
struct Decided {
    resource: ResourceId,
    key: Key,
    current: Option<Arc<Object>>,
    decision: Decision,
}

impl Decided {
    fn of(view: &View<'_>, companion: Companion) -> Self {
        let Companion { resource, key, decide } = companion;
        let current = view.get(resource, &key);
        let decision = match decide(current.as_deref()) {
            Change::Keep => Decision::Keep,
            Change::Put(value) => Decision::Put(Encoded::new(&value)),
            Change::Delete => Decision::Delete,
            Change::Refuse => Decision::Refuse,
        };
        Self { resource, key, current, decision }
    }
}

/// A new state of an object, with the one before.
struct Written {
    resource: ResourceId,
    object: Arc<Object>,
    current: Option<Arc<Object>>,
    deleted: bool,
}
