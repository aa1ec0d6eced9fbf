//! The envelope of an object in protobuf, and the frames of a watch.
//!
//! An object is the magic number and a `runtime.Unknown`: `TypeMeta typeMeta = 1; bytes raw = 2; string contentEncoding = 3;
//! string contentType = 4`, with `apiVersion` = 1 and `kind` = 2 in `typeMeta`.

use std::convert::Infallible;

use serde_json::Value;

use super::{
    Error, Problem, decode_compact, encode_into,
    wire::{Payload, Reader, write_bytes_field, write_nested, write_varint},
};
use crate::schema::Schema;

/// The media type of an object or list.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The media type of a watch.
pub const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// What each object begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// What an envelope says, and the message in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Envelope<'a> {
    /// Group and version.
    pub api_version: &'a str,
    /// The kind.
    pub kind: &'a str,
    /// The object's message; if the content type says so, JSON.
    pub raw: &'a [u8],
    /// Empty for protobuf.
    pub content_type: &'a str,
}

/// Opens an envelope.
///
/// # Errors
/// When the bytes are not an envelope.
pub fn open(bytes: &[u8]) -> Result<Envelope<'_>, Error> {
    let body = bytes.strip_prefix(MAGIC).ok_or(Problem::Magic)?;
    let mut envelope = Envelope::default();
    let mut reader = Reader::new(body);
    while let Some((number, payload)) = reader.next()? {
        let Payload::Bytes(bytes) = payload else { continue };
        match number {
            1 => {
                let mut reader = Reader::new(bytes);
                while let Some((number, payload)) = reader.next()? {
                    match (number, payload) {
                        (1, Payload::Bytes(bytes)) => envelope.api_version = text(bytes)?,
                        (2, Payload::Bytes(bytes)) => envelope.kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = bytes,
            3 if !bytes.is_empty() => return Err(Problem::ContentEncoding(text(bytes)?.to_owned()).into()),
            4 => envelope.content_type = text(bytes)?,
            _ => {}
        }
    }
    Ok(envelope)
}

fn text(bytes: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(bytes).map_err(|_| Problem::Utf8)
}

/// Reads an object with its envelope, without zero values. `schema_of` knows the type of an `apiVersion` and a kind.
///
/// # Errors
/// When the bytes are no envelope, or hold no object of the type.
pub fn decode_object(
    bytes: &[u8],
    schema_of: impl FnOnce(&Envelope<'_>) -> Result<std::sync::Arc<Schema>, Error>,
) -> Result<Value, Error> {
    let envelope = open(bytes)?;
    let schema = schema_of(&envelope)?;
    let mut value = decode_compact(&schema, envelope.raw)?;
    if let Value::Object(fields) = &mut value {
        for (name, text) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
            if !text.is_empty() {
                fields.insert(name.to_owned(), text.into());
            }
        }
    }
    Ok(value)
}

/// Writes an object with its envelope, which has the object's own `apiVersion` and `kind`.
///
/// # Errors
/// As [`encode`](super::encode).
pub fn encode_object(schema: &Schema, object: &Value) -> Result<Vec<u8>, Error> {
    let of = |name: &str| object[name].as_str().unwrap_or_default();
    let mut out = Vec::new();
    wrap(&mut out, of("apiVersion"), of("kind"), |out| encode_into(schema, object, out))?;
    Ok(out)
}

/// Appends an envelope whose message `write` appends.
///
/// # Errors
/// Those of `write`.
pub fn wrap<E>(
    out: &mut Vec<u8>,
    api_version: &str,
    kind: &str,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    out.extend_from_slice(MAGIC);
    write_type(out, api_version, kind);
    write_nested(out, 2, write)?;
    out.extend_from_slice(END);
    Ok(())
}

fn write_type(out: &mut Vec<u8>, api_version: &str, kind: &str) {
    let Ok(()) = write_nested(out, 1, |out| {
        write_bytes_field(out, 1, api_version.as_bytes());
        write_bytes_field(out, 2, kind.as_bytes());
        Ok::<_, Infallible>(())
    });
}

/// The last members of the envelope, both empty.
const END: &[u8] = &[0x1a, 0, 0x22, 0];

/// The parts of an enveloped list before and after its items, each of which [`list_item`] has written: `ITEMS_BYTES` in all.
/// A list can so be sent without being held as one piece.
///
/// # Errors
/// When the list's metadata cannot be encoded.
pub fn list_parts(
    api_version: &str,
    kind: &str,
    list_meta: &Schema,
    metadata: &Value,
    items_bytes: usize,
) -> Result<(Vec<u8>, &'static [u8]), Error> {
    let mut meta = Vec::new();
    write_nested(&mut meta, 1, |out| encode_into(list_meta, metadata, out))?;
    let mut head = MAGIC.to_vec();
    write_type(&mut head, api_version, kind);
    // The tag of `raw` and its length.
    head.push(0x12);
    write_varint(&mut head, (meta.len() + items_bytes) as u64);
    head.extend_from_slice(&meta);
    Ok((head, END))
}

/// Appends an item of a list, field 2 of every list type.
///
/// # Errors
/// As [`encode`](super::encode).
pub fn list_item(out: &mut Vec<u8>, schema: &Schema, object: &Value) -> Result<(), Error> {
    write_nested(out, 2, |out| encode_into(schema, object, out))
}

/// A frame of a watch: the length in four bytes, then a `meta/v1.WatchEvent` (`string type = 1; RawExtension object = 2`)
/// around an enveloped object.
#[must_use]
pub fn watch_frame(event_type: &str, object: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; FRAME_LENGTH_BYTES];
    write_bytes_field(&mut frame, 1, event_type.as_bytes());
    let Ok(()) = write_nested(&mut frame, 2, |out| {
        write_bytes_field(out, 1, object);
        Ok::<_, Infallible>(())
    });
    let length = u32::try_from(frame.len() - FRAME_LENGTH_BYTES).unwrap_or(u32::MAX);
    frame[..FRAME_LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    frame
}

/// The length of the length of a frame.
const FRAME_LENGTH_BYTES: usize = 4;
