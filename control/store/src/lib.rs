//! The object store: all objects in memory as encoded JSON, on disk before a write is acknowledged, with the latest
//! events of each resource for watches and for lists at earlier revisions.
//!
//! One thread owns writing (`writer`); readers take snapshots under a short lock. The engine on disk is behind
//! [`Engine`]. It knows keys and bytes, not kinds: resources are registered at run time, and imports nothing of ours.
//!
//! No revision is assigned twice, however the process ends: the disk holds a ceiling above all assigned revisions, and
//! a start after an unclean end begins above it. Such an end may lose the last seconds of resources with
//! [`RelaxedDurability`]; their watchers must list again. All others go on where they were.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "what tests write is no secret"))]

mod companion;
mod dispatch;
mod engine;
mod guard;
mod history;
mod index;
mod object;
mod object_map;
mod snapshot;
mod state;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

pub use companion::{Change, Companion, Decide};
pub use dispatch::Scope;
pub use engine::{
    Counters, Directory, Engine, Fault, Log, LogFile, Memory, RealDirectory, Record, UnsyncedDirectory, copy_log,
    import_redb,
};
pub use guard::{Condition, Guard};
pub use index::Index;
pub use object::{Key, Object};
pub use snapshot::Snapshot;
pub use watch::{Event, Watch};

use object::Encoded;
use state::State;
use writer::Content;

/// The largest size of an object, in bytes of its JSON: what a client can send, so that it can send back what it has read.
/// Without a limit, patches that add to an object make all that has it in hand larger without end.
pub const MAX_OBJECT_BYTES: usize = 3 << 20;

/// A resource that is stored, by its group resource, such as `pods` or `leases.coordination.k8s.io`; of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(u32);

/// How the objects of a resource are stored.
#[derive(Debug, Clone, Default)]
pub struct ResourceOptions {
    /// Which of its writes are acknowledged early.
    pub relaxed_durability: RelaxedDurability,
    /// Fields by which watchers may follow a part of it. A later registration without indexes keeps them.
    pub indexes: Vec<Index>,
}

/// The precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The key does not exist.
    Absent,
    /// The object was last written at this revision.
    Revision(u64),
}

/// A requested write.
#[derive(Debug)]
pub struct Write {
    /// The resource.
    pub resource: ResourceId,
    /// The object.
    pub key: Key,
    /// The precondition.
    pub expected: Expected,
    /// The new object, or `None` to delete. Its `resourceVersion` is set by the store.
    pub value: Option<Value>,
    /// What must hold for other objects.
    pub guards: Vec<Guard>,
    /// What changes with it.
    pub companions: Vec<Companion>,
}

/// Which writes of a resource are acknowledged before they are on disk, which they are a few seconds later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RelaxedDurability {
    /// None.
    #[default]
    Never,
    /// Those of one namespace.
    InNamespace(&'static str),
    /// All.
    Always,
}

impl RelaxedDurability {
    fn holds(self, namespace: &str) -> bool {
        match self {
            Self::Never => false,
            Self::InNamespace(one) => one == namespace,
            Self::Always => true,
        }
    }
}

/// An error of a write or of opening the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The precondition of a write does not hold.
    #[error("the object was changed or is not there")]
    Conflict,
    /// A guard of a write does not hold, or a companion refuses it.
    #[error("the guard on {} {:?} in {:?} does not hold", .resource, .key.name, .key.namespace)]
    Guard {
        /// The group resource.
        resource: Arc<str>,
        /// The object of the guard.
        key: Key,
    },
    /// The object requests a value that cannot be allocated, such as another object's address.
    #[error("{}: {}", .0.field, .0.detail)]
    Allocation(AllocationError),
    /// The requested revision was compacted.
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld {
        /// The requested revision.
        asked: u64,
        /// The oldest available revision.
        oldest: u64,
    },
    /// An I/O error of the engine.
    #[error("the store {path} could not be {attempt}: {reason}")]
    Disk {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// A record that is not a valid object.
    #[error(
        "the record {key} in the store is damaged: {reason}; nothing was changed; put a copy of the store in its place"
    )]
    Damaged {
        /// `resource/namespace/name`.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The write failed and was rolled back.
    #[error("the write could not be put on disk and was rolled back: {0}")]
    RolledBack(String),
    /// The write failed, and the content of the disk could not be restored immediately.
    #[error("the write failed on its way to the disk; whether it exists after a restart is unknown: {0}")]
    OutcomeUnknown(String),
    /// The object is larger than any may be, and than it was before; nothing was written.
    #[error("the object has {bytes} bytes, and may have {MAX_OBJECT_BYTES}")]
    TooLarge {
        /// The size of its JSON.
        bytes: usize,
    },
    /// The writer has ended.
    #[error("the store is closed: restart the server to write again")]
    Closed,
}

