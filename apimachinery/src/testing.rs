//! The built-in types, for tests.

#[path = "../../control/apiserver/src/kinds/types/tables.rs"]
mod tables;

use std::sync::{Arc, LazyLock};

use crate::schema::{Schema, TypeIndex};

pub(crate) static TYPES: LazyLock<TypeIndex> = LazyLock::new(|| TypeIndex::new(tables::TABLES));

/// The node of a built-in type, such as `core/v1.Pod`.
#[track_caller]
pub(crate) fn schema(name: &str) -> Arc<Schema> {
    TYPES.get(name).unwrap_or_else(|error| panic!("{error}"))
}
