//! Every object of the API: in memory as encoded JSON, on disk before a write is answered, with a
//! window of recent changes for watches.
//!
//! One thread owns the writing (`writer`); readers take snapshots under a short lock. The engine on disk
//! is behind [`Engine`]. Imports nothing of `api`: it knows keys and bytes, not kinds.

mod disk;
mod memory;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

pub use disk::Disk;
pub use memory::Memory;
pub use watch::{Change, Watch};

/// Where an object lives: its namespace (empty for cluster scope) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for objects of the cluster.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// One stored object: compact JSON that carries its own `resourceVersion`.
#[derive(Debug, Clone)]
pub struct Object {
    /// The revision of its last write.
    pub revision: u64,
    /// The object as JSON.
    pub bytes: Bytes,
}

impl Object {
    /// The object, decoded.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
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
    /// May be on disk a little later: for heartbeats, which the next one replaces anyway.
    pub lazy: bool,
}

/// Why a write or a start did not work.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Somebody was faster, or the object is (not) there.
    #[error("the object was changed or is not there")]
    Conflict,
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
    /// The writer has ended.
    #[error("the store is closed: the server is ending")]
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

/// A durable map of records and one counter.
pub trait Engine: Send + fmt::Debug {
    /// All records and the counter.
    ///
    /// # Errors
    /// When they cannot be read.
    fn load(&mut self) -> Result<(Vec<Record>, u64), Error>;
    /// Applies all records and the counter together, or nothing. On disk when it returns, unless `lazy`.
    ///
    /// # Errors
    /// When they cannot be written.
    fn commit(&mut self, records: &[Record], revision: u64, lazy: bool) -> Result<(), Error>;
}

type Objects = BTreeMap<Key, Arc<Object>>;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) revision: u64,
    pub(super) resources: HashMap<&'static str, Objects>,
    /// The latest changes, oldest first, each with when it was made.
    pub(super) recent: VecDeque<(Instant, Change)>,
    /// Changes up to this revision can no longer be told.
    pub(super) forgotten: u64,
    pub(super) recent_bytes: usize,
}

/// A handle to the store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) state: Arc<RwLock<State>>,
    pub(super) revision: tokio_watch::Receiver<u64>,
    queue: std::sync::mpsc::SyncSender<writer::Request>,
}

/// Writes that may wait for the writer before further ones are held up.
const QUEUE: usize = 1024;

impl Store {
    /// Loads everything and starts the writer. `resources` are all types that may be stored; records of
    /// others are kept on disk untouched.
    ///
    /// # Errors
    /// When the engine cannot be read.
    pub fn open(mut engine: Box<dyn Engine>, resources: &[&'static str]) -> Result<Self, Error> {
        let (records, revision) = engine.load()?;
        let mut state = State { revision, forgotten: revision, ..State::default() };
        for resource in resources {
            state.resources.insert(resource, Objects::new());
        }
        for Record { key, bytes } in records {
            let (Some((resource, key)), Some(bytes)) = (writer::split_key(&key, resources), bytes) else { continue };
            let revision = revision_of(&bytes);
            state.resources.entry(resource).or_default().insert(key, Arc::new(Object { revision, bytes }));
        }
        let state = Arc::new(RwLock::new(state));
        let (tell, told) = tokio_watch::channel(revision);
        let (queue, requests) = std::sync::mpsc::sync_channel(QUEUE);
        let shared = Arc::clone(&state);
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer::run(engine, &shared, &requests, &tell))
            .map_err(|e| Error::Disk { path: PathBuf::new(), attempt: "given a thread", reason: e.to_string() })?;
        Ok(Self { state, revision: told, queue })
    }

    /// The revision of the latest write.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.state.read().unwrap_or_else(PoisonError::into_inner).revision
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

    /// Writes, and answers when it is on disk. Gives what was written; for a deletion the last state with
    /// the deletion's revision.
    ///
    /// # Errors
    /// [`Error::Conflict`] when `expected` does not hold; otherwise nothing is known of the write.
    pub async fn write(&self, write: Write) -> Result<Arc<Object>, Error> {
        let (answer, answered) = oneshot::channel();
        let request = writer::Request { write, answer };
        match self.queue.try_send(request) {
            Ok(()) => {}
            Err(std::sync::mpsc::TrySendError::Full(request)) => {
                let queue = self.queue.clone();
                let sent = tokio::task::spawn_blocking(move || queue.send(request).is_ok()).await;
                if !matches!(sent, Ok(true)) {
                    return Err(Error::Closed);
                }
            }
            Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return Err(Error::Closed),
        }
        answered.await.map_err(|_| Error::Closed)?
    }

    /// Follows the changes of one type after a revision.
    ///
    /// # Errors
    /// [`Error::TooOld`] when changes after it are forgotten already.
    pub fn watch(&self, resource: &'static str, after: u64) -> Result<Watch, Error> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if after < state.forgotten {
            return Err(Error::TooOld { asked: after, oldest: state.forgotten });
        }
        Ok(Watch::new(self.clone(), resource, after))
    }
}

/// The revision that an object carries.
fn revision_of(bytes: &[u8]) -> u64 {
    #[derive(serde::Deserialize)]
    struct Versioned {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    serde_json::from_slice::<Versioned>(bytes).ok().and_then(|v| v.metadata.resource_version.parse().ok()).unwrap_or(0)
}
