//! Content negotiation: object, metadata alone or table; JSON, YAML or protobuf; compressed when large.
//!
//! Handlers answer in JSON. What the client accepts is made from it here, at the end: [`Accept::bytes`].
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/handlers/negotiation`.

use std::io::Write as _;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use windlass_apimachinery::protobuf::envelope;
use windlass_kit::serve::headers;

use super::{
    audit::Answered,
    error::{ApiError, ApiResult},
    media_type::{AGGREGATED_DISCOVERY, Convert, MediaType},
};
use crate::apiserver::types::{Conversions, Version};
use crate::{
    schema::transcoding::{self, Encoding},
    store::Object,
};

/// Responses above this size are compressed if the client accepts gzip; upstream's limit.
pub(in crate::apiserver) const GZIP_THRESHOLD_BYTES: usize = 128 << 10;

/// A version of `meta.k8s.io`, which differ in nothing but their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    /// The version of a media type's parameters.
    fn of(group: &str, version: &str) -> Option<Self> {
        match (group, version) {
            ("meta.k8s.io", "v1") => Some(Self::V1),
            ("meta.k8s.io", "v1beta1") => Some(Self::V1Beta1),
            _ => None,
        }
    }

    const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// The representation of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Representation {
    Object,
    Table(MetaVersion),
    Metadata(MetaVersion),
}

impl Representation {
    pub(crate) const fn is_table(self) -> bool {
        matches!(self, Self::Table(_))
    }
}

/// What an object says of its type, and items of a list of built-in objects do not.
const TYPE_META: [&str; 2] = ["apiVersion", "kind"];

/// What a client accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accept {
    pub(crate) representation: Representation,
    pub(crate) encoding: Encoding,
    /// Whether one of the accepted media types can be served.
    pub(crate) is_acceptable: bool,
    /// Whether one of the choices is not a table, for what is answered and has no rows.
    pub(in crate::apiserver) takes_objects: bool,
    /// The first choice that is not protobuf, for what has no protobuf form.
    otherwise: Option<(Representation, Encoding)>,
    pub(in crate::apiserver) gzip: bool,
    /// Whether the body of the response is recorded.
    is_recorded: bool,
}

impl Accept {
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let accept = headers::shown(headers, header::ACCEPT.as_str());
        let choices = choices(&accept);
        let first = choices.first().copied();
        let (representation, encoding) = first.unwrap_or((Representation::Object, Encoding::Json));
        Self {
            representation,
            encoding,
            is_acceptable: first.is_some(),
            takes_objects: choices.iter().any(|(representation, _)| !representation.is_table()),
            otherwise: choices.into_iter().find(|(_, encoding)| *encoding != Encoding::Protobuf),
            gzip: headers::shown(headers, header::ACCEPT_ENCODING.as_str()).contains("gzip"),
            is_recorded: false,
        }
    }

    /// The same, with the body of the response for the record.
    pub(in crate::apiserver) fn recorded(self, is_recorded: bool) -> Self {
        Self { is_recorded, ..self }
    }

    /// What is left for objects of a type that has no protobuf form, as custom resources have none. Their metadata has.
    pub(crate) fn without_protobuf(self) -> Self {
        if self.encoding != Encoding::Protobuf || matches!(self.representation, Representation::Metadata(_)) {
            return self;
        }
        match self.otherwise {
            Some((representation, encoding)) => Self { representation, encoding, ..self },
            None => Self { encoding: Encoding::Json, is_acceptable: false, ..self },
        }
    }

    /// One object.
    pub(crate) fn object(self, code: StatusCode, version: &Version, object: Value, include: &str) -> Response {
        let body = match self.representation {
            Representation::Object => object,
            Representation::Metadata(meta) => metadata_of(meta, &object),
            Representation::Table(meta) => {
                let revision = object["metadata"]["resourceVersion"].clone();
                table(version, meta, &[object], include, json!({"resourceVersion": revision}), true)
            }
        };
        self.write(code, &body)
    }

    /// One object of the store, with its stored bytes where possible.
    ///
    /// # Errors
    /// When it cannot be converted to the version.
    pub(in crate::apiserver) fn stored(
        self,
        code: StatusCode,
        version: &Version,
        (object, conversions): (&Object, &Conversions),
        include: &str,
    ) -> ApiResult {
        Ok(match self.representation {
            Representation::Object => self.bytes(code, version.encode(object, conversions)?),
            _ => self.object(code, version, version.decode(object, conversions)?, include),
        })
    }

    /// A list of objects of a built-in kind that are not stored.
    pub(crate) fn computed_list(self, version: &Version, mut items: Vec<Value>, include: &str) -> Response {
        let list = match self.representation {
            Representation::Table(meta) => table(version, meta, &items, include, json!({}), true),
            Representation::Metadata(meta) => metadata_list(meta, json!({}), &items),
            Representation::Object => {
                items.iter_mut().filter_map(Value::as_object_mut).for_each(|item| {
                    item.retain(|field, _| !TYPE_META.contains(&field.as_str()));
                });
                json!({"kind": version.list_kind, "apiVersion": version.gvk.api_version(), "metadata": {}, "items": items})
            }
        };
        self.write(StatusCode::OK, &list)
    }

    /// A JSON value as it is.
    pub(crate) fn write(self, code: StatusCode, body: &Value) -> Response {
        self.bytes(code, serde_json::to_vec(body).unwrap_or_default().into())
    }

    /// JSON, in the encoding that the client accepts.
    pub(crate) fn bytes(self, code: StatusCode, json: Bytes) -> Response {
        if self.is_recorded {
            let mut response = Self { is_recorded: false, ..self }.bytes(code, json.clone());
            response.extensions_mut().insert(Answered(json));
            return response;
        }
        match transcoding::transcode(self.encoding, &json) {
            Ok(None) => self.encoded(code, self.encoding.media_type(), json),
            Ok(Some(bytes)) => self.encoded(code, self.encoding.media_type(), bytes),
            Err(transcoding::Error::NoProtobuf) => match self.without_protobuf() {
                other if other.is_acceptable => other.bytes(code, json),
                _ => ApiError::not_acceptable(false).into_response(),
            },
            Err(transcoding::Error::Failed(why)) => ApiError::internal(why).into_response(),
        }
    }

    /// The error as a `Status`. A 406 is sent in JSON, as upstream does.
    pub(crate) fn error(self, error: ApiError) -> Response {
        let encoded = match error.code {
            406 => None,
            _ => transcoding::transcode(self.encoding, error.status().to_string().as_bytes()).ok().flatten(),
        };
        let mut response = error.into_response();
        if let Some(bytes) = encoded {
            let media_type = HeaderValue::from_static(self.encoding.media_type());
            response.headers_mut().insert(header::CONTENT_TYPE, media_type);
            *response.body_mut() = Body::from(bytes);
        }
        response
    }

    /// Bytes of a media type, compressed if they are many.
    pub(crate) fn encoded(self, code: StatusCode, media_type: &'static str, bytes: Bytes) -> Response {
        let mut response = if self.gzip && bytes.len() > GZIP_THRESHOLD_BYTES {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            match encoder.write_all(&bytes).and_then(|()| encoder.finish()) {
                Ok(compressed) => {
                    let mut response = (code, Body::from(compressed)).into_response();
                    response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                    response
                }
                Err(_) => (code, Body::from(bytes)).into_response(),
            }
        } else {
            (code, Body::from(bytes)).into_response()
        };
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        response
    }
}

/// The clauses of an `Accept` header, the preferred first.
fn clauses(accept: &str) -> impl Iterator<Item = &str> {
    let quality = |clause: &str| {
        let given = clause.split(';').skip(1).find_map(|p| p.trim().strip_prefix("q="));
        given.map_or(Some(1.0), |q| q.trim().parse().ok()).unwrap_or(0.0_f32)
    };
    let mut clauses: Vec<(f32, &str)> = accept.split(',').map(|clause| (quality(clause), clause)).collect();
    clauses.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    clauses.into_iter().map(|(_, clause)| clause)
}

/// What of an `Accept` header can be served, the preferred first. Without a header JSON is.
fn choices(accept: &str) -> Vec<(Representation, Encoding)> {
    if accept.trim().is_empty() {
        return vec![(Representation::Object, Encoding::Json)];
    }
    clauses(accept).filter_map(choice).collect()
}

/// Whether discovery is asked for as one document, by the first clause of what is served. That document has one version: who
/// knows an earlier one alone (`v2beta1`, of client-go before 0.30) gets the separate lists, which it accepts too.
pub(in crate::apiserver) fn wants_aggregated_discovery(accept: &str) -> bool {
    let own = MediaType::parse(AGGREGATED_DISCOVERY).discovery_version();
    let wants = |clause| {
        let media_type = MediaType::parse(clause);
        encoding(&media_type)?;
        if media_type.convert().is_none() {
            return Some(false);
        }
        media_type.discovery_version().filter(|version| Some(*version) == own).map(|_| true)
    };
    clauses(accept).find_map(wants).unwrap_or(false)
}

/// The encoding that a clause asks for.
fn encoding(media_type: &MediaType<'_>) -> Option<Encoding> {
    match media_type.name {
        "application/json" | "*/*" | "application/*" => Some(Encoding::Json),
        "application/yaml" => Some(Encoding::Yaml),
        envelope::MEDIA_TYPE => Some(Encoding::Protobuf),
        _ => None,
    }
}

fn choice(clause: &str) -> Option<(Representation, Encoding)> {
    let media_type = MediaType::parse(clause);
    let encoding = encoding(&media_type)?;
    let Some(Convert { group, version, kind }) = media_type.convert() else {
        return Some((Representation::Object, encoding));
    };
    let meta = MetaVersion::of(group, version)?;
    let has_protobuf = match kind {
        "Table" => false,
        // The earlier version has another form there, which no client of today asks for.
        "PartialObjectMetadata" | "PartialObjectMetadataList" => meta == MetaVersion::V1,
        _ => return None,
    };
    let representation = if kind == "Table" { Representation::Table(meta) } else { Representation::Metadata(meta) };
    (has_protobuf || encoding != Encoding::Protobuf).then_some((representation, encoding))
}

/// A PartialObjectMetadata of an object.
pub(crate) fn metadata_of(meta: MetaVersion, object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta.api_version(), "metadata": object["metadata"]})
}

/// A list of them.
pub(crate) fn metadata_list(meta: MetaVersion, metadata: Value, items: &[Value]) -> Value {
    let items: Vec<Value> = items.iter().map(|object| metadata_of(meta, object)).collect();
    json!({"kind": "PartialObjectMetadataList", "apiVersion": meta.api_version(), "metadata": metadata, "items": items})
}

/// The row of an object in a Table, with as much of the object as `includeObject` says.
pub(crate) fn row(version: &Version, meta: MetaVersion, object: &Value, include: &str, now: Timestamp) -> Value {
    let row_object = match include {
        "Object" => object.clone(),
        "None" => Value::Null,
        _ => metadata_of(meta, object),
    };
    let mut row = json!({"cells": (version.spec.table.row)(object, now)});
    if !row_object.is_null() {
        row["object"] = row_object;
    }
    row
}

/// A Table of objects; watches send the column definitions only once, and null after that, as upstream.
pub(crate) fn table(
    version: &Version,
    meta: MetaVersion,
    objects: &[Value],
    include: &str,
    metadata: Value,
    columns: bool,
) -> Value {
    let now = Timestamp::now();
    let rows: Vec<Value> = objects.iter().map(|object| row(version, meta, object, include, now)).collect();
    let definitions: Option<Vec<Value>> = columns.then(|| {
        version.spec.table.columns.iter().map(|c| json!({"name": c.name, "type": c.type_, "format": c.format, "description": c.description, "priority": c.priority})).collect()
    });
    table_of(meta, metadata, definitions, rows)
}

/// A Table of these rows.
pub(crate) fn table_of(meta: MetaVersion, metadata: Value, columns: Option<Vec<Value>>, rows: Vec<Value>) -> Value {
    json!({"kind": "Table", "apiVersion": meta.api_version(), "metadata": metadata, "columnDefinitions": columns, "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_metadata_have_two_versions() {
        use MetaVersion::{V1, V1Beta1};
        let json = Encoding::Json;
        for (clause, wanted) in [
            ("application/json", Some((Representation::Object, json))),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", Some((Representation::Table(V1), json))),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Some((Representation::Table(V1Beta1), json))),
            ("application/yaml;as=Table;v=v1;g=meta.k8s.io", Some((Representation::Table(V1), Encoding::Yaml))),
            ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", None),
            (
                "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
                Some((Representation::Metadata(V1Beta1), json)),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
                Some((Representation::Metadata(V1), Encoding::Protobuf)),
            ),
            // As upstream, all three parameters say what is asked for.
            ("application/json;as=Table;v=v1", None),
            ("application/json;as=Table;g=meta.k8s.io", None),
            ("application/json;as=Table;v=v2;g=meta.k8s.io", None),
            ("application/json;as=PartialObjectMetadata", None),
            ("application/json;v=v1;g=meta.k8s.io", None),
            ("text/plain", None),
        ] {
            assert_eq!(choice(clause), wanted, "{clause}");
        }
    }
}
