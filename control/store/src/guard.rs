//! Conditions of a write on other objects, checked by the writer in the order of the writes: no other write can come
//! between the check and the write.

use super::{Index, Key, Object, ResourceId};

/// What must hold for another object.
#[derive(Debug, Clone)]
pub enum Condition {
    /// It exists.
    Exists,
    /// It does not exist.
    Absent,
    /// It was last written at this revision.
    Revision(u64),
    /// It exists, and the value of an indexed field is one that is allowed. The writer decodes nothing for it: what many
    /// writes depend on may be large.
    Indexed {
        /// The path of the field.
        field: &'static str,
        /// Whether a value is allowed.
        allows: fn(&str) -> bool,
    },
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
    pub(crate) fn holds(&self, current: Option<&Object>, indexes: &[Index]) -> bool {
        match (&self.condition, current) {
            (Condition::Exists, object) => object.is_some(),
            (Condition::Absent, object) => object.is_none(),
            (Condition::Revision(wanted), Some(object)) => object.revision == *wanted,
            (Condition::Indexed { field, allows }, Some(object)) => {
                object.index_value(indexes, field).is_some_and(allows)
            }
            (Condition::Revision(_) | Condition::Indexed { .. }, None) => false,
        }
    }
}
