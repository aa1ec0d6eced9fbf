//! What the API knows of each kind beyond its name: its fields, defaults, validation and published
//! description. Pure: values in, values out; no tokio, files or clocks.

mod decode;
mod defaults;
mod fields;
mod openapi;
mod protobuf;
mod validate;

pub use decode::{ContentType, Decoded, decode};
pub use defaults::default;
pub use fields::{FieldProblems, prune, unknown_fields};
pub use openapi::{document as openapi_document, index as openapi_index};
pub use validate::{Cause, FieldError, validate_create, validate_update};

#[cfg(test)]
mod tests;
