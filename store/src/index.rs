//! Fields of objects by which watchers are told apart, such as the node of a pod: decoded once for each object, not once
//! for each watcher.

use std::{fmt, sync::Arc};

/// Reads a field of an encoded object; empty where the object has none.
pub type Extract = Arc<dyn Fn(&[u8]) -> String + Send + Sync>;

/// An indexed field of a resource.
#[derive(Clone)]
pub struct Index {
    /// Its path, such as `spec.nodeName`.
    pub field: Arc<str>,
    /// Reads it. Runs once for each written object.
    pub extract: Extract,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("field", &self.field).finish()
    }
}

/// The values of an object, in the order of the indexes of its resource.
pub(crate) type Values = Box<[Box<str>]>;

pub(crate) fn values_of(indexes: &[Index], object: &[u8]) -> Values {
    indexes.iter().map(|index| (index.extract)(object).into_boxed_str()).collect()
}
