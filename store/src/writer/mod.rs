//! The writer thread: collects waiting writes, checks them, commits them in one transaction, publishes them to readers
//! and acknowledges them.
//!
//! Writes with relaxed durability are published and acknowledged immediately and committed with the next transaction,
//! at the latest by a timer. So the disk always holds an earlier state of the store, and never writes without those
//! before them. After a failed commit the content of the disk is unknown: no write is acknowledged until it holds
//! exactly the published state again.

mod check;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, PoisonError, RwLock, mpsc},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

use super::{
    Allocators, Counters, Encoded, Engine, Error, Event, Expected, Guard, Health, Key, Object, Record, ResourceId,
    Rollback,
    state::{State, unix_seconds},
};

type Reply = oneshot::Sender<Result<Arc<Object>, Error>>;

/// A write whose object is encoded already, unless an allocator has to fill it in.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) resource: ResourceId,
    pub(super) key: Key,
    pub(super) expected: Expected,
    pub(super) content: Content,
    pub(super) guards: Vec<Guard>,
}

#[derive(Debug)]
pub(super) enum Content {
    Deleted,
    Value(Value),
    Encoded(Encoded),
}

#[derive(Debug)]
pub(super) enum Request {
    Write(Prepared, Reply),
    Close(oneshot::Sender<Result<(), Error>>),
}

/// Maximum number of writes in a transaction.
const MAX_BATCH_WRITES: usize = 256;
/// Revisions that may be assigned before the ceiling on disk must be raised.
const REVISION_HEADROOM: u64 = 10_000;
/// Bounds of the acknowledged writes that are not on disk, by number and size.
const MAX_UNSYNCED_WRITES: usize = 4096;
const MAX_UNSYNCED_BYTES: usize = 4 << 20;
/// Bounds of the retry interval after a failed write.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How long a commit waits for as many writes as the last one had, as a share of the time that the disk took for it, and
/// at most: the writers of the last commit are just sending their next writes.
const GATHER_SHARE: u32 = 8;
const MAX_GATHER: Duration = Duration::from_micros(500);
/// Size of the latest objects whose events keep their frames.
const MAX_FRAMED_BYTES: usize = 4 << 20;
/// The log is rewritten when it is larger than this and three times what is needed of it.
const MIN_REWRITE_BYTES: u64 = 64 << 20;

/// State shared by the writer and the handles of the store.
pub(super) struct Shared {
    pub(super) state: Arc<RwLock<State>>,
    pub(super) allocators: Allocators,
    pub(super) health_tx: tokio_watch::Sender<Health>,
}

/// A write that passed its checks.
struct Accepted {
    event: Arc<Event>,
    reply: Reply,
    rollback: Option<Rollback>,
}

pub(super) struct Writer {
    engine: Box<dyn Engine>,
    shared: Shared,
    /// The latest assigned revision, also of failed writes.
    revision: u64,
    /// As on disk.
    ceiling: u64,
    /// Acknowledged writes that are not on disk, in their order.
    unsynced: Vec<Record>,
    unsynced_bytes: usize,
    flush: Duration,
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

impl Writer {
    pub(super) fn new(engine: Box<dyn Engine>, shared: Shared, flush: Duration) -> Self {
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let (revision, ceiling) = (state.revision, state.synced.ceiling);
        drop(state);
        Self {
            engine,
            shared,
            revision,
            ceiling,
            unsynced: Vec::new(),
            unsynced_bytes: 0,
            flush,
            flush_at: None,
            last_batch: 0,
            last_commit: Duration::ZERO,
            framed: VecDeque::new(),
            framed_bytes: 0,
            failing: None,
            restore_at: Instant::now(),
            last_logged: None,
        }
    }

    /// Runs until the store is closed or every handle is dropped.
    pub(super) fn run(mut self, requests: &mpsc::Receiver<Request>) {
        loop {
            let due = if self.failing.is_some() { Some(self.restore_at) } else { self.flush_at };
            let first = match due {
                None => requests.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                Some(at) => requests.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            let first = match first {
                Ok(first) => first,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.on_timer();
                    continue;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let _ = self.close();
                    return;
                }
            };
            let (mut writes, mut closing) = (Vec::new(), None);
            let gather_until = Instant::now() + (self.last_commit / GATHER_SHARE).min(MAX_GATHER);
            let mut next = Some(first);
            while let Some(request) = next {
                match request {
                    Request::Write(write, reply) => writes.push((write, reply)),
                    Request::Close(reply) => {
                        closing = Some(reply);
                        break;
                    }
                }
                next = match writes.len() {
                    MAX_BATCH_WRITES.. => None,
                    length if length >= self.last_batch => requests.try_recv().ok(),
                    _ => requests.recv_timeout(gather_until.saturating_duration_since(Instant::now())).ok(),
                };
            }
            if !writes.is_empty() {
                self.write(writes);
            }
            if let Some(reply) = closing {
                let closed = self.close();
                // The file is closed before this is acknowledged.
                drop(self);
                let _ = reply.send(closed);
                return;
            }
            // Under constant load the timer never fires.
            if self.flush_at.is_some_and(|at| at <= Instant::now()) {
                self.on_timer();
            }
        }
    }

