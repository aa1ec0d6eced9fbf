//! The writer thread: collects waiting writes, checks them, commits them in one transaction, publishes them to readers
//! and acknowledges them. While a transaction is on its way to the disk, the writes of the next one are checked against
//! the state that it will leave; when it fails, they fail with it.
//!
//! Writes with relaxed durability are published and acknowledged immediately and committed with the next transaction,
//! at the latest by a timer. So the disk always holds an earlier state of the store, and never writes without those
//! before them. After a failed commit the content of the disk is unknown: no write is acknowledged until it holds
//! exactly the published state again.

mod check;
mod commit;
mod queue;
mod recover;
mod stalls;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

use super::{
    Allocators, Bounds, Companion, Counters, Encoded, Engine, Error, Event, Expected, Guard, Health, Key, Object,
    Record, ResourceId, Rollback,
    state::{State, unix_seconds},
};

use check::Pending;
use commit::{Committed, Committer, Transaction};
use queue::{Arrived, Queue, Queued};

pub(super) use queue::Sender;
pub(super) use stalls::Stalls;

type Reply = oneshot::Sender<Result<Arc<Object>, Error>>;

/// A write whose object is encoded already, unless an allocator has to fill it in.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) resource: ResourceId,
    pub(super) key: Key,
    pub(super) expected: Expected,
    pub(super) content: Content,
    pub(super) guards: Vec<Guard>,
    pub(super) companions: Vec<Companion>,
}

#[derive(Debug)]
pub(super) enum Content {
    Deleted,
    Value(Value),
    Encoded(Encoded),
}

impl Content {
    /// Its size, as far as it is known before it is encoded.
    fn bytes(&self) -> usize {
        match self {
            Self::Encoded(encoded) => encoded.bytes(),
            Self::Deleted | Self::Value(_) => 0,
        }
    }
}

/// Maximum number of writes in a transaction.
const MAX_BATCH_WRITES: usize = 256;
/// And their size, about: a transaction is one write to the disk, and is in memory as a whole.
const MAX_BATCH_BYTES: usize = 32 << 20;
/// While a transaction is on its way, waiting writes are checked when there are so many: each look wakes a thread.
const CHECK_AT: usize = 16;
/// Revisions that may be assigned before the ceiling on disk must be raised.
const REVISION_HEADROOM: u64 = 10_000;
/// Bounds of the acknowledged writes that are not on disk, by number and size.
const MAX_UNSYNCED_WRITES: usize = 4096;
const MAX_UNSYNCED_BYTES: usize = 4 << 20;
/// How long a commit waits for as many writes as the last one had, as a share of the time that the disk took for it, and
/// at most: the writers of the last commit are just sending their next writes.
const GATHER_SHARE: u32 = 8;
const MAX_GATHER: Duration = Duration::from_micros(500);
/// Size of the latest objects whose events keep their frames.
const MAX_FRAMED_BYTES: usize = 4 << 20;

/// State shared by the writer and the handles of the store.
pub(super) struct Shared {
    pub(super) state: Arc<RwLock<State>>,
    pub(super) allocators: Allocators,
    pub(super) health_tx: tokio_watch::Sender<Health>,
    pub(super) stalls: Arc<Stalls>,
}

/// A write that passed its checks.
struct Accepted {
    event: Arc<Event>,
    /// `None` for a companion of the write before it.
    reply: Option<Reply>,
    rollback: Option<Rollback>,
}

pub(super) struct Writer {
    queue: Arc<Queue>,
    committer: Committer,
    /// `None` while a transaction is on its way.
    engine: Option<Box<dyn Engine>>,
    shared: Shared,
    /// The latest assigned revision, also of failed writes.
    revision: u64,
    /// As on disk.
    ceiling: u64,
    /// Writes that were not checked yet.
    waiting: VecDeque<Queued>,
    /// The writes of the next transaction.
    checked: Vec<Accepted>,
    /// Not all of them have relaxed durability.
    needs_sync: bool,
    /// The writes of the transaction that is on its way.
    in_flight: Vec<Accepted>,
    /// What both change.
    pending: Pending,
    /// Acknowledged writes that are not on disk, in their order.
    unsynced: Vec<Record>,
    unsynced_bytes: usize,
    bounds: Bounds,
    flush_at: Option<Instant>,
    /// Number of writes of the last commit, and the time that the disk took for it.
    last_batch: usize,
    last_commit: Duration,
    /// The latest events, which keep their frames.
    framed: VecDeque<Arc<Event>>,
    framed_bytes: usize,
    /// Why the content of the disk may differ from the published state.
    failing: Option<String>,
    /// Earliest time of the next attempt to restore it.
    restore_at: Instant,
    /// The last logged failure: further equal ones are not logged.
    last_logged: Option<String>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.refuse();
    }
}