/// Why a requested value cannot be allocated.
#[derive(Debug, Clone)]
pub struct AllocationError {
    /// The path of the field; empty where none is to blame.
    pub field: String,
    /// What is wrong with it.
    pub detail: String,
}

/// Reverts the allocation of a failed write.
pub type Rollback = Box<dyn FnOnce() + Send>;

/// What an allocation does besides filling in the object.
#[derive(Default)]
pub struct Allocation {
    /// Reverts it.
    pub rollback: Option<Rollback>,
    /// Objects that record it; each sees what became of those before it.
    pub companions: Vec<Companion>,
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("companions", &self.companions).finish_non_exhaustive()
    }
}

/// Allocates values that must be unique among the objects of a resource, such as addresses. The writer calls it in the
/// order of the writes, so that allocations and stored objects never differ, also when a client cancels its request.
pub trait Allocator: Send + Sync + fmt::Debug {
    /// Fills in the allocated values of a new state of an object and releases those that it no longer has.
    ///
    /// # Errors
    /// When a requested value is taken; nothing is changed then.
    fn allocate(&self, new: Option<&mut Value>, current: Option<&Object>) -> Result<Allocation, AllocationError>;
}

/// Whether the store accepts writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Serving,
    /// The disk fails, with the reason; retrying.
    Failing(String),
    /// The writer thread has ended; only a restart helps.
    Ended,
}

/// A handle to the store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    state: Arc<RwLock<State>>,
    health: tokio_watch::Receiver<Health>,
    stalls: Arc<writer::Stalls>,
    allocators: Allocators,
    writer: Arc<writer::Sender>,
}

type Allocators = Arc<RwLock<HashMap<ResourceId, Arc<dyn Allocator>>>>;

/// When the store writes what may wait, and when it gives up what it need not have. Tests take less, so that all of it happens.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Maximum delay until a write with relaxed durability is on disk.
    flush: Duration,
    /// The log is rewritten when it is larger than this and three times what is needed of it.
    rewrite_bytes: u64,
    /// What all histories together may keep.
    superseded_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let (flush, rewrite_bytes) = (Duration::from_secs(5), 64 << 20);
        Self { flush, rewrite_bytes, superseded_bytes: history::MAX_SUPERSEDED_BYTES }
    }
}

impl Store {
    /// Registers `resources`, loads all records, also of resources that are registered later, and starts the writer.
    ///
    /// # Errors
    /// When the engine cannot be read, or has a damaged record.
    pub fn open(engine: Box<dyn Engine>, resources: &[(&str, ResourceOptions)]) -> Result<Self, Error> {
        Self::open_within(engine, resources, Bounds::default())
    }

    fn open_within(
        mut engine: Box<dyn Engine>,
        resources: &[(&str, ResourceOptions)],
        bounds: Bounds,
    ) -> Result<Self, Error> {
        let state = Arc::new(RwLock::new(State::load(resources, engine.as_mut(), bounds.superseded_bytes)?));
        let (health_tx, health) = tokio_watch::channel(Health::Serving);
        let allocators = Allocators::default();
        let stalls = Arc::new(writer::Stalls::default());
        let shared = writer::Shared {
            state: Arc::clone(&state),
            allocators: Arc::clone(&allocators),
            health_tx,
            stalls: Arc::clone(&stalls),
        };
        let writer = writer::start(engine, shared, bounds).map_err(|e| Error::Disk {
            path: PathBuf::new(),
            attempt: "given a thread",
            reason: e.to_string(),
        })?;
        Ok(Self { state, health, stalls, allocators, writer: Arc::new(writer) })
    }

    /// Registers a resource by its group resource, such as `pods` or `leases.coordination.k8s.io`, at any time. The name
    /// always has the same id; the options of the last call hold.
    pub fn register(&self, name: &str, options: ResourceOptions) -> ResourceId {
        self.state_mut().register(name, options)
    }

    /// The id of a group resource. An unregistered one has the default options.
    #[must_use]
    pub fn resource(&self, name: &str) -> ResourceId {
        let known = self.state().ids.get(name).copied();
        known.unwrap_or_else(|| self.state_mut().intern(name))
    }

