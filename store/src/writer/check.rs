//! What a write must fulfil: its precondition, its guards, its allocations. Each sees the writes before it.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Instant,
};

use super::{
    super::{Encoded, Error, Event, Expected, Key, Object, ResourceId, Rollback},
    Accepted, Content, Prepared, Reply, Writer, unix_seconds,
};
use crate::state::State;

/// The state as it is after the writes that were accepted so far.
struct View<'a> {
    state: &'a State,
    pending: HashMap<(ResourceId, Key), Option<Arc<Object>>>,
}

impl View<'_> {
    fn get(&self, resource: ResourceId, key: &Key) -> Option<Arc<Object>> {
        // Without a pending write no key has to be copied to look for one.
        let pending = if self.pending.is_empty() { None } else { self.pending.get(&(resource, key.clone())) };
        pending.cloned().unwrap_or_else(|| self.state.get(resource, key).cloned())
    }
}

impl Writer {
    /// Checks writes in order; refused ones are answered immediately. Also returns whether all accepted ones have
    /// relaxed durability.
    pub(super) fn check(&mut self, writes: Vec<(Prepared, Reply)>) -> (Vec<Accepted>, bool) {
        let shared = Arc::clone(&self.shared.state);
        let state = shared.read().unwrap_or_else(PoisonError::into_inner);
        let mut view = View { state: &state, pending: HashMap::new() };
        let (mut accepted, mut all_relaxed) = (Vec::new(), true);
        let (now, unix_seconds) = (Instant::now(), unix_seconds());
        for (write, reply) in writes {
            let (resource, current) = (write.resource, view.get(write.resource, &write.key));
            let (object, deleted, rollback) = match self.check_one(&view, write, current.as_ref()) {
                Ok(checked) => checked,
                Err(error) => {
                    let _ = reply.send(Err(error));
                    continue;
                }
            };
            let options = state.resource(resource).map(|r| &r.options);
            all_relaxed &= options.is_some_and(|o| o.relaxed_durability.holds(&object.key.namespace));
            view.pending.insert((resource, object.key.clone()), (!deleted).then(|| Arc::clone(&object)));
            let event = Arc::new(Event::new(resource, object, current, deleted, now, unix_seconds));
            accepted.push(Accepted { event, reply, rollback });
        }
        (accepted, all_relaxed)
    }

    /// The new state of the object at a revision of its own, and whether it is deleted.
    fn check_one(
        &mut self,
        view: &View<'_>,
        write: Prepared,
        current: Option<&Arc<Object>>,
    ) -> Result<(Arc<Object>, bool, Option<Rollback>), Error> {
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
        let rollback = match (allocators.get(&write.resource), &mut content) {
            (Some(allocator), Content::Value(value)) => allocator.allocate(Some(value), current.map(|c| &**c)),
            (Some(allocator), Content::Deleted) => allocator.allocate(None, current.map(|c| &**c)),
            // An allocator that was set after the object was encoded has seen nothing of this write.
            (Some(_), Content::Encoded(_)) => return Err(Error::Conflict),
            (None, _) => Ok(None),
        };
        let rollback = rollback.map_err(Error::Allocation)?;
        drop(allocators);
        self.revision += 1;
        let (object, deleted) = match (content, current) {
            (Content::Encoded(encoded), _) => (encoded.finish(write.key, self.revision), false),
            (Content::Value(value), _) => (Encoded::new(&value).finish(write.key, self.revision), false),
            (Content::Deleted, Some(current)) => (current.at_revision(self.revision), true),
            (Content::Deleted, None) => return Err(Error::Conflict),
        };
        Ok((Arc::new(object), deleted, rollback))
    }
}
