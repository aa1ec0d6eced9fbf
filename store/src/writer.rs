//! The writer thread: collects waiting writes, checks them, commits them in one transaction, publishes them to readers
//! and acknowledges them.
//!
//! Writes with relaxed durability are published and acknowledged immediately and committed with the next transaction,
//! at the latest by a timer. So the disk always holds an earlier state of the store, and never writes without those
//! before them. After a failed commit the content of the disk is unknown: no write is acknowledged until it holds
//! exactly the published state again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock, mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

use super::{
    Allocators, Counters, Engine, Error, Event, Expected, Health, Key, Object, Record, ResourceId, Rollback, Write,
    state::{State, join_key},
};

type Reply = oneshot::Sender<Result<Arc<Object>, Error>>;

#[derive(Debug)]
pub(super) enum Request {
    Write(Write, Reply),
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

/// State shared by the writer and the handles of the store.
pub(super) struct Shared {
    pub(super) state: Arc<RwLock<State>>,
    pub(super) allocators: Allocators,
    pub(super) revision_tx: tokio_watch::Sender<u64>,
    pub(super) health_tx: tokio_watch::Sender<Health>,
}

/// A write that passed its checks.
struct Accepted {
    event: Event,
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
    floor: u64,
    /// The latest change of each resource.
    changed: BTreeMap<ResourceId, u64>,
    /// The resources whose latest change is not on disk.
    unsynced_resources: BTreeSet<ResourceId>,
    /// Acknowledged writes that are not on disk.
    unsynced: BTreeMap<String, Option<Bytes>>,
    unsynced_bytes: usize,
    flush: Duration,
    flush_at: Option<Instant>,
    /// Why the content of the disk may differ from the published state.
    failing: Option<String>,
    /// Earliest time of the next restore, which reads and rewrites the whole file.
    restore_at: Instant,
    /// The last logged failure: further equal ones are not logged.
    last_logged: Option<String>,
}

impl Writer {
    pub(super) fn new(engine: Box<dyn Engine>, counters: &Counters, shared: Shared, flush: Duration) -> Self {
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let (mut changed, mut unsynced_resources) = (BTreeMap::new(), BTreeSet::new());
        for (id, resource) in state.each_resource().filter(|(_, r)| r.compacted_revision > 0) {
            changed.insert(id, resource.compacted_revision);
            if counters.changed.get(&*resource.name) != Some(&resource.compacted_revision) {
                unsynced_resources.insert(id);
            }
        }
        let revision = state.revision;
        drop(state);
        Self {
            engine,
            shared,
            revision,
            ceiling: counters.ceiling,
            floor: counters.floor,
            unsynced_resources,
            changed,
            unsynced: BTreeMap::new(),
            unsynced_bytes: 0,
            flush,
            flush_at: None,
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
            for request in std::iter::once(first).chain(requests.try_iter().take(MAX_BATCH_WRITES - 1)) {
                match request {
                    Request::Write(write, reply) => writes.push((write, reply)),
                    Request::Close(reply) => {
                        closing = Some(reply);
                        break;
                    }
                }
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

    fn write(&mut self, writes: Vec<(Write, Reply)>) {
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
        let records: Vec<Record> = accepted.iter().map(|a| self.record_of(&a.event)).collect();
        let bytes: usize = records.iter().map(|r| r.bytes.as_ref().map_or(0, Bytes::len)).sum();
        let room = self.unsynced.len() + records.len() <= MAX_UNSYNCED_WRITES
            && self.unsynced_bytes.saturating_add(bytes) <= MAX_UNSYNCED_BYTES;
        if all_relaxed && room && self.revision <= self.ceiling {
            self.unsynced_bytes += bytes;
            self.unsynced.extend(records.into_iter().map(|r| (r.key, r.bytes)));
            self.flush_at.get_or_insert_with(|| Instant::now() + self.flush);
            self.unsynced_resources.extend(accepted.iter().map(|a| a.event.resource));
            self.publish(accepted);
            return;
        }
        let changed = accepted.iter().map(|a| (a.event.resource, a.event.object.revision)).collect();
        match self.commit(records, changed, self.revision + REVISION_HEADROOM) {
            Ok(()) => self.publish(accepted),
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

    /// Checks writes in order, each seeing those before it; refused ones are answered immediately. Also returns whether
    /// all accepted ones have relaxed durability.
    fn check(&mut self, writes: Vec<(Write, Reply)>) -> (Vec<Accepted>, bool) {
        let allocators = self.shared.allocators.read().unwrap_or_else(PoisonError::into_inner).clone();
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let mut pending: HashMap<(ResourceId, Key), Option<Arc<Object>>> = HashMap::new();
        let (mut accepted, mut all_relaxed) = (Vec::new(), true);
        for (mut write, reply) in writes {
            let slot = (write.resource, write.key.clone());
            let current = match pending.get(&slot) {
                Some(object) => object.clone(),
                None => state.objects(write.resource).and_then(|o| o.get(&write.key)).cloned(),
            };
            let holds = match (write.expected, &current) {
                (Expected::Absent, None) => true,
                (Expected::Revision(wanted), Some(object)) => object.revision == wanted,
                _ => false,
            };
            if !holds {
                let _ = reply.send(Err(Error::Conflict));
                continue;
            }
            let allocated = allocators
                .get(&write.resource)
                .map(|allocator| allocator.allocate(write.value.as_mut(), current.as_deref()))
                .transpose();
            let rollback = match allocated {
                Ok(rollback) => rollback.flatten(),
                Err(refusal) => {
                    let _ = reply.send(Err(Error::Allocation(refusal)));
                    continue;
                }
            };
            self.revision += 1;
            let options = state.resource(write.resource).map(|r| &r.options);
            all_relaxed &= options.is_some_and(|o| o.relaxed_durability.holds(&write.key.namespace));
            let deleted = write.value.is_none();
            let value = write.value.unwrap_or_else(|| current.as_ref().map(|o| o.value()).unwrap_or_default());
            let object = Arc::new(encode(write.key, value, self.revision));
            pending.insert(slot, (!deleted).then(|| Arc::clone(&object)));
            let event = Event { resource: write.resource, object, previous: current, deleted };
            accepted.push(Accepted { event, reply, rollback });
        }
        (accepted, all_relaxed)
    }

    /// Publishes writes to readers and acknowledges them.
    fn publish(&mut self, accepted: Vec<Accepted>) {
        let mut replies = Vec::with_capacity(accepted.len());
        {
            let now = Instant::now();
            let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
            for Accepted { event, reply, .. } in accepted {
                replies.push((reply, Arc::clone(&event.object)));
                self.changed.insert(event.resource, event.object.revision);
                state.publish(event, now);
            }
            state.revision = self.revision;
        }
        self.shared.revision_tx.send_replace(self.revision);
        for (reply, object) in replies {
            let _ = reply.send(Ok(object));
        }
    }

    /// Commits unsynced writes and `records`.
    fn commit(&mut self, records: Vec<Record>, changed: BTreeMap<ResourceId, u64>, ceiling: u64) -> Result<(), Error> {
        let mut all = self.unsynced.clone();
        all.extend(records.into_iter().map(|r| (r.key, r.bytes)));
        let all: Vec<Record> = all.into_iter().map(|(key, bytes)| Record { key, bytes }).collect();
        let unsynced = self.unsynced_resources.iter().filter_map(|id| Some((*id, *self.changed.get(id)?)));
        let changed = self.named(unsynced.chain(changed));
        let counters = Counters { revision: self.revision, ceiling, floor: self.floor, changed };
        self.engine.commit(&all, &counters)?;
        self.mark_synced(ceiling);
        Ok(())
    }

    /// Everything published so far is on disk.
    fn mark_synced(&mut self, ceiling: u64) {
        self.ceiling = ceiling;
        self.unsynced_resources.clear();
        self.unsynced.clear();
        self.unsynced_bytes = 0;
        self.flush_at = None;
    }

    /// Flushes unsynced writes and retries a failed disk.
    fn on_timer(&mut self) {
        if self.recover().is_ok()
            && self.flush_at.is_some()
            && let Err(error) = self.commit(Vec::new(), BTreeMap::new(), self.revision + REVISION_HEADROOM)
        {
            self.on_commit_failure(&error);
        }
    }

    /// Flushes everything and records a clean end.
    fn close(&mut self) -> Result<(), Error> {
        self.restore_at = Instant::now();
        self.recover()?;
        if self.unsynced.is_empty() && self.unsynced_resources.is_empty() && self.ceiling == self.revision {
            return Ok(());
        }
        self.commit(Vec::new(), BTreeMap::new(), self.revision).inspect_err(|error| {
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
        let (wanted, ceiling) = (self.published(), self.revision + REVISION_HEADROOM);
        let changed = self.named(self.changed.iter().map(|(id, at)| (*id, *at)));
        let counters = Counters { revision: self.revision, ceiling, floor: self.floor, changed };
        let restored = self.engine.restore(&wanted, &counters);
        self.restore_at = Instant::now() + (begun.elapsed() * 10).clamp(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        if let Err(error) = restored {
            let why = error.to_string();
            self.shared.health_tx.send_replace(Health::Failing(why.clone()));
            self.failing = Some(why.clone());
            return Err(Error::RolledBack(why));
        }
        self.mark_synced(ceiling);
        self.failing = None;
        self.last_logged = None;
        self.shared.health_tx.send_replace(Health::Serving);
        tracing::info!("disk accepts writes again");
        Ok(())
    }

    /// All records of the published state.
    fn published(&self) -> BTreeMap<String, Bytes> {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = BTreeMap::new();
        for (_, resource) in state.each_resource() {
            let objects = resource.objects.iter();
            all.extend(objects.map(|(key, object)| (join_key(&resource.name, key), object.bytes.clone())));
        }
        all
    }

    /// Revisions by the names of their resources.
    fn named(&self, revisions: impl Iterator<Item = (ResourceId, u64)>) -> BTreeMap<String, u64> {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        revisions.filter_map(|(id, at)| Some((state.resource(id)?.name.to_string(), at))).collect()
    }

    fn record_of(&self, event: &Event) -> Record {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let name = state.resource(event.resource).map_or("", |r| &r.name);
        let bytes = (!event.deleted).then(|| event.object.bytes.clone());
        Record { key: join_key(name, &event.object.key), bytes }
    }
}

fn encode(key: Key, mut value: Value, revision: u64) -> Object {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
    }
    // Stored without spare capacity: objects live long.
    let bytes = value.to_string().into_bytes().into_boxed_slice().into();
    Object { key, revision, bytes }
}
