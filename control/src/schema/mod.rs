//! What the API knows of each kind beyond its name: its fields, defaults, validation and published
//! description. Pure: values in, values out; no tokio, files or clocks.

mod decode;
mod defaults;
mod fields;
mod openapi;
mod protobuf;
mod shape;
mod typed;
mod validate;

pub use decode::{ContentType, Decoded, decode};
pub use defaults::default;
pub use fields::{FieldProblems, unknown_fields};
pub use openapi::{document as openapi_document, hash as openapi_hash, index as openapi_index};
#[cfg(test)]
pub(crate) use shape::{pointers, written_out};
pub use typed::{canonical, prune, salvage, same};
pub use validate::{Cause, FieldError, validate_create, validate_finalize, validate_status, validate_update};

#[cfg(test)]
mod tests;
