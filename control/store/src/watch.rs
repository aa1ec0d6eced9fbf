//! Watches. A watcher holds only a revision: unread events wait in the history that all watchers share, so a slow
//! watcher costs nothing, and fails when the history has moved past it.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use tokio::sync::watch as tokio_watch;

use super::{Error, Object, ResourceId, Scope, Store, state::ResourceState};

/// Number of events per read.
const MAX_BATCH_EVENTS: usize = 256;

type Frames = HashMap<u64, Arc<OnceLock<Bytes>>>;

/// One write, as watchers see it.
pub struct Event {
    /// The resource.
    pub resource: ResourceId,
    /// The new state; for a deletion the last one, with the deletion's revision.
    pub object: Arc<Object>,
    /// The previous state, if any.
    pub previous: Option<Arc<Object>>,
    /// The object was deleted.
    pub deleted: bool,
    pub(crate) at: Instant,
    pub(crate) unix_seconds: u64,
    /// By form; `None` when the event is no longer among the latest: frames would live as long as the history.
    frames: Mutex<Option<Frames>>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, revision) = (&self.object.key, self.object.revision);
        f.debug_struct("Event").field("key", key).field("revision", &revision).field("deleted", &self.deleted).finish()
    }
}

impl Event {
    pub(crate) fn new(
        resource: ResourceId,
        object: Arc<Object>,
        previous: Option<Arc<Object>>,
        deleted: bool,
        at: Instant,
        unix_seconds: u64,
    ) -> Self {
        Self { resource, object, previous, deleted, at, unix_seconds, frames: Mutex::new(Some(Frames::new())) }
    }

    /// The event as watchers of one form send it, encoded by the first of them. The caller numbers the forms: all that
    /// changes the bytes (representation, type of the event, version) is part of the number.
    pub fn frame(&self, form: u64, encode: impl FnOnce() -> Bytes) -> Bytes {
        let cell = {
            let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
            frames.as_mut().map(|frames| Arc::clone(frames.entry(form).or_default()))
        };
        match cell {
            Some(cell) => cell.get_or_init(encode).clone(),
            None => encode(),
        }
    }

    /// Drops the frames for good: who reads the event later encodes it for himself.
    pub(crate) fn drop_frames(&self) {
        *self.frames.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A reader of the events of one resource.
#[derive(Debug)]
pub struct Watch {
    store: Store,
    resource: ResourceId,
    scope: Scope,
    wake: tokio_watch::Receiver<()>,
    after: u64,
    /// Maximum number of events per read.
    pub(crate) batch: usize,
}

impl Watch {
    pub(crate) fn new(
        store: Store,
        resource: ResourceId,
        scope: Scope,
        after: u64,
        wake: tokio_watch::Receiver<()>,
    ) -> Self {
        Self { store, resource, scope, wake, after, batch: MAX_BATCH_EVENTS }
    }

    /// The revision up to which all events were returned, as a bookmark says it. It grows with the writes of other
    /// resources, too.
    #[must_use]
    pub fn revision(&self) -> u64 {
        let state = self.store.state();
        let resource = state.resource(self.resource);
        let unread = resource.is_some_and(|r| {
            self.unread(r).next().is_some()
                || r.dispatcher.forgotten(&self.scope).is_some_and(|forgotten| forgotten > self.after)
        });
        if unread { self.after } else { self.after.max(state.revision) }
    }

    /// Whether events after a revision may be missing in the history, so that a new watch could not begin there.
    #[must_use]
    pub fn is_compacted(&self, revision: u64) -> bool {
        let state = self.store.state();
        state.resource(self.resource).is_some_and(|r| r.compacted_revision > revision)
    }

    /// Whether an object of the resource belongs to the scope.
    #[must_use]
    pub fn has(&self, object: &Object) -> bool {
        let state = self.store.state();
        state.resource(self.resource).is_some_and(|r| self.scope.has_object(object, &r.options.indexes))
    }

    /// Waits for events; returns at least one.
    ///
    /// # Errors
    /// [`Error::TooOld`] when this reader was too slow, [`Error::Closed`] when the store ends.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, Error> {
        loop {
            // Marked as seen before reading, so that a concurrent event wakes the wait below.
            self.wake.borrow_and_update();
            let found = self.read()?;
            if !found.is_empty() {
                return Ok(found);
            }
            tokio::select! {
                changed = self.wake.changed() => changed.map_err(|_| Error::Closed)?,
                () = self.store.ended() => return Err(Error::Closed),
            }
        }
    }

    /// Whether something has happened since the last read.
    #[cfg(test)]
    pub(crate) fn is_woken(&self) -> bool {
        self.wake.has_changed().unwrap_or(true)
    }

    fn read(&mut self) -> Result<Vec<Arc<Event>>, Error> {
        let state = self.store.state();
        let Some(resource) = state.resource(self.resource) else { return Ok(Vec::new()) };
        // Events of other scopes that have left the history are none that this watcher has missed.
        let forgotten = resource.dispatcher.forgotten(&self.scope).unwrap_or(resource.compacted_revision);
        if self.after < forgotten {
            return Err(Error::TooOld { asked: self.after, oldest: forgotten });
        }
        let found: Vec<_> = self.unread(resource).take(self.batch).cloned().collect();
        self.after = match found.last() {
            Some(last) if found.len() == self.batch => last.object.revision,
            _ => self.after.max(state.revision),
        };
        Ok(found)
    }

    /// The events of the scope after those that were returned.
    fn unread<'a>(&'a self, resource: &'a ResourceState) -> impl Iterator<Item = &'a Arc<Event>> {
        let of_scope = resource.dispatcher.events(&self.scope, self.after);
        let all = of_scope.is_none().then(|| resource.history.after(self.after));
        let filtered = all.into_iter().flatten().filter(|event| self.scope.has(event, &resource.options.indexes));
        of_scope.into_iter().flatten().chain(filtered)
    }
}
