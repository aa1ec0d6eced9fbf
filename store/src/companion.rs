//! Companions of a write: other objects that change with it in one transaction, or refuse it. What they become is decided
//! by the writer in the order of the writes, so that none is lost and none is counted twice.

use std::{fmt, sync::Arc};

use serde_json::Value;

use super::{Key, Object, ResourceId};

/// What becomes of a companion.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// It stays as it is.
    Keep,
    /// It becomes this. Its `resourceVersion` is set by the store.
    Update(Value),
    /// The write is refused.
    Refuse,
}

/// Decides what becomes of a companion. Runs in the writer thread: it must be short and must not call the store.
pub type Decide = Arc<dyn Fn(&Object) -> Change + Send + Sync>;

/// An object that changes with another one. One that does not exist (any more) is left out. It is not the object of the
/// write itself, no other companion of it, and of a resource without an allocator.
#[derive(Clone)]
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