    /// Sets the allocator that the writer calls for writes of a resource; before the first one.
    pub fn set_allocator(&self, resource: ResourceId, allocator: Arc<dyn Allocator>) {
        self.allocators.write().unwrap_or_else(PoisonError::into_inner).insert(resource, allocator);
    }

    /// The revision of the latest write.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.state().revision
    }

    /// Whether writes work.
    #[must_use]
    pub fn health(&self) -> Health {
        // The writer holds the sender for as long as it lives.
        if self.health.has_changed().is_err() { Health::Ended } else { self.health.borrow().clone() }
    }

    /// For how long in all the disk has taken no writes since the store was opened: those that took long, and failures.
    #[must_use]
    pub fn stalled(&self) -> Duration {
        self.stalls.total(Instant::now())
    }

    /// Waits until the writer has ended, by [`Store::close`] or by a panic.
    pub async fn ended(&self) {
        let mut health = self.health.clone();
        while health.changed().await.is_ok() {}
    }

    /// One object.
    #[must_use]
    pub fn get(&self, resource: ResourceId, key: &Key) -> Option<Arc<Object>> {
        self.state().get(resource, key).cloned()
    }

    /// The value of an indexed field of an object, which is decoded once for all that ask; `None` without such an object or
    /// index.
    #[must_use]
    pub fn index_value(&self, resource: ResourceId, key: &Key, field: &str) -> Option<String> {
        let state = self.state();
        let indexes = &state.resource(resource)?.options.indexes;
        state.get(resource, key)?.index_value(indexes, field).map(str::to_owned)
    }

    /// Writes durably, or with the relaxed durability of the resource. Returns the stored object; for a deletion the last
    /// state with the deletion's revision. An enqueued write happens also when the caller no longer waits.
    ///
    /// # Errors
    /// [`Error::Conflict`] when `expected` does not hold, [`Error::Guard`] when a guard does not or a companion refuses, [`Error::Allocation`] when a requested value is taken,
    /// [`Error::OutcomeUnknown`] when the write may exist after a restart; every other error means that nothing was
    /// written.
    pub async fn write(&self, write: Write) -> Result<Arc<Object>, Error> {
        let allocates = self.allocators.read().unwrap_or_else(PoisonError::into_inner).contains_key(&write.resource);
        let Write { resource, key, expected, value, guards, companions } = write;
        // Encoded here, so that the writer thread has little to do for each write.
        let content = match value {
            None => Content::Deleted,
            Some(value) if allocates => Content::Value(value),
            Some(value) => {
                let indexes = self.state().resource(resource).map(|r| r.options.indexes.clone()).unwrap_or_default();
                Content::Encoded(Encoded::with_indexes(&value, &indexes))
            }
        };
        let (reply, reply_rx) = oneshot::channel();
        let write = writer::Prepared { resource, key, expected, content, guards, companions };
        self.writer.write(write, reply).await?;
        reply_rx.await.map_err(|_| Error::Closed)?
    }

    /// Flushes all writes, marks a clean end and ends the writer: later writes are refused.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn close(&self) -> Result<(), Error> {
        let (reply, reply_rx) = oneshot::channel();
        self.writer.close(reply)?;
        reply_rx.await.map_err(|_| Error::Closed)?
    }

    /// Watches the events of one resource after a revision.
    ///
    /// # Errors
    /// [`Error::TooOld`] when events since then were compacted.
    pub fn watch(&self, resource: ResourceId, after: u64) -> Result<Watch, Error> {
        self.watch_scope(resource, Scope::All, after)
    }

    /// Watches a part of a resource: other events of it do not wake this watcher.
    ///
    /// # Errors
    /// [`Error::TooOld`] when events since then were compacted.
    pub fn watch_scope(&self, resource: ResourceId, scope: Scope, after: u64) -> Result<Watch, Error> {
        let mut state = self.state_mut();
        state.check_compacted(resource, after)?;
        let now = state.revision;
        let topic = state.resource_mut(resource).map(|r| r.dispatcher.subscribe(&scope, r.compacted_revision, now));
        let wake = topic.ok_or(Error::Closed)?;
        drop(state);
        Ok(Watch::new(self.clone(), resource, scope, after, wake))
    }

    /// The scope of an indexed field that must have one value, if one of the fields of the resource is such.
    pub fn index_scope<'a>(&self, resource: ResourceId, exact: impl Fn(&str) -> Option<&'a str>) -> Option<Scope> {
        let state = self.state();
        let indexes = state.resource(resource)?.options.indexes.iter().enumerate();
        indexes.into_iter().find_map(|(at, index)| Some(Scope::Index(at, exact(&index.field)?.to_owned())))
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