    fn write(&mut self, writes: Vec<(Prepared, Reply)>) {
        if let Err(error) = self.recover() {
            for (_, reply) in writes {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
        let (accepted, all_relaxed) = self.check(writes);
        if accepted.is_empty() {
            return;
        }
        let records = self.records_of(&accepted);
        let bytes: usize = records.iter().map(|r| r.object.bytes.len()).sum();
        let room = self.unsynced.len() + records.len() <= MAX_UNSYNCED_WRITES
            && self.unsynced_bytes.saturating_add(bytes) <= MAX_UNSYNCED_BYTES;
        if all_relaxed && room && self.revision <= self.ceiling {
            self.unsynced_bytes += bytes;
            self.unsynced.extend(records);
            self.flush_at.get_or_insert_with(|| Instant::now() + self.flush);
            self.publish(accepted);
            return;
        }
        self.last_batch = accepted.len();
        let begun = Instant::now();
        match self.commit(records, self.revision + REVISION_HEADROOM) {
            Ok(()) => {
                self.last_commit = begun.elapsed();
                self.publish(accepted);
                self.rewrite_if_large();
            }
            Err(error) => {
                let mut replies = Vec::with_capacity(accepted.len());
                for Accepted { reply, rollback, .. } in accepted.into_iter().rev() {
                    rollback.into_iter().for_each(|rollback| rollback());
                    replies.push(reply);
                }
                let error = self.on_commit_failure(&error);
                for reply in replies.into_iter().rev() {
                    let _ = reply.send(Err(error.clone()));
                }
            }
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

    /// Publishes writes to readers and acknowledges them.
    fn publish(&mut self, accepted: Vec<Accepted>) {
        {
            let now = Instant::now();
            let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
            for Accepted { event, .. } in &accepted {
                state.publish(event, now);
            }
            state.revision = self.revision;
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
            let _ = reply.send(Ok(Arc::clone(&event.object)));
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

    /// Commits unsynced writes and `records`.
    fn commit(&mut self, records: Vec<Record>, ceiling: u64) -> Result<(), Error> {
        let counters = self.counters(ceiling);
        if self.unsynced.is_empty() {
            self.engine.commit(&records, &counters)?;
        } else {
            let length = self.unsynced.len();
            self.unsynced.extend(records);
            if let Err(error) = self.engine.commit(&self.unsynced, &counters) {
                self.unsynced.truncate(length);
                return Err(error);
            }
        }
        // Everything published so far is on disk.
        self.ceiling = ceiling;
        self.unsynced = Vec::new();
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

    fn counters(&self, ceiling: u64) -> Counters {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let unsynced = state.unsynced_compactions.iter().filter_map(|id| state.resource(*id));
        let compacted: BTreeMap<String, u64> = unsynced.map(|r| (r.name.to_string(), r.compacted_revision)).collect();
        Counters { revision: self.revision, ceiling, floor: state.floor, compacted }
    }

    /// Begins to rewrite an engine that is full of superseded records.
    fn rewrite_if_large(&mut self) {
        let size = self.engine.size();
        if size < MIN_REWRITE_BYTES {
            return;
        }
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        if size < MIN_REWRITE_BYTES + 3 * state.live_bytes() as u64 {
            return;
        }
        let (records, counters) = state.records();
        drop(state);
        self.engine.rewrite(records, Counters { revision: self.revision, ceiling: self.ceiling, ..counters });
    }

    /// Flushes unsynced writes and retries a failed disk.
    fn on_timer(&mut self) {
        if self.recover().is_ok()
            && self.flush_at.is_some()
            && let Err(error) = self.commit(Vec::new(), self.revision + REVISION_HEADROOM)
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
        self.commit(Vec::new(), self.revision).inspect_err(|error| {
            tracing::error!(%error, "failed to write latest changes to disk");
        })
    }

    /// After a failed commit: tries to restore the published state at once. Returns the error for the writes of the
    /// commit.
    fn on_commit_failure(&mut self, error: &Error) -> Error {
        let why = error.to_string();
        if self.last_logged.as_ref() != Some(&why) {
            tracing::error!(%error, "failed to write to disk; refusing writes until the disk matches memory again");
            self.last_logged = Some(why.clone());
        }
        self.failing = Some(why.clone());
        self.shared.health_tx.send_replace(Health::Failing(why.clone()));
        match self.recover() {
            Ok(()) => Error::RolledBack(why),
            Err(_) => Error::OutcomeUnknown(why),
        }
    }

    /// Restores the published state on a disk that a failed commit has left unknown; the error is for writes that were
    /// not attempted.
    fn recover(&mut self) -> Result<(), Error> {
        let Some(why) = &self.failing else { return Ok(()) };
        let begun = Instant::now();
        if begun < self.restore_at {
            return Err(Error::RolledBack(why.clone()));
        }
        let restored = self.engine.restore();
        // The counters are written too, which shows that commits work again.
        let restored = restored.and_then(|()| self.commit(Vec::new(), self.revision + REVISION_HEADROOM));
        self.restore_at = Instant::now() + (begun.elapsed() * 10).clamp(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        if let Err(error) = restored {
            let why = error.to_string();
            self.shared.health_tx.send_replace(Health::Failing(why.clone()));
            self.failing = Some(why.clone());
            return Err(Error::RolledBack(why));
        }
        self.failing = None;
        self.last_logged = None;
        self.shared.health_tx.send_replace(Health::Serving);
        tracing::info!("disk accepts writes again");
        Ok(())
    }
}
