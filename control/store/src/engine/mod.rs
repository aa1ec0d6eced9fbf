//! What keeps records over restarts. The store has all of them in memory, so that an engine is only written to, and read
//! once at the start.

mod log;
mod memory;
mod redb_import;

use std::{collections::BTreeMap, fmt, sync::Arc};

pub use log::{Directory, Log, LogFile, RealDirectory, UnsyncedDirectory, copy_log};
pub use memory::{Fault, Memory};
pub use redb_import::import_redb;

use super::{Error, Object};

/// One write, as the engine keeps it.
#[derive(Debug, Clone)]
pub struct Record {
    /// The group resource.
    pub resource: Arc<str>,
    /// The new state. Of a deletion an engine keeps the key and the revision alone.
    pub object: Arc<Object>,
    /// The object was deleted.
    pub deleted: bool,
    /// Seconds since 1970 at which it was written.
    pub unix_seconds: u64,
}

/// The engine's metadata besides the records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// The latest revision on disk.
    pub revision: u64,
    /// No revision above this was assigned. Equal to `revision` after a clean end.
    pub ceiling: u64,
    /// What resources without an entry in `compacted` have there.
    pub floor: u64,
    /// The revision of each resource up to which events may be missing; a commit holds only those that differ.
    pub compacted: BTreeMap<String, u64>,
}

impl Counters {
    /// Takes over what a later commit says.
    fn merge(&mut self, later: &Self) {
        (self.revision, self.ceiling, self.floor) = (later.revision, later.ceiling, self.floor.max(later.floor));
        for (name, revision) in &later.compacted {
            let known = self.compacted.entry(name.clone()).or_insert(*revision);
            *known = (*known).max(*revision);
        }
    }
}

/// A durable sequence of records and a few counters.
pub trait Engine: Send + fmt::Debug {
    /// Gives all commits in their order, with the counters as they were after each. A record may come twice.
    ///
    /// # Errors
    /// When they cannot be read.
    fn load(&mut self, each: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error>;
    /// Commits all records and the counters in one transaction, durably.
    ///
    /// # Errors
    /// When the disk fails. Whether the records are on disk is unknown then, and the engine refuses writes until
    /// [`Engine::restore`] succeeds.
    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error>;
    /// After a failed commit: the disk has exactly what was committed before it.
    ///
    /// # Errors
    /// When the disk still fails.
    fn restore(&mut self) -> Result<(), Error>;
    /// Size of all that was committed, with what is superseded.
    fn size(&self) -> u64 {
        0
    }
    /// Replaces all that was committed so far with `records`, in the background: later commits do not wait for it.
    fn rewrite(&mut self, records: Vec<Record>, counters: Counters) {
        drop((records, counters));
    }
}
