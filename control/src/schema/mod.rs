//! Bodies and OpenAPI documents of built-in kinds. Pure: values in, values out; no tokio, files or clocks.

mod openapi;
mod protobuf;

use serde_json::Value;
use windlass_apimachinery::{decode, schema};
pub use windlass_apimachinery::{
    decode::{ContentType, Decoded},
    schema::FieldProblems,
};

pub use openapi::{document as openapi_document, hash as openapi_hash, index as openapi_index};

use crate::{kinds::types, registry::Gvk};

/// Decodes a body. One with the protobuf prefix is decoded as such, for the kinds that kubectl sends in it.
///
/// # Errors
/// When the body is malformed or nested too deep: the reason, with line and column where they are known.
pub fn decode(bytes: &[u8], content_type: ContentType) -> Result<Decoded, String> {
    // The prefix is neither JSON nor YAML, so the content type does not matter.
    if bytes.starts_with(protobuf::MAGIC) {
        return protobuf::decode(bytes).map(|value| Decoded { value, duplicates: Vec::new() });
    }
    decode::decode(bytes, content_type)
}

/// Checks every field of an object. A kind that nothing is known of has no problems.
#[must_use]
pub fn unknown_fields(gvk: &Gvk, value: &Value) -> FieldProblems {
    schema::check(&types::of_kind(gvk), value, gvk.kind)
}

/// See [`schema::canonicalize`].
pub fn prune(gvk: &Gvk, value: &mut Value) {
    schema::canonicalize(&types::of_kind(gvk), value);
}

/// See [`schema::same`].
#[must_use]
pub fn same(gvk: &Gvk, one: &Value, other: &Value) -> bool {
    schema::same(&types::of_kind(gvk), one, other)
}

/// See [`schema::canonical`].
#[must_use]
pub fn canonical(gvk: &Gvk, value: &Value) -> Value {
    schema::canonical(&types::of_kind(gvk), value)
}

/// See [`schema::drop_invalid_fields`].
pub fn drop_invalid_fields(gvk: &Gvk, value: &mut Value) -> Vec<String> {
    schema::drop_invalid_fields(&types::of_kind(gvk), value)
}

#[cfg(test)]
pub(crate) mod forms;
#[cfg(test)]
mod tests;
