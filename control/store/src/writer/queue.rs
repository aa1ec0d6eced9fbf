//! What waits for the writer thread: writes, the end of a commit, and the end of the store. One lock takes all of it, and
//! the writer is woken only when it has enough to do.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Prepared, Reply, commit::Committed};
use crate::Error;

/// Writes that wait for the writer; senders wait when there are so many.
const CAPACITY: usize = 1024;

/// A write that waits.
pub(super) type Queued = (Prepared, Reply);

/// All that has arrived since the last look.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) writes: Vec<Queued>,
    pub(super) committed: Option<Committed>,
    pub(super) closing: Option<oneshot::Sender<Result<(), Error>>>,
    /// No handle of the store is left.
    pub(super) is_abandoned: bool,
    /// The committing thread has ended, and with it the engine.
    pub(super) is_broken: bool,
}

struct Inner {
    arrived: Arrived,
    permits: Vec<OwnedSemaphorePermit>,
    /// Number of writes at which the writer is woken; 0 while it does not wait.
    wake_at: usize,
    /// Later writes are refused.
    refuses: bool,
}

/// Shared by the handles of a store, its writer and its committing thread.
pub(super) struct Queue {
    inner: Mutex<Inner>,
    wake: Condvar,
    room: Arc<Semaphore>,
}

impl Queue {
    pub(super) fn new() -> Self {
        let inner = Inner { arrived: Arrived::default(), permits: Vec::new(), wake_at: 0, refuses: false };
        Self { inner: Mutex::new(inner), wake: Condvar::new(), room: Arc::new(Semaphore::new(CAPACITY)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a write; waits for room.
    pub(super) async fn push(&self, write: Queued) -> Result<(), Error> {
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| Error::Closed)?;
        let mut inner = self.lock();
        if inner.refuses {
            return Err(Error::Closed);
        }
        inner.arrived.writes.push(write);
        inner.permits.push(permit);
        if inner.wake_at > 0 && inner.arrived.writes.len() >= inner.wake_at {
            inner.wake_at = 0;
            drop(inner);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Asks the writer to end after the writes so far.
    pub(super) fn close(&self, reply: oneshot::Sender<Result<(), Error>>) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.refuses {
            return Err(Error::Closed);
        }
        inner.refuses = true;
        inner.arrived.closing = Some(reply);
        self.notify(inner);
        Ok(())
    }

    pub(super) fn committed(&self, committed: Committed) {
        let mut inner = self.lock();
        inner.arrived.committed = Some(committed);
        self.notify(inner);
    }

    /// The committing thread ends.
    pub(super) fn break_off(&self) {
        let mut inner = self.lock();
        inner.arrived.is_broken = true;
        self.notify(inner);
    }

    fn notify(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.wake_at = 0;
        drop(inner);
        self.wake.notify_one();
    }

    /// Refuses later writes, and those still queued.
    pub(super) fn refuse(&self) {
        let mut inner = self.lock();
        inner.refuses = true;
        let (arrived, permits) = (std::mem::take(&mut inner.arrived), std::mem::take(&mut inner.permits));
        drop(inner);
        self.room.close();
        // Outside the lock: the senders are woken.
        drop((arrived, permits));
    }

    /// Takes all that has arrived; waits for so many writes, or for anything else, until a time.
    pub(super) fn take(&self, writes: usize, until: Option<Instant>) -> Arrived {
        let mut inner = self.lock();
        loop {
            let arrived = &inner.arrived;
            let ends = arrived.closing.is_some() || arrived.is_abandoned || arrived.is_broken;
            if ends || arrived.committed.is_some() || arrived.writes.len() >= writes.max(1) {
                break;
            }
            inner.wake_at = writes.max(1);
            let Some(until) = until else {
                inner = self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inner = self.wake.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        inner.wake_at = 0;
        let (arrived, permits) = (std::mem::take(&mut inner.arrived), std::mem::take(&mut inner.permits));
        drop(inner);
        drop(permits);
        arrived
    }
}

/// The side of the store's handles: when the last of them goes, the writer ends.
pub(crate) struct Sender(pub(super) Arc<Queue>);

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.arrived.is_abandoned = true;
        self.0.notify(inner);
    }
}

impl Sender {
    /// Hands a write to the writer.
    pub(crate) async fn write(&self, write: Prepared, reply: Reply) -> Result<(), Error> {
        self.0.push((write, reply)).await
    }

    /// Ends the writer.
    pub(crate) fn close(&self, reply: oneshot::Sender<Result<(), Error>>) -> Result<(), Error> {
        self.0.close(reply)
    }
}
