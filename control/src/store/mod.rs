//! Every object of the API: in memory as encoded JSON, on disk before a write is answered, with a
//! window of recent changes for watches.
//!
//! One thread owns the writing (`writer`); readers take snapshots under a short lock. The engine on disk
//! is behind [`Engine`]. Imports nothing of `api`: it knows keys and bytes, not kinds.
//!
//! No revision is given twice, whatever ends the process: the disk holds a ceiling that no revision has passed yet, and a
//! start that follows no orderly end begins above it. What may be lost then are the last seconds of the types that say so
//! ([`Deferred`]); whoever watched one of these is sent back to a list.

mod disk;
mod memory;
mod past;
mod state;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

pub use disk::{Disk, Files, OneFile};
pub use memory::{Fault, Memory};
pub use watch::{Change, Watch};

use state::State;
use writer::Writer;

/// Where an object lives: its namespace (empty for cluster scope) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for objects of the cluster.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// One stored object: compact JSON that carries its own `resourceVersion`. Only the store makes them, of what it has
/// decoded once or encoded itself.
#[derive(Debug, Clone)]
pub struct Object {
    /// The revision of its last write.
    pub revision: u64,
    /// The object as JSON.
    pub bytes: Bytes,
}

impl Object {
    /// Reads what the engine kept, whole: what cannot be decoded is told here, by its key, and not when somebody asks for it.
    fn read(bytes: Bytes) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        let revision = value["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok());
        let revision = revision.ok_or("it has no resourceVersion")?;
        Ok(Self { revision, bytes })
    }

    /// The object, decoded.
    ///
    /// # Panics
    /// Never: what is stored was decoded before or encoded by the store.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("the store keeps only JSON that it has read or written itself")
    }
}

/// What must hold for a write to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Nothing has this key.
    Absent,
    /// The object was last written at this revision.
    Revision(u64),
}

/// One change that somebody asks for.
#[derive(Debug)]
pub struct Write {
    /// The plural name and group of the type, such as `pods` or `leases.coordination.k8s.io`.
    pub resource: &'static str,
    /// Which object.
    pub key: Key,
    /// What must hold.
    pub expected: Expected,
    /// The new object, or `None` to delete. Its `resourceVersion` is set by the store.
    pub value: Option<Value>,
}

/// Which writes of a type are answered before they are on disk, where they are a few seconds later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferred {
    /// None.
    Never,
    /// Those of one namespace.
    In(&'static str),
    /// All.
    Always,
}

impl Deferred {
    fn holds(self, namespace: &str) -> bool {
        match self {
            Self::Never => false,
            Self::In(one) => one == namespace,
            Self::Always => true,
        }
    }
}

/// A type that is stored.
#[derive(Debug, Clone, Copy)]
pub struct StoredType {
    /// Its plural name and group.
    pub name: &'static str,
    /// How soon it is on disk.
    pub deferred: Deferred,
}

/// Why a write or a start did not work.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Somebody was faster, or the object is (not) there.
    #[error("the object was changed or is not there")]
    Conflict,
    /// The object asks for something that it cannot have, such as an address of another one.
    #[error("{}: {}", .0.field, .0.detail)]
    Claim(Refusal),
    /// Watched from too long ago.
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld {
        /// What was asked for.
        asked: u64,
        /// What can still be told.
        oldest: u64,
    },
    /// The disk refused.
    #[error("the store {path} could not be {attempt}: {reason}")]
    Disk {
        /// The file.
        path: PathBuf,
        /// What was tried.
        attempt: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// A record that is no object.
    #[error(
        "the record {key} in the store is damaged: {reason}; nothing was changed; put a copy of the store in its place"
    )]
    Damaged {
        /// `resource/namespace/name`.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The disk did not take the write, and it has been taken back.
    #[error("the write could not be put on disk, and nothing of it was done: {0}")]
    NotDone(String),
    /// The disk failed, and what it holds could not be made right at once.
    #[error("the write failed on its way to the disk, and it is not known whether it will show after a restart: {0}")]
    Unsettled(String),
    /// The writer has ended.
    #[error("the store is closed: nothing can be written until the server is started again")]
    Closed,
}

