//! The thread that owns writing: it gathers what is waiting, checks it, puts it on disk in one
//! transaction, shows it to readers and answers.
//!
//! Deferred writes are shown and answered at once and go to disk with the next transaction, which a clock brings about. So what
//! is on disk is always the store as it once was, and never some writes without those before them. A transaction that fails
//! leaves a disk that nobody knows: nothing more is answered until it holds again exactly what was shown.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock, mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

use super::{
    Change, Claims, Counters, Engine, Error, Expected, Health, Key, Object, Record, StoredType, Undo, Write,
    state::{State, join_key},
};

type Answer = oneshot::Sender<Result<Arc<Object>, Error>>;

#[derive(Debug)]
pub(super) enum Request {
    Write(Write, Answer),
    Close(oneshot::Sender<Result<(), Error>>),
}

/// Writes that share one transaction at most.
const BATCH: usize = 256;
/// Revisions that are given out before the ceiling on disk must be raised.
const HEADROOM: u64 = 10_000;
/// Deferred writes that wait for the disk at most, by number and by size.
const DEFERRED: usize = 4096;
const DEFERRED_BYTES: usize = 4 << 20;
/// A disk that takes no writes is tried again after this long at least, and at most.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// What the writer and the handles of the store have in common.
pub(super) struct Shared {
    pub(super) state: Arc<RwLock<State>>,
    pub(super) claims: Arc<RwLock<Option<Arc<dyn Claims>>>>,
    pub(super) tell: tokio_watch::Sender<u64>,
    pub(super) tell_health: tokio_watch::Sender<Health>,
}

/// A write that may happen.
struct Accepted {
    change: Change,
    answer: Answer,
    undo: Option<Undo>,
}

pub(super) struct Writer {
    engine: Box<dyn Engine>,
    types: Vec<StoredType>,
    shared: Shared,
    /// The latest revision that was given to a write, also to one that failed.
    revision: u64,
    /// As on disk.
    ceiling: u64,
    floor: u64,
    /// The latest change of each type.
    changed: BTreeMap<&'static str, u64>,
    /// Those of them that the disk does not know.
    unwritten: BTreeSet<&'static str>,
    /// What was answered and is not on disk.
    deferred: BTreeMap<String, Option<Bytes>>,
    deferred_bytes: usize,
    flush: Duration,
    flush_at: Option<Instant>,
    /// Why the disk may hold something else than what was shown.
    failing: Option<String>,
    /// Mending it reads and writes all of the file: not before this.
    restore_at: Instant,
    /// What was last told of a write that failed: the next ones fail alike.
    told: Option<String>,
}

