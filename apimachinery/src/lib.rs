//! The API machinery: what the API server does to any object, whatever its type.
//!
//! Types are values, read from the tables of built-in types or from a CustomResourceDefinition. Knows no kind, and neither
//! a store nor a client: imports nothing of ours. Pure: no I/O, no clock, no tokio.

pub mod managed_fields;
pub mod openapi;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod selectors;

#[cfg(test)]
mod testing;