/// One record as the engine keeps it.
#[derive(Debug, Clone)]
pub struct Record {
    /// `resource/namespace/name`.
    pub key: String,
    /// `None` deletes.
    pub bytes: Option<Bytes>,
}

/// What the engine keeps beside the records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// The latest revision on disk.
    pub revision: u64,
    /// No revision above this was given to anything. The same as `revision` after an orderly end.
    pub ceiling: u64,
    /// No type has changed after this, unless `changed` says so: what is known of a file that did not tell types apart.
    pub floor: u64,
    /// The revision of the latest change of each type, a deletion too; a commit brings those that differ.
    pub changed: BTreeMap<String, u64>,
}

/// A durable map of records and a few counters.
pub trait Engine: Send + fmt::Debug {
    /// All records and counters.
    ///
    /// # Errors
    /// When they cannot be read.
    fn load(&mut self) -> Result<(Vec<Record>, Counters), Error>;
    /// Applies all records and the counters together. On disk when it returns.
    ///
    /// # Errors
    /// When the disk does not take them. It is not known then whether they are on disk, and the engine takes nothing more
    /// until [`Engine::restore`] has worked.
    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error>;
    /// After a commit that has failed: makes the records that `served` speaks of exactly `wanted`, on disk when it returns.
    ///
    /// # Errors
    /// When the disk still does not take writes.
    fn restore(
        &mut self,
        wanted: &BTreeMap<String, Bytes>,
        served: &dyn Fn(&str) -> bool,
        counters: &Counters,
    ) -> Result<(), Error>;
}

/// Why an object cannot have what it asks for.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The path of the field.
    pub field: String,
    /// What is wrong with it.
    pub detail: String,
}

/// Takes back what a write has claimed.
pub type Undo = Box<dyn FnOnce() + Send>;

/// Things that no two objects may have, such as addresses. The writer settles them in the order of the writes, so that what is
/// claimed and what is stored never differ, also when whoever asked for the write has gone.
pub trait Claims: Send + Sync + fmt::Debug {
    /// Gives a new state of an object what it lacks, takes back what it no longer has, or says why it cannot be written.
    ///
    /// # Errors
    /// When something it asks for is another's; nothing is changed then.
    fn settle(
        &self,
        resource: &str,
        new: Option<&mut Value>,
        current: Option<&Object>,
    ) -> Result<Option<Undo>, Refusal>;
}

/// Whether writes work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// They do.
    Serving,
    /// The disk takes none; why. It is tried again and again.
    Failing(String),
    /// The writer has ended: nothing is written until the process is started again.
    Ended,
}

/// A handle to the store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    state: Arc<RwLock<State>>,
    revision: tokio_watch::Receiver<u64>,
    health: tokio_watch::Receiver<Health>,
    claims: Arc<RwLock<Option<Arc<dyn Claims>>>>,
    queue: std::sync::mpsc::SyncSender<writer::Request>,
}

/// Writes that may wait for the writer before further ones are held up.
const QUEUE: usize = 1024;
/// Deferred writes are on disk after this long.
const FLUSH: Duration = Duration::from_secs(5);

impl Store {
    /// Loads everything and starts the writer. `types` are all that may be stored; records of
    /// others are kept on disk untouched.
    ///
    /// # Errors
    /// When the engine cannot be read, or holds what is no object.
    pub fn open(engine: Box<dyn Engine>, types: &[StoredType]) -> Result<Self, Error> {
        Self::open_flushing(engine, types, FLUSH)
    }

