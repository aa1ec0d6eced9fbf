//! Watches. A watcher holds only a revision: unread changes wait in the window that all watchers share, so a slow
//! watcher costs nothing, and fails when the window has moved past it.

use std::sync::{Arc, PoisonError};

use super::{Error, Object, ResourceId, Store};

/// One change of one object.
#[derive(Debug, Clone)]
pub struct Event {
    /// The resource.
    pub resource: ResourceId,
    /// The new state; for a deletion the last one, with the deletion's revision.
    pub object: Arc<Object>,
    /// The previous state, if any.
    pub previous: Option<Arc<Object>>,
    /// The object was deleted.
    pub deleted: bool,
}

/// A reader of the events of one resource.
#[derive(Debug)]
pub struct Watch {
    store: Store,
    resource: ResourceId,
    after: u64,
    /// Maximum number of changes per read.
    pub(super) batch: usize,
}

impl Watch {
    pub(super) fn new(store: Store, resource: ResourceId, after: u64) -> Self {
        Self { store, resource, after, batch: 256 }
    }

    /// The revision up to which all changes were returned.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.after
    }

    /// Waits for changes; at least one unless the resource did not change while others did.
    ///
    /// # Errors
    /// [`Error::TooOld`] when this reader was too slow, [`Error::Closed`] when the store ends.
    pub async fn next(&mut self) -> Result<Vec<Event>, Error> {
        loop {
            // Marked as seen before reading, so that a concurrent change wakes the wait below.
            self.store.revision.borrow_and_update();
            let found = self.read()?;
            if !found.is_empty() {
                return Ok(found);
            }
            self.store.revision.changed().await.map_err(|_| Error::Closed)?;
        }
    }

    fn read(&mut self) -> Result<Vec<Event>, Error> {
        let state = self.store.state.read().unwrap_or_else(PoisonError::into_inner);
        state.check_compacted(self.resource, self.after)?;
        let start = state.watch_window.partition_point(|(_, e)| e.object.revision <= self.after);
        let mut found = Vec::new();
        for (_, event) in state.watch_window.range(start..) {
            self.after = event.object.revision;
            if event.resource == self.resource {
                found.push(event.clone());
                if found.len() == self.batch {
                    return Ok(found);
                }
            }
        }
        self.after = self.after.max(state.revision);
        Ok(found)
    }
}
