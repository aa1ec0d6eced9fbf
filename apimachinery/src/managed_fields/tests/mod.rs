//! Tests: of sets and their text, of the typed operations, and of whole sequences.

mod fieldsets;
mod objects;
mod properties;
mod recorded;
mod types;
mod versions;

use serde_json::Value;

use super::{FieldSet, OneVersion, Request, Type};
use crate::schema::Schema;

/// A set from its FieldsV1 document.
#[track_caller]
fn set(document: Value) -> FieldSet {
    FieldSet::from_fields_v1(&document).expect("a FieldsV1 document")
}

/// A request to a type of one version by a manager.
fn request<'a>(schema: &'a Schema, object_meta: &'a Schema, manager: &'a str, reset: &'a FieldSet) -> Request<'a> {
    Request {
        ty: Type::new(schema, object_meta),
        api_version: "v1",
        subresource: "",
        reset,
        versions: &OneVersion,
        manager,
        now: "2026-01-01T00:00:00Z",
    }
}