impl Writer {
    pub(super) fn new(
        engine: Box<dyn Engine>,
        types: &[StoredType],
        counters: &Counters,
        shared: Shared,
        flush: Duration,
    ) -> Self {
        let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let (revision, changed) = (state.revision, state.compacted.iter().map(|(k, v)| (*k, *v)).collect());
        drop(state);
        let known = |changed: &BTreeMap<&'static str, u64>| -> BTreeSet<&'static str> {
            let differs = |(name, at): &(&&'static str, &u64)| counters.changed.get(**name) != Some(*at);
            changed.iter().filter(|(_, at)| **at > 0).filter(differs).map(|(name, _)| *name).collect()
        };
        Self {
            engine,
            types: types.to_vec(),
            shared,
            revision,
            ceiling: counters.ceiling,
            floor: counters.floor,
            unwritten: known(&changed),
            changed,
            deferred: BTreeMap::new(),
            deferred_bytes: 0,
            flush,
            flush_at: None,
            failing: None,
            restore_at: Instant::now(),
            told: None,
        }
    }

    /// Until it is closed or every handle is gone.
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
                    self.catch_up();
                    continue;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let _ = self.close();
                    return;
                }
            };
            let (mut writes, mut closing) = (Vec::new(), None);
            for request in std::iter::once(first).chain(requests.try_iter().take(BATCH - 1)) {
                match request {
                    Request::Write(write, answer) => writes.push((write, answer)),
                    Request::Close(answer) => {
                        closing = Some(answer);
                        break;
                    }
                }
            }
            if !writes.is_empty() {
                self.write(writes);
            }
            if let Some(answer) = closing {
                let closed = self.close();
                // The file is closed before it is said to be.
                drop(self);
                let _ = answer.send(closed);
                return;
            }
            // Also while writes keep coming.
            if self.flush_at.is_some_and(|at| at <= Instant::now()) {
                self.catch_up();
            }
        }
    }

    fn write(&mut self, writes: Vec<(Write, Answer)>) {
        if let Err(error) = self.settle() {
            for (_, answer) in writes {
                let _ = answer.send(Err(error.clone()));
            }
            return;
        }
        let (accepted, all_deferred) = self.check(writes);
        if accepted.is_empty() {
            return;
        }
        let records: Vec<Record> = accepted.iter().map(|a| record_of(&a.change)).collect();
        let bytes: usize = records.iter().map(|r| r.bytes.as_ref().map_or(0, Bytes::len)).sum();
        let room = self.deferred.len() + records.len() <= DEFERRED
            && self.deferred_bytes.saturating_add(bytes) <= DEFERRED_BYTES;
        if all_deferred && room && self.revision <= self.ceiling {
            self.deferred_bytes += bytes;
            self.deferred.extend(records.into_iter().map(|r| (r.key, r.bytes)));
            self.flush_at.get_or_insert_with(|| Instant::now() + self.flush);
            self.unwritten.extend(accepted.iter().map(|a| a.change.resource));
            self.show(accepted);
            return;
        }
        let changed = accepted.iter().map(|a| (a.change.resource, a.change.object.revision)).collect();
        match self.commit(records, changed, self.revision + HEADROOM) {
            Ok(()) => self.show(accepted),
            Err(error) => {
                let mut answers = Vec::with_capacity(accepted.len());
                for Accepted { answer, undo, .. } in accepted.into_iter().rev() {
                    undo.into_iter().for_each(|undo| undo());
                    answers.push(answer);
                }
                let error = self.fail(&error);
                for answer in answers.into_iter().rev() {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }

    /// Sorts out which writes may happen, each seeing those before it. Refused ones are answered at once. Also whether all that
    /// are left may be on disk later.
    fn check(&mut self, writes: Vec<(Write, Answer)>) -> (Vec<Accepted>, bool) {
        let claims = self.shared.claims.read().unwrap_or_else(PoisonError::into_inner).clone();
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let mut pending: HashMap<(&'static str, Key), Option<Arc<Object>>> = HashMap::new();
        let (mut accepted, mut all_deferred) = (Vec::new(), true);
        for (mut write, answer) in writes {
            let slot = (write.resource, write.key.clone());
            let current = match pending.get(&slot) {
                Some(object) => object.clone(),
                None => state.resources.get(write.resource).and_then(|o| o.get(&write.key)).cloned(),
            };
            let holds = match (write.expected, &current) {
                (Expected::Absent, None) => true,
                (Expected::Revision(wanted), Some(object)) => object.revision == wanted,
                _ => false,
            };
            if !holds {
                let _ = answer.send(Err(Error::Conflict));
                continue;
            }
            let settled =
                claims.as_ref().map(|c| c.settle(write.resource, write.value.as_mut(), current.as_deref())).transpose();
            let undo = match settled {
                Ok(undo) => undo.flatten(),
                Err(refusal) => {
                    let _ = answer.send(Err(Error::Claim(refusal)));
                    continue;
                }
            };
            self.revision += 1;
            let deferred = self.types.iter().find(|t| t.name == write.resource).map(|t| t.deferred);
            all_deferred &= deferred.is_some_and(|d| d.holds(&write.key.namespace));
            let deleted = write.value.is_none();
            let value = write.value.unwrap_or_else(|| current.as_ref().map(|o| o.value()).unwrap_or_default());
            let object = Arc::new(encode(value, self.revision));
            pending.insert(slot, (!deleted).then(|| Arc::clone(&object)));
            let change = Change { resource: write.resource, key: write.key, object, previous: current, deleted };
            accepted.push(Accepted { change, answer, undo });
        }
        (accepted, all_deferred)
    }

    /// Shows writes to readers and answers them.
    fn show(&mut self, accepted: Vec<Accepted>) {
        let mut answers = Vec::with_capacity(accepted.len());
        {
            let now = Instant::now();
            let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
            for Accepted { change, answer, .. } in accepted {
                answers.push((answer, Arc::clone(&change.object)));
                self.changed.insert(change.resource, change.object.revision);
                state.show(change, now);
            }
            state.revision = self.revision;
        }
        self.shared.tell.send_replace(self.revision);
        for (answer, object) in answers {
            let _ = answer.send(Ok(object));
        }
    }

    /// Puts what was deferred and `records` on disk.
    fn commit(
        &mut self,
        records: Vec<Record>,
        changed: BTreeMap<&'static str, u64>,
        ceiling: u64,
    ) -> Result<(), Error> {
        let mut all = self.deferred.clone();
        all.extend(records.into_iter().map(|r| (r.key, r.bytes)));
        let all: Vec<Record> = all.into_iter().map(|(key, bytes)| Record { key, bytes }).collect();
        let known = self.unwritten.iter().filter_map(|name| Some((*name, *self.changed.get(name)?)));
        let mut told: BTreeMap<String, u64> = known.map(|(name, at)| (name.to_owned(), at)).collect();
        told.extend(changed.into_iter().map(|(name, at)| (name.to_owned(), at)));
        let counters = Counters { revision: self.revision, ceiling, floor: self.floor, changed: told };
        self.engine.commit(&all, &counters)?;
        self.is_on_disk(ceiling);
        Ok(())
    }

    /// All that was shown before is on disk.
    fn is_on_disk(&mut self, ceiling: u64) {
        self.ceiling = ceiling;
        self.unwritten.clear();
        self.deferred.clear();
        self.deferred_bytes = 0;
        self.flush_at = None;
    }

    /// What the clock brings about.
    fn catch_up(&mut self) {
        if self.settle().is_ok()
            && self.flush_at.is_some()
            && let Err(error) = self.commit(Vec::new(), BTreeMap::new(), self.revision + HEADROOM)
        {
            self.fail(&error);
        }
    }

    /// Everything that was shown on disk, in an end after which revisions go on where they are.
    fn close(&mut self) -> Result<(), Error> {
        self.restore_at = Instant::now();
        self.settle()?;
        if self.deferred.is_empty() && self.unwritten.is_empty() && self.ceiling == self.revision {
            return Ok(());
        }
        self.commit(Vec::new(), BTreeMap::new(), self.revision).inspect_err(|error| {
            tracing::error!(%error, "the latest writes could not be put on disk");
        })
    }

    /// After a commit that has failed: tries at once to make the disk what was shown. Gives what the writes are told.
    fn fail(&mut self, error: &Error) -> Error {
        let why = error.to_string();
        if self.told.as_ref() != Some(&why) {
            tracing::error!(%error, "a write could not be put on disk; nothing is written until the disk holds again what was there before");
            self.told = Some(why.clone());
        }
        self.failing = Some(why.clone());
        self.shared.tell_health.send_replace(Health::Failing(why.clone()));
        match self.settle() {
            Ok(()) => Error::NotDone(why),
            Err(_) => Error::Unsettled(why),
        }
    }

    /// Makes the disk what was shown, where a failed commit has left it unknown; the error is for writes that were not tried.
    fn settle(&mut self) -> Result<(), Error> {
        let Some(why) = &self.failing else { return Ok(()) };
        let begun = Instant::now();
        if begun < self.restore_at {
            return Err(Error::NotDone(why.clone()));
        }
        let (wanted, ceiling) = (self.shown(), self.revision + HEADROOM);
        let changed = self.changed.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect();
        let counters = Counters { revision: self.revision, ceiling, floor: self.floor, changed };
        let types: BTreeSet<&str> = self.types.iter().map(|t| t.name).collect();
        let served = |key: &str| key.split('/').next().is_some_and(|name| types.contains(name));
        let restored = self.engine.restore(&wanted, &served, &counters);
        self.restore_at = Instant::now() + (begun.elapsed() * 10).clamp(RETRY, LONGEST_RETRY);
        if let Err(error) = restored {
            let why = error.to_string();
            self.shared.tell_health.send_replace(Health::Failing(why.clone()));
            self.failing = Some(why.clone());
            return Err(Error::NotDone(why));
        }
        self.is_on_disk(ceiling);
        self.failing = None;
        self.told = None;
        self.shared.tell_health.send_replace(Health::Serving);
        tracing::info!("writes can be put on disk again");
        Ok(())
    }

    /// All records as readers see them.
    fn shown(&self) -> BTreeMap<String, Bytes> {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = BTreeMap::new();
        for (resource, objects) in &state.resources {
            all.extend(objects.iter().map(|(key, object)| (join_key(resource, key), object.bytes.clone())));
        }
        all
    }
}

fn record_of(change: &Change) -> Record {
    let bytes = (!change.deleted).then(|| change.object.bytes.clone());
    Record { key: join_key(change.resource, &change.key), bytes }
}

fn encode(mut value: Value, revision: u64) -> Object {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
    }
    // Kept for as long as the object is: without the room that writing it took.
    let bytes = value.to_string().into_bytes().into_boxed_slice().into();
    Object { revision, bytes }
}
