//! How an answer is written: the object, its metadata alone, or a table; packed when it is large.

use std::io::Write as _;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::header_text;
use crate::{registry::ResourceType, table};

/// Answers above this are packed if the client can unpack them; upstream's limit.
const PACK_ABOVE: usize = 128 << 10;

/// What the client wants to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Object,
    Table,
    Metadata,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Accept {
    pub(super) form: Form,
    /// Whether one of the forms that the client reads is one that is written here.
    pub(super) is_served: bool,
    pack: bool,
}

impl Accept {
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let accept = header_text(headers, header::ACCEPT);
        let mut form = Form::Object;
        let mut is_served = accept.trim().is_empty();
        for part in accept.split(',') {
            let wanted = part.split(';').find_map(|p| p.trim().strip_prefix("as="));
            match wanted {
                Some("Table") if part.contains("v=v1") && !part.contains("v1beta1") => form = Form::Table,
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => form = Form::Metadata,
                None if part.contains("json") || part.contains("*/*") || part.contains("application/*") => {}
                // Protobuf and others are not written here; a later choice will do.
                _ => continue,
            }
            is_served = true;
            break;
        }
        Self { form, is_served, pack: header_text(headers, header::ACCEPT_ENCODING).contains("gzip") }
    }

    /// One object.
    pub(super) fn object(self, code: StatusCode, resource: &ResourceType, object: Value, include: &str) -> Response {
        let body = match self.form {
            Form::Object => object,
            Form::Metadata => metadata_of(&object),
            Form::Table => {
                let version = object["metadata"]["resourceVersion"].clone();
                table(resource, &[object], include, json!({"resourceVersion": version}), true)
            }
        };
        self.write(code, &body)
    }

    /// A JSON value as it is.
    pub(super) fn write(self, code: StatusCode, body: &Value) -> Response {
        self.bytes(code, serde_json::to_vec(body).unwrap_or_default().into())
    }

    pub(super) fn bytes(self, code: StatusCode, bytes: Bytes) -> Response {
        let mut response = if self.pack && bytes.len() > PACK_ABOVE {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            match packer.write_all(&bytes).and_then(|()| packer.finish()) {
                Ok(packed) => {
                    let mut response = (code, Body::from(packed)).into_response();
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

/// The metadata of an object, as its own kind.
pub(super) fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// A table of objects; watches repeat the columns only once.
pub(super) fn table(
    resource: &ResourceType,
    objects: &[Value],
    include: &str,
    metadata: Value,
    columns: bool,
) -> Value {
    let now = Timestamp::now();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let shown = match include {
                "Object" => object.clone(),
                "None" => Value::Null,
                _ => metadata_of(object),
            };
            let mut row = json!({"cells": table::row(&resource.gvk, object, now)});
            if !shown.is_null() {
                row["object"] = shown;
            }
            row
        })
        .collect();
    let definitions: Vec<Value> = if columns {
        let all = table::columns(&resource.gvk);
        all.iter().map(|c| json!({"name": c.name, "type": c.type_, "format": c.format, "description": c.description, "priority": c.priority})).collect()
    } else {
        Vec::new()
    };
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions, "rows": rows})
}
