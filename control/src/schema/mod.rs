//! Schemas of kinds: fields, defaults, validation and OpenAPI. Pure: values in, values out; no tokio, files or clocks.

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
pub use typed::{canonical, drop_invalid_fields, prune, same};
pub use validate::{Cause, FieldError, validate_create, validate_finalize, validate_status, validate_update};

#[cfg(test)]
mod tests;
