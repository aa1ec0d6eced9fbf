//! How watchers see an event: what it is to them, and its bytes. One event has one form for all who see it in the same way,
//! which the first of them makes, so that a change costs its objects' size once and not once for each watcher.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_apimachinery::{protobuf::envelope, selectors::FieldSelector};

use crate::apiserver::{
    request::{
        error::ApiError,
        negotiation::{MetaVersion, Representation, metadata_of},
    },
    types::{ConversionError, Conversions, Version},
};
use crate::{
    schema::transcoding::{self, Encoding},
    store,
};

/// What an event is to a watcher: an object that begins to match its selectors is added, one that ceases to match is
/// deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::apiserver) enum Change {
    Added,
    Modified,
    /// The object is gone.
    Deleted,
    /// The object exists but no longer matches: sent in its previous state, with the revision of the change.
    Unmatched,
}

impl Change {
    /// By whether the object matched before, and does now.
    pub(in crate::apiserver) fn of(event: &store::Event, matched: bool, matches: bool) -> Option<Self> {
        match (matched, matches) {
            (false, true) => Some(Self::Added),
            (true, true) => Some(Self::Modified),
            (true, false) if event.deleted => Some(Self::Deleted),
            (true, false) => Some(Self::Unmatched),
            (false, false) => None,
        }
    }

    /// The type of the event.
    pub(in crate::apiserver) fn kind(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted | Self::Unmatched => "DELETED",
        }
    }

    /// The object that is shown.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub(in crate::apiserver) fn object(
        self,
        version: &Version,
        event: &store::Event,
        conversions: &Conversions,
    ) -> Result<Value, ConversionError> {
        let last = event.previous.as_ref().filter(|_| self == Self::Unmatched);
        let mut object = version.decode(last.unwrap_or(&event.object), conversions)?;
        if last.is_some() {
            object["metadata"]["resourceVersion"] = json!(event.object.revision.to_string());
        }
        Ok(object)
    }
}

/// The bytes of an event that others may see in the same form: an object, or its metadata.
///
/// # Errors
/// When the object cannot be converted.
pub(in crate::apiserver) fn frame(
    version: &Version,
    (representation, encoding): (Representation, Encoding),
    (event, conversions): (&store::Event, &Conversions),
    change: Change,
) -> Result<Bytes, ConversionError> {
    let (shape, meta) = match representation {
        Representation::Metadata(meta) => (Shape::Metadata(meta), Some(meta)),
        Representation::Object | Representation::Table(_) => (Shape::Object, None),
    };
    let as_stored = meta.is_none() && version.is_served_as_stored();
    // What is stored is the same for all versions that show it so.
    let serial = if as_stored { 0 } else { version.serial };
    let shown = || -> Result<Bytes, ConversionError> {
        if as_stored && change != Change::Unmatched {
            return Ok(encode(encoding, change.kind(), &event.object.bytes));
        }
        let object = change.object(version, event, conversions)?;
        let object = match meta {
            Some(meta) => metadata_of(meta, &object),
            None => object,
        };
        Ok(encode(encoding, change.kind(), &serde_json::to_vec(&object).unwrap_or_default()))
    };
    let form = number(serial, shape, encoding as u64, change as u64);
    shared(event, form, shown)
}

/// Whether an object matches selectors before and after an event, by what all watchers with selectors read of it.
///
/// # Errors
/// When the object cannot be converted.
pub(in crate::apiserver) fn matches(
    version: &Version,
    (event, conversions): (&store::Event, &Conversions),
    selects: impl Fn(&Selectable) -> bool,
) -> Result<(bool, bool), ConversionError> {
    let read = || -> Result<Bytes, ConversionError> {
        let of = |object: &store::Object| Ok(Selectable::of(version, &version.decode(object, conversions)?));
        let before = event.previous.as_deref().map(of).transpose()?;
        Ok(serde_json::to_vec(&(before, of(&event.object)?)).unwrap_or_default().into())
    };
    let bytes = shared(event, number(version.serial, Shape::Selectable, 0, 0), read)?;
    let read: (Option<Selectable>, Option<Selectable>) = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok((read.0.is_some_and(|one| selects(&one)), !event.deleted && read.1.is_some_and(|one| selects(&one))))
}

/// What a form shows.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Object,
    Metadata(MetaVersion),
    Selectable,
}

impl Shape {
    const fn number(self) -> u64 {
        match self {
            Self::Object => 0,
            Self::Metadata(MetaVersion::V1) => 1,
            Self::Metadata(MetaVersion::V1Beta1) => 2,
            Self::Selectable => 3,
        }
    }
}

/// The number of a form: all that changes its bytes.
fn number(serial: u64, shape: Shape, encoding: u64, change: u64) -> u64 {
    serial << 6 | shape.number() << 4 | encoding << 2 | change
}

/// The bytes of a form; an object that cannot be converted has none to share.
fn shared(
    event: &store::Event,
    form: u64,
    make: impl Fn() -> Result<Bytes, ConversionError>,
) -> Result<Bytes, ConversionError> {
    let bytes = event.frame(form, || make().unwrap_or_default());
    if bytes.is_empty() { make() } else { Ok(bytes) }
}

/// What selectors read of an object.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::apiserver) struct Selectable {
    pub(in crate::apiserver) labels: Value,
    /// By the label of the field.
    pub(in crate::apiserver) fields: BTreeMap<String, String>,
}

impl Selectable {
    fn of(version: &Version, object: &Value) -> Self {
        let fields = FieldSelector::selectable(&version.spec.selectable);
        Self {
            labels: object["metadata"]["labels"].clone(),
            fields: fields.map(|field| (field.label.to_string(), field.value(object))).collect(),
        }
    }
}

/// An event of a watch. An object that cannot be encoded is an error to its watchers.
pub(in crate::apiserver) fn encode(encoding: Encoding, kind: &str, object: &[u8]) -> Bytes {
    if encoding == Encoding::Protobuf {
        let frame = transcoding::to_protobuf(object).map(|object| envelope::watch_frame(kind, &object));
        return frame.unwrap_or_else(|error| error_frame(ApiError::internal(error))).into();
    }
    let mut out = Vec::with_capacity(object.len() + 40);
    out.extend_from_slice(format!(r#"{{"type":"{kind}","object":"#).as_bytes());
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out.into()
}

fn error_frame(error: ApiError) -> Vec<u8> {
    let status = transcoding::to_protobuf(error.status().to_string().as_bytes());
    envelope::watch_frame("ERROR", &status.unwrap_or_default())
}
