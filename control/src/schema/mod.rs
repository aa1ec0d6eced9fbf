//! What the API knows of each kind beyond its name: its fields, defaults, validation and published description.
//!
//! Everything here is a pure function over JSON values; no tokio, files or clocks. A kind that is new in
//! `registry` is described and checked for unknown fields at once; its defaults are one arm in `defaults`,
//! its rules one arm in `validate`, its merge keys lines in `keys`.

mod decode;
mod defaults;
mod fields;
mod keys;
mod openapi;
mod validate;

pub use decode::{ContentType, DecodeError, Decoded, decode};
pub use defaults::default;
pub use fields::{FieldProblems, unknown_fields};
pub(crate) use fields::{Type, of};
pub(crate) use keys::{ListRule, rule};
pub use openapi::{ResourceDescription, openapi_document, openapi_index};
pub use validate::{Cause, FieldError, validate_create, validate_update};

#[cfg(test)]
mod tests;
