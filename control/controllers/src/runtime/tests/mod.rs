//! The machinery of controllers, without the API or with one in memory.

mod controller;
mod informer;
mod selector_index;
