//! For whom a lane works: however much one owner asks for, the others have a thread and room in the queue.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many of a lane's threads one owner may have at a time: all but one.
pub(super) const fn threads_of_one(threads: usize) -> usize {
    if threads > 1 { threads - 1 } else { 1 }
}

/// Whether an owner may ask for more, of whose work so much waits or is done: it may fill half of the queue.
pub(super) const fn has_room(queue: usize, of_owner: usize) -> bool {
    of_owner <= queue / 2
}

/// The owners of what a lane does, and of what waits for it.
#[derive(Debug)]
pub(super) struct Owners(Mutex<BTreeMap<String, Owner>>);

/// One of them.
#[derive(Debug)]
struct Owner {
    threads: Arc<Semaphore>,
    /// How much of its work is done or waits.
    work: usize,
}

/// A piece of work of an owner, until this is dropped.
pub(super) struct Turn {
    owners: &'static Owners,
    owner: String,
    threads: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Owners {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Notes one more piece of work of an owner, for a lane of so many threads.
    ///
    /// # Errors
    /// How much of its work there is already, if that is too much.
    pub(super) fn join(&'static self, owner: &str, threads: usize, queue: usize) -> Result<Turn, usize> {
        let mut known = self.0.lock();
        let of = known
            .entry(owner.to_owned())
            .or_insert_with(|| Owner { threads: Arc::new(Semaphore::new(threads_of_one(threads))), work: 0 });
        if !has_room(queue, of.work) {
            return Err(of.work);
        }
        of.work += 1;
        Ok(Turn { owners: self, owner: owner.to_owned(), threads: Arc::clone(&of.threads), permit: None })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Turn {
    /// Waits until the owner may have another thread.
    pub(super) async fn begin(&mut self) {
        // The semaphore is never closed.
        self.permit = Arc::clone(&self.threads).acquire_owned().await.ok();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.permit = None;
        let mut known = self.owners.0.lock();
        if let Some(of) = known.get_mut(&self.owner) {
            of.work -= 1;
            if of.work == 0 {
                known.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_leaves_a_thread_and_half_of_the_queue_to_the_others() {
        for (threads, of_one) in [(1, 1), (2, 1), (3, 2), (8, 7)] {
            assert_eq!(threads_of_one(threads), of_one, "{threads}");
        }
        for (queue, of_owner, wanted) in
            [(256, 0, true), (256, 128, true), (256, 129, false), (1, 0, true), (1, 1, false)]
        {
            assert_eq!(has_room(queue, of_owner), wanted, "{queue} {of_owner}");
        }
    }
}
