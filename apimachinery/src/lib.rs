//! The API machinery: what the API server does to any object, whatever its type.
//!
//! Types are values, read from the tables of built-in types or from a CustomResourceDefinition. Knows no kind, and neither
//! a store nor a client: imports nothing of ours. Pure: no I/O, no clock, no tokio.

pub mod decode;
pub mod duration;
pub mod effort;
pub mod field;
pub mod go_float;
mod go_json;
mod go_quote;
mod go_type;
pub mod group_version;
pub mod line_diff;
pub mod managed_fields;
pub mod names;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod selectors;

pub use go_json::go_json;
pub use go_quote::go_quoted;
pub use go_type::go_type;

/// How deep lists and objects may nest; bodies that are deeper are refused, and every walk ends there.
pub const MAX_DEPTH: usize = 100;

#[cfg(test)]
mod testing;
