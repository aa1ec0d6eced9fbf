//! The machinery of controllers, without the API or with one in memory.

mod informer;
mod selector_index;
