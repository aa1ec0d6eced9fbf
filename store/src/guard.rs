//! Conditions of a write on other objects, checked by the writer in the order of the writes: no other write can come
//! between the check and the write.

use std::{fmt, sync::Arc};

use super::{Key, Object, ResourceId};

/// What must hold for another object.
#[derive(Clone)]
pub enum Condition {
    /// It exists.
    Exists,
    /// It does not exist.
    Absent,
    /// It was last written at this revision.
    Revision(u64),
    /// It exists and this is true of it. Runs in the writer thread: it must be short and must not call the store.
    Holds(Arc<dyn Fn(&Object) -> bool + Send + Sync>),
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("Exists"),
            Self::Absent => f.write_str("Absent"),
            Self::Revision(revision) => f.debug_tuple("Revision").field(revision).finish(),
            Self::Holds(_) => f.write_str("Holds"),
        }
    }
}

/// A condition on one object.
#[derive(Debug, Clone)]
pub struct Guard {
    /// Its resource.
    pub resource: ResourceId,
    /// Which object.
    pub key: Key,
    /// What must hold.
    pub condition: Condition,
}

impl Guard {
    /// Whether it holds for the state of the object that the write would follow.
    pub(crate) fn holds(&self, current: Option<&Object>) -> bool {
        match (&self.condition, current) {
            (Condition::Exists, object) => object.is_some(),
            (Condition::Absent, object) => object.is_none(),
            (Condition::Revision(wanted), Some(object)) => object.revision == *wanted,
            (Condition::Holds(holds), Some(object)) => holds(object),
            (Condition::Revision(_) | Condition::Holds(_), None) => false,
        }
    }
}
