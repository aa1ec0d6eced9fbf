//! Content negotiation: object, metadata alone or table; compressed when large.

use std::io::Write as _;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{chain::header_text, types::Version};

/// Responses above this size are compressed if the client accepts gzip; upstream's limit.
const GZIP_THRESHOLD_BYTES: usize = 128 << 10;

/// The representation of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Representation {
    Object,
    Table,
    Metadata,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Accept {
    pub(crate) representation: Representation,
    /// Whether one of the accepted media types can be served.
    pub(crate) is_acceptable: bool,
    gzip: bool,
}

impl Accept {
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let accept = header_text(headers, header::ACCEPT);
        let mut representation = Representation::Object;
        let mut is_acceptable = accept.trim().is_empty();
        for part in accept.split(',') {
            let wanted = part.split(';').find_map(|p| p.trim().strip_prefix("as="));
            match wanted {
                Some("Table") if part.contains("v=v1") && !part.contains("v1beta1") => {
                    representation = Representation::Table
                }
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    representation = Representation::Metadata
                }
                None if part.contains("json") || part.contains("*/*") || part.contains("application/*") => {}
                // Other media types are not served; a later one in the header may be.
                _ => continue,
            }
            is_acceptable = true;
            break;
        }
        Self { representation, is_acceptable, gzip: header_text(headers, header::ACCEPT_ENCODING).contains("gzip") }
    }

    /// One object.
    pub(crate) fn object(self, code: StatusCode, version: &Version, object: Value, include: &str) -> Response {
        let body = match self.representation {
            Representation::Object => object,
            Representation::Metadata => metadata_of(&object),
            Representation::Table => {
                let revision = object["metadata"]["resourceVersion"].clone();
                table(version, &[object], include, json!({"resourceVersion": revision}), true)
            }
        };
        self.write(code, &body)
    }

    /// A JSON value as it is.
    pub(crate) fn write(self, code: StatusCode, body: &Value) -> Response {
        self.bytes(code, serde_json::to_vec(body).unwrap_or_default().into())
    }

    pub(crate) fn bytes(self, code: StatusCode, bytes: Bytes) -> Response {
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
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A PartialObjectMetadata of an object.
pub(crate) fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// A Table of objects; watches send the column definitions only once.
pub(crate) fn table(version: &Version, objects: &[Value], include: &str, metadata: Value, columns: bool) -> Value {
    let now = Timestamp::now();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let row_object = match include {
                "Object" => object.clone(),
                "None" => Value::Null,
                _ => metadata_of(object),
            };
            let mut row = json!({"cells": (version.spec.table.row)(object, now)});
            if !row_object.is_null() {
                row["object"] = row_object;
            }
            row
        })
        .collect();
    let definitions: Vec<Value> = if columns {
        version.spec.table.columns.iter().map(|c| json!({"name": c.name, "type": c.type_, "format": c.format, "description": c.description, "priority": c.priority})).collect()
    } else {
        Vec::new()
    };
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions, "rows": rows})
}