/// Starts the threads of a store. The writer runs until the store is closed or every handle is dropped.
pub(super) fn start(engine: Box<dyn Engine>, shared: Shared, bounds: Bounds) -> std::io::Result<Sender> {
    let queue = Arc::new(Queue::new());
    let writer = Writer::new(engine, shared, bounds, &queue)?;
    std::thread::Builder::new().name("store".to_owned()).spawn(move || writer.run())?;
    Ok(Sender(queue))
}

impl Writer {
    fn new(engine: Box<dyn Engine>, shared: Shared, bounds: Bounds, queue: &Arc<Queue>) -> std::io::Result<Self> {
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let (revision, ceiling) = (state.revision, state.synced.ceiling);
        drop(state);
        Ok(Self {
            queue: Arc::clone(queue),
            committer: Committer::start(Arc::clone(queue))?,
            engine: Some(engine),
            shared,
            revision,
            ceiling,
            waiting: VecDeque::new(),
            checked: Vec::new(),
            needs_sync: false,
            in_flight: Vec::new(),
            pending: Pending::default(),
            unsynced: Vec::new(),
            unsynced_bytes: 0,
            bounds,
            flush_at: None,
            last_batch: 0,
            last_commit: Duration::ZERO,
            framed: VecDeque::new(),
            framed_bytes: 0,
            failing: None,
            restore_at: Instant::now(),
            last_logged: None,
        })
    }

    fn run(mut self) {
        let (mut closing, mut ends): (Option<oneshot::Sender<_>>, _) = (None, false);
        loop {
            let is_idle = self.engine.is_some();
            if is_idle && self.waiting.is_empty() {
                if let Some(reply) = closing {
                    let closed = self.close();
                    // The file is closed before this is acknowledged.
                    drop(self);
                    let _ = reply.send(closed);
                    return;
                }
                if ends {
                    let _ = self.close();
                    return;
                }
            }
            let arrived = if is_idle && !self.waiting.is_empty() { Arrived::default() } else { self.next_arrivals() };
            if arrived.is_broken {
                tracing::error!("the thread that commits to the store has ended");
                return;
            }
            if arrived.closing.is_some() {
                closing = arrived.closing;
            }
            ends |= arrived.is_abandoned;
            self.waiting.extend(arrived.writes);
            // What has come by now is in the next transaction, unless it would fail with this one.
            if arrived.committed.as_ref().is_none_or(|committed| committed.result.is_ok()) {
                self.check_waiting();
            }
            if let Some(committed) = arrived.committed {
                self.on_committed(committed);
            }
            self.check_waiting();
            if self.engine.is_some() {
                self.begin(true);
                // Under constant load the timer never fires.
                let due = if self.failing.is_some() { Some(self.restore_at) } else { self.flush_at };
                if self.engine.is_some() && due.is_some_and(|at| at <= Instant::now()) {
                    self.on_timer();
                }
            }
        }
    }

    /// Waits for what there is to do: writes, and as many as the last transaction had for a short time, or the end of
    /// the transaction that is on its way.
    fn next_arrivals(&self) -> Arrived {
        if self.engine.is_none() {
            return self.queue.take(CHECK_AT, None);
        }
        let due = if self.failing.is_some() { Some(self.restore_at) } else { self.flush_at };
        let mut arrived = self.queue.take(1, due);
        let missing = self.last_batch.min(MAX_BATCH_WRITES).saturating_sub(arrived.writes.len());
        if missing > 0 && !arrived.writes.is_empty() && arrived.closing.is_none() {
            let until = Instant::now() + (self.last_commit / GATHER_SHARE).min(MAX_GATHER);
            let more = self.queue.take(missing, Some(until));
            arrived.writes.extend(more.writes);
            arrived.closing = more.closing;
            arrived.is_abandoned |= more.is_abandoned;
            arrived.is_broken |= more.is_broken;
        }
        arrived
    }

