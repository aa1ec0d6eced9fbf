//! Bodies and OpenAPI documents of built-in kinds. Pure: values in, values out; no tokio, files or clocks.

mod openapi;
pub mod transcoding;

use std::sync::Arc;

pub use windlass_apimachinery::decode::{ContentType, Decoded, Duplicates};
use windlass_apimachinery::{
    decode,
    protobuf::{
        Problem,
        envelope::{self, Envelope},
    },
    schema::Schema,
};

pub(crate) use openapi::hash_of as openapi_hash_of;
pub use openapi::{
    definitions as openapi_definitions, document as openapi_document, document_v2 as openapi_document_v2,
    document_v2_protobuf as openapi_document_v2_protobuf, hash as openapi_hash, hash_v2 as openapi_hash_v2,
    index as openapi_index,
};

use crate::kinds::types;

/// Decodes a body. One with the protobuf prefix is decoded as such.
///
/// # Errors
/// When the body is malformed or nested too deep: the reason, with line and column where they are known.
pub fn decode(bytes: &[u8], content_type: ContentType) -> Result<Decoded, String> {
    // The prefix is neither JSON nor YAML: clients that name no content type are understood too.
    if bytes.starts_with(envelope::MAGIC) { decode_protobuf(bytes) } else { decode::decode(bytes, content_type) }
}

/// Decodes a body of a built-in kind in protobuf.
///
/// # Errors
/// When the body is malformed or nested too deep, or its kind is not known.
pub fn decode_protobuf(bytes: &[u8]) -> Result<Decoded, String> {
    let schema_of = |envelope: &Envelope<'_>| match types::named(envelope.api_version, envelope.kind) {
        Some(of) => Ok(Arc::new(Schema::named(of))),
        None => Err(Problem::NotOnWire(format!("{} {}", envelope.api_version, envelope.kind)).into()),
    };
    let decoded = envelope::decode_object(bytes, schema_of);
    let value = decoded.map_err(|error| format!("protobuf parse error: {error}"))?;
    Ok(Decoded { value, duplicates: Duplicates::NONE })
}

#[cfg(test)]
pub(crate) mod forms;
#[cfg(test)]
mod tests;
