//! The committing thread: has the engine while a transaction is on its way to the disk, so that the writer can check the
//! writes of the next one in the meantime.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use super::{
    super::{Counters, Engine, Error, Record},
    queue::Queue,
};

/// Records and counters that are durable together or not at all.
pub(super) struct Transaction {
    /// First those that were published before, with relaxed durability: so many.
    pub(super) records: Vec<Record>,
    pub(super) published: usize,
    pub(super) counters: Counters,
}

/// A transaction and how it ended.
pub(super) struct Committed {
    pub(super) engine: Box<dyn Engine>,
    pub(super) transaction: Transaction,
    pub(super) result: Result<(), Error>,
    /// The time that the disk took.
    pub(super) took: Duration,
}

impl Committed {
    /// Commits a transaction on this thread.
    pub(super) fn of(mut engine: Box<dyn Engine>, transaction: Transaction) -> Self {
        let begun = Instant::now();
        let result = engine.commit(&transaction.records, &transaction.counters);
        Self { engine, transaction, result, took: begun.elapsed() }
    }
}

type Job = (Box<dyn Engine>, Transaction);

/// The thread, which ends with this handle.
pub(super) struct Committer {
    jobs: mpsc::Sender<Job>,
}

/// Says that the thread has ended, also by a panic.
struct Ending(Arc<Queue>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.break_off();
    }
}

impl Committer {
    /// Starts the thread, which answers to a queue.
    pub(super) fn start(queue: Arc<Queue>) -> std::io::Result<Self> {
        let (jobs, received) = mpsc::channel::<Job>();
        let run = move || {
            let ending = Ending(queue);
            for (engine, transaction) in received {
                ending.0.committed(Committed::of(engine, transaction));
            }
        };
        std::thread::Builder::new().name("store-commit".to_owned()).spawn(run)?;
        Ok(Self { jobs })
    }

    /// Begins to commit. Without the thread the queue says so.
    pub(super) fn begin(&self, engine: Box<dyn Engine>, transaction: Transaction) {
        let _ = self.jobs.send((engine, transaction));
    }
}