    /// Checks as many waiting writes as have room in the next transaction.
    fn check_waiting(&mut self) {
        let room = MAX_BATCH_WRITES.saturating_sub(self.checked.len());
        let mut bytes: usize = self.checked.iter().map(|accepted| accepted.event.object.bytes.len()).sum();
        let mut fits = |write: &Prepared| {
            let is_first = bytes == 0;
            bytes += write.content.bytes();
            is_first || bytes <= MAX_BATCH_BYTES
        };
        let count = self.waiting.iter().take(room).take_while(|(write, _)| fits(write)).count();
        if count == 0 {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        match self.recover() {
            Ok(()) => self.check(waiting.drain(..count)),
            Err(error) => waiting.drain(..count).for_each(|(_, reply)| drop(reply.send(Err(error.clone())))),
        }
        self.waiting = waiting;
    }

    /// Commits the writes that were checked: several on the committing thread, a single one here if it may.
    fn begin(&mut self, may_wait: bool) {
        if self.checked.is_empty() {
            return;
        }
        let accepted = std::mem::take(&mut self.checked);
        let needs_sync = std::mem::take(&mut self.needs_sync);
        let records = self.records_of(&accepted);
        let bytes: usize = records.iter().map(|r| r.object.bytes.len()).sum();
        let has_room = self.unsynced.len() + records.len() <= MAX_UNSYNCED_WRITES
            && self.unsynced_bytes.saturating_add(bytes) <= MAX_UNSYNCED_BYTES;
        if !needs_sync && has_room && self.revision <= self.ceiling {
            self.unsynced_bytes += bytes;
            self.unsynced.extend(records);
            self.flush_at.get_or_insert_with(|| Instant::now() + self.bounds.flush);
            self.publish(accepted, self.revision);
            return;
        }
        let Some(engine) = self.engine.take() else { return };
        let transaction = self.transaction(records, self.revision + REVISION_HEADROOM);
        let writes = accepted.iter().filter(|accepted| accepted.reply.is_some()).count();
        let is_single = may_wait && writes == 1 && self.last_batch <= 1;
        self.last_batch = writes;
        self.in_flight = accepted;
        if is_single {
            self.on_committed(Committed::of(engine, transaction));
        } else {
            self.committer.begin(engine, transaction);
        }
    }

    /// A transaction has ended: the next one begins, and its writes are published and acknowledged, or all fail.
    fn on_committed(&mut self, committed: Committed) {
        let (revision, took) = (committed.transaction.counters.revision, committed.took);
        let accepted = std::mem::take(&mut self.in_flight);
        if let Err(error) = self.settle(committed) {
            self.fail(accepted, &error);
            return;
        }
        self.last_commit = took;
        // The disk does not wait until results are published. But a rewrite may cover only published commits, and
        // writes published without a sync must follow those before them.
        let is_large = self.is_large();
        if self.needs_sync && !is_large {
            self.begin(false);
        }
        self.publish(accepted, revision);
        if is_large {
            self.rewrite();
        }
    }

    /// Everything of this transaction, and what follows from it, was not written.
    fn fail(&mut self, accepted: Vec<Accepted>, error: &Error) {
        let (next, mut replies) = (std::mem::take(&mut self.checked), Vec::new());
        (self.needs_sync, self.pending) = (false, Pending::default());
        for (is_next, accepted) in [(true, next), (false, accepted)] {
            for Accepted { reply, rollback, .. } in accepted.into_iter().rev() {
                rollback.into_iter().for_each(|rollback| rollback());
                replies.extend(reply.map(|reply| (is_next, reply)));
            }
        }
        let outcome = self.on_commit_failure(error);
        for (is_next, reply) in replies.into_iter().rev() {
            let error = if is_next { Error::RolledBack(error.to_string()) } else { outcome.clone() };
            let _ = reply.send(Err(error));
        }
    }

    fn records_of(&self, accepted: &[Accepted]) -> Vec<Record> {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let record = |event: &Event| Record {
            resource: state.resource(event.resource).map(|r| Arc::clone(&r.name)).unwrap_or_default(),
            object: Arc::clone(&event.object),
            deleted: event.deleted,
            unix_seconds: event.unix_seconds,
        };
        accepted.iter().map(|accepted| record(&accepted.event)).collect()
    }

    /// Publishes writes, of which the last has a revision, to readers and acknowledges them.
    fn publish(&mut self, accepted: Vec<Accepted>, revision: u64) {
        {
            let now = Instant::now();
            let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
            for Accepted { event, .. } in &accepted {
                state.publish(event, now);
            }
            state.revision = revision;
        }
        if self.checked.is_empty() && self.in_flight.is_empty() {
            self.pending.clear();
        } else {
            accepted.iter().for_each(|accepted| self.pending.remove(&accepted.event));
        }
        {
            // Whom this wakes must not wait for the lock that wrote.
            let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
            for Accepted { event, .. } in &accepted {
                if let Some(resource) = state.resource(event.resource) {
                    resource.dispatcher.wake(event, &resource.options.indexes);
                }
            }
        }
        for Accepted { event, reply, .. } in accepted {
            if let Some(reply) = reply {
                let _ = reply.send(Ok(Arc::clone(&event.object)));
            }
            self.framed_bytes += event.object.bytes.len();
            self.framed.push_back(event);
        }
        while self.framed_bytes > MAX_FRAMED_BYTES
            && let Some(event) = self.framed.pop_front()
        {
            self.framed_bytes -= event.object.bytes.len();
            event.drop_frames();
        }
    }

    /// Unsynced writes and `records`, which are written next.
    fn transaction(&mut self, records: Vec<Record>, ceiling: u64) -> Transaction {
        self.shared.stalls.begun(Instant::now());
        let counters = self.counters(ceiling);
        let mut all = std::mem::take(&mut self.unsynced);
        let published = all.len();
        if published == 0 {
            all = records;
        } else {
            all.extend(records);
        }
        Transaction { records: all, published, counters }
    }

    /// Takes back the engine, and what the transaction says of the disk.
    fn settle(&mut self, committed: Committed) -> Result<(), Error> {
        let Committed { engine, transaction, result, .. } = committed;
        let Transaction { mut records, published, counters } = transaction;
        self.engine = Some(engine);
        if let Err(error) = result {
            records.truncate(published);
            self.unsynced = records;
            return Err(error);
        }
        // Everything published so far is on disk.
        self.shared.stalls.succeeded(Instant::now());
        self.ceiling = counters.ceiling;
        self.unsynced_bytes = 0;
        self.flush_at = None;
        if !counters.compacted.is_empty() {
            let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
            // Others may have come since.
            let synced = |id: &ResourceId, state: &State| {
                state.resource(*id).is_some_and(|r| counters.compacted.contains_key(&*r.name))
            };
            let unsynced = std::mem::take(&mut state.unsynced_compactions);
            state.unsynced_compactions = unsynced.into_iter().filter(|id| !synced(id, &state)).collect();
        }
        Ok(())
    }

    /// Commits unsynced writes on this thread.
    fn commit(&mut self, ceiling: u64) -> Result<(), Error> {
        let Some(engine) = self.engine.take() else { return Ok(()) };
        let transaction = self.transaction(Vec::new(), ceiling);
        self.settle(Committed::of(engine, transaction))
    }

    fn counters(&self, ceiling: u64) -> Counters {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let unsynced = state.unsynced_compactions.iter().filter_map(|id| state.resource(*id));
        let compacted: BTreeMap<String, u64> = unsynced.map(|r| (r.name.to_string(), r.compacted_revision)).collect();
        Counters { revision: self.revision, ceiling, floor: state.floor, compacted }
    }

    /// Whether the engine is full of superseded records.
    fn is_large(&self) -> bool {
        let size = self.engine.as_ref().map_or(0, |engine| engine.size());
        let needed = || self.shared.state.read().unwrap_or_else(PoisonError::into_inner).live_bytes() as u64;
        let least = self.bounds.rewrite_bytes;
        size >= least && size >= least + 3 * needed()
    }

    /// Begins to rewrite the engine from what is published, which is all that it has.
    fn rewrite(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let (records, counters) = state.records();
        let revision = state.revision;
        drop(state);
        engine.rewrite(records, Counters { revision, ceiling: self.ceiling, ..counters });
    }

    /// Flushes unsynced writes and retries a failed disk.
    fn on_timer(&mut self) {
        if self.recover().is_ok()
            && self.flush_at.is_some()
            && let Err(error) = self.commit(self.revision + REVISION_HEADROOM)
        {
            self.on_commit_failure(&error);
        }
    }

    /// Flushes everything and records a clean end.
    fn close(&mut self) -> Result<(), Error> {
        self.restore_at = Instant::now();
        self.recover()?;
        if self.unsynced.is_empty() && self.ceiling == self.revision {
            return Ok(());
        }
        self.commit(self.revision).inspect_err(|error| {
            tracing::error!(%error, "failed to write latest changes to disk");
        })
    }
}