    fn open_flushing(mut engine: Box<dyn Engine>, types: &[StoredType], flush: Duration) -> Result<Self, Error> {
        let (records, counters) = engine.load()?;
        let state = Arc::new(RwLock::new(State::load(types, records, &counters)?));
        let revision = state.read().unwrap_or_else(PoisonError::into_inner).revision;
        let (tell, told) = tokio_watch::channel(revision);
        let (tell_health, health) = tokio_watch::channel(Health::Serving);
        let (queue, requests) = std::sync::mpsc::sync_channel(QUEUE);
        let claims = Arc::default();
        let shared = writer::Shared { state: Arc::clone(&state), claims: Arc::clone(&claims), tell, tell_health };
        let writer = Writer::new(engine, types, &counters, shared, flush);
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run(&requests))
            .map_err(|e| Error::Disk { path: PathBuf::new(), attempt: "given a thread", reason: e.to_string() })?;
        Ok(Self { state, revision: told, health, claims, queue })
    }

    /// Lets the writer settle what objects claim; before the first write.
    pub fn settle_with(&self, claims: Arc<dyn Claims>) {
        *self.claims.write().unwrap_or_else(PoisonError::into_inner) = Some(claims);
    }

    /// The revision of the latest write.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.state.read().unwrap_or_else(PoisonError::into_inner).revision
    }

    /// Whether writes work.
    #[must_use]
    pub fn health(&self) -> Health {
        // The writer holds the other end for as long as it lives.
        if self.health.has_changed().is_err() { Health::Ended } else { self.health.borrow().clone() }
    }

    /// Waits until the writer has ended, which it does only when it is told to or when it panics.
    pub async fn ended(&self) {
        let mut health = self.health.clone();
        while health.changed().await.is_ok() {}
    }

    /// One object.
    #[must_use]
    pub fn get(&self, resource: &str, key: &Key) -> Option<Arc<Object>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).resources.get(resource)?.get(key).cloned()
    }

    /// The objects of a type in the order of their keys, of one namespace or all, and the revision at which
    /// this is so.
    #[must_use]
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> (Vec<(Key, Arc<Object>)>, u64) {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let Some(objects) = state.resources.get(resource) else { return (Vec::new(), state.revision) };
        let items = match namespace {
            None => objects.iter().map(|(k, o)| (k.clone(), Arc::clone(o))).collect(),
            Some(namespace) => {
                let first = Key { namespace: namespace.to_owned(), name: String::new() };
                objects
                    .range(first..)
                    .take_while(|(k, _)| k.namespace == namespace)
                    .map(|(k, o)| (k.clone(), Arc::clone(o)))
                    .collect()
            }
        };
        (items, state.revision)
    }

    /// Writes, and answers when it is on disk, or sooner where the type says so. Gives what was written; for a deletion the
    /// last state with the deletion's revision. A write that was handed over happens also when nobody waits for it any more.
    ///
    /// # Errors
    /// [`Error::Conflict`] when `expected` does not hold, [`Error::Claim`] when the object asks for what it cannot have,
    /// [`Error::Unsettled`] when a restart may show it, else nothing of it was done.
    pub async fn write(&self, write: Write) -> Result<Arc<Object>, Error> {
        let (answer, answered) = oneshot::channel();
        self.hand_over(writer::Request::Write(write, answer)).await?;
        answered.await.map_err(|_| Error::Closed)?
    }

    /// Puts everything on disk, in an orderly end, and ends the writer: later writes are refused.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub async fn close(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.hand_over(writer::Request::Close(answer)).await?;
        answered.await.map_err(|_| Error::Closed)?
    }

    async fn hand_over(&self, request: writer::Request) -> Result<(), Error> {
        match self.queue.try_send(request) {
            Ok(()) => Ok(()),
            Err(std::sync::mpsc::TrySendError::Full(request)) => {
                let queue = self.queue.clone();
                let sent = tokio::task::spawn_blocking(move || queue.send(request).is_ok()).await;
                if matches!(sent, Ok(true)) { Ok(()) } else { Err(Error::Closed) }
            }
            Err(std::sync::mpsc::TrySendError::Disconnected(_)) => Err(Error::Closed),
        }
    }

    /// Follows the changes of one type after a revision.
    ///
    /// # Errors
    /// [`Error::TooOld`] when the type has changed since and not all of it can be told any more.
    pub fn watch(&self, resource: &'static str, after: u64) -> Result<Watch, Error> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).check_age(resource, after)?;
        Ok(Watch::new(self.clone(), resource, after))
    }
}
