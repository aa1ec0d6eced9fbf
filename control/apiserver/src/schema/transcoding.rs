//! The JSON of an answer in another encoding. Pure.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use windlass_apimachinery::{
    protobuf::{self, envelope},
    schema::Schema,
};

use crate::kinds::types;

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
}

impl Encoding {
    /// The media type.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => envelope::MEDIA_TYPE,
        }
    }
}

/// Why JSON has no other encoding.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The type has no protobuf form.
    #[error("the type has no protobuf form")]
    NoProtobuf,
    /// What is stored does not fit its type, or is no JSON.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(format!("the object cannot be encoded: {error}"))
    }
}

/// An object or list, with its items still as text: a list is never decoded as a whole.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(default, rename = "apiVersion")]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    items: Option<Vec<&'a RawValue>>,
}

/// The bytes in an encoding; nothing if that is JSON.
///
/// # Errors
/// When the type has no protobuf form, or what is stored does not fit it.
pub fn transcode(encoding: Encoding, json: &[u8]) -> Result<Option<Bytes>, Error> {
    match encoding {
        Encoding::Json => Ok(None),
        Encoding::Yaml => {
            let value: Value = serde_json::from_slice(json).map_err(Error::failed)?;
            let yaml = serde_saphyr::to_string(&value).map_err(Error::failed)?;
            Ok(Some(yaml.into()))
        }
        Encoding::Protobuf => to_protobuf(json).map(|bytes| Some(bytes.into())),
    }
}

/// An object with its envelope.
///
/// # Errors
/// As [`transcode`].
pub fn to_protobuf(json: &[u8]) -> Result<Vec<u8>, Error> {
    let head: Head<'_> = serde_json::from_slice(json).map_err(Error::failed)?;
    let of = types::named(&head.api_version, &head.kind).ok_or(Error::NoProtobuf)?;
    let schema = of.definition();
    if !protobuf::is_on_wire(schema) {
        return Err(Error::NoProtobuf);
    }
    let item = schema.property("items").and_then(|items| items.schema.items());
    match (&head.items, item) {
        (Some(items), Some(item)) if head.kind.ends_with("List") => list(&head, schema, items, item),
        _ => {
            let value: Value = serde_json::from_slice(json).map_err(Error::failed)?;
            envelope::encode_object(schema, &value).map_err(Error::failed)
        }
    }
}

fn list(head: &Head<'_>, schema: &Schema, items: &[&RawValue], item: &Schema) -> Result<Vec<u8>, Error> {
    let mut written = Vec::new();
    for raw in items {
        let value: Value = serde_json::from_str(raw.get()).map_err(Error::failed)?;
        envelope::list_item(&mut written, item, &value).map_err(Error::failed)?;
    }
    let metadata: Value = match head.metadata {
        Some(raw) => serde_json::from_str(raw.get()).map_err(Error::failed)?,
        None => Value::Object(serde_json::Map::new()),
    };
    let list_meta = schema.field("metadata").ok_or(Error::NoProtobuf)?;
    let (mut out, end) = envelope::list_parts(&head.api_version, &head.kind, list_meta, &metadata, written.len())
        .map_err(Error::failed)?;
    out.reserve(written.len() + end.len());
    out.extend_from_slice(&written);
    out.extend_from_slice(end);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn protobuf(value: &Value) -> Result<Vec<u8>, Error> {
        to_protobuf(value.to_string().as_bytes())
    }

    #[test]
    fn a_list_is_the_same_in_pieces() {
        let list = json!({
            "kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
            "items": [{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"b": "c"}}],
        });
        let whole = envelope::encode_object(types::named("v1", "ConfigMapList").unwrap().definition(), &list);
        assert_eq!(protobuf(&list).unwrap(), whole.unwrap());
        let empty = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []});
        assert!(protobuf(&empty).unwrap().starts_with(b"k8s\0"));
        let metadata = json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {},
            "items": [{"metadata": {"name": "a"}}],
        });
        assert!(protobuf(&metadata).is_ok());
    }

    #[test]
    fn what_has_no_protobuf_form_is_refused() {
        for value in [
            json!({"kind": "Odd", "apiVersion": "example.com/v1", "metadata": {}}),
            json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": []}),
            json!({"major": "1"}),
        ] {
            assert_eq!(protobuf(&value), Err(Error::NoProtobuf), "{value}");
        }
        let odd = json!({"kind": "Pod", "apiVersion": "v1", "spec": {"hostNetwork": "yes"}});
        assert!(matches!(protobuf(&odd), Err(Error::Failed(_))));
    }

    #[test]
    fn yaml_reads_as_the_same_value() {
        let value = json!({"a": "no", "b": ["1", 1, null, "x: y"], "c": {"d e": "multi\nline\n"}, "f": "é\u{7}"});
        let yaml = transcode(Encoding::Yaml, value.to_string().as_bytes()).unwrap().unwrap();
        let again: Value = serde_saphyr::from_str(std::str::from_utf8(&yaml).unwrap()).unwrap();
        assert_eq!(again, value);
    }
}
