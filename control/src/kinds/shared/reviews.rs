//! Reviews: resources that are only created, and answered instead of stored.

use std::{sync::Arc, time::Duration};

use axum::body::Bytes;
use serde_json::{Value, json};

use crate::{
    apiserver::{
        ApiError, BodyLimits, Strategy, Target, VirtualResource,
        types::{Definition, Resource, Storage, VersionSpec},
    },
    kinds::types,
    schema::{self, ContentType},
};

/// Every authenticated caller may send reviews.
pub(crate) const LIMITS: BodyLimits = BodyLimits { max_bytes: 64 << 10, timeout: Duration::from_secs(5) };

/// The resource of a review.
pub(crate) fn definition(
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    handler: Arc<dyn VirtualResource>,
) -> Definition {
    let mut resource = Resource::new(group, plural, kind, Review);
    resource.namespaced = false;
    resource.verbs = vec!["create"];
    resource.storage = Storage::Virtual(handler);
    let schema = types::built_in(&format!("{group}/v1"), kind);
    Definition::single(resource, VersionSpec::new("v1", schema))
}

#[derive(Debug)]
struct Review;

impl Strategy for Review {}

/// Decodes a review.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(body: &Bytes) -> Result<Value, ApiError> {
    let decoded = schema::decode(body, ContentType::Json);
    let review = decoded.map_err(|why| ApiError::bad_request(format!("the review cannot be read: {why}")))?.value;
    Ok(if review.is_object() { review } else { json!({}) })
}

/// A review with its status.
pub(crate) fn answer(target: &Target, mut review: Value, status: Value) -> Value {
    review["apiVersion"] = json!(target.version.gvk.api_version());
    review["kind"] = json!(target.version.gvk.kind);
    review["status"] = status;
    review
}
