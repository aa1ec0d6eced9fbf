//! Companions of a write: other objects that change with it in one transaction, or refuse it. What they become is decided
//! by the writer in the order of the writes, so that none is lost and none is counted twice.

use std::fmt;

use serde_json::Value;

use super::{Key, Object, ResourceId};

/// What becomes of a companion.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It stays as it is.
    Keep,
    /// It is written. Its `resourceVersion` is set by the store.
    Put(Value),
    /// It is deleted, if it exists.
    Delete,
    /// The write is refused. Not for companions of an allocator, whose write is accepted already.
    Refuse,
}

/// Decides what becomes of a companion by its current state. Runs in the writer thread: it must be short and must not
/// call the store.
pub type Decide = Box<dyn FnOnce(Option<&Object>) -> Change + Send>;

/// An object that changes with another one: both are on disk, or neither. It is not the object of the write itself; those
/// that a write brings are different objects. No allocator is called for it.
pub struct Companion {
    /// Its resource.
    pub resource: ResourceId,
    /// Which object.
    pub key: Key,
    /// What becomes of it.
    pub decide: Decide,
}

impl fmt::Debug for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Companion").field("resource", &self.resource).field("key", &self.key).finish_non_exhaustive()
    }
}
