//! Reviews: resources that are only created, and answered instead of stored.

use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use serde_json::Value;

use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, BodyLimits, RequestOptions, Strategy, Target, VirtualResource,
        types::{Definition, Resource, Storage, VersionSpec},
    },
    kinds::types,
};

/// Makes the answer of a review.
pub(crate) type Answer = fn(&ApiRequest, Value) -> Result<Value, ApiError>;

/// The resource of a review.
pub(crate) fn definition(group: &'static str, plural: &'static str, kind: &'static str, answer: Answer) -> Definition {
    let mut resource = Resource::new(group, plural, kind, ReviewStrategy);
    resource.namespaced = false;
    resource.verbs = vec!["create"];
    resource.storage = Storage::computed(Review { answer });
    let schema = types::built_in(&format!("{group}/v1"), kind);
    Definition::single(resource, VersionSpec::new("v1", schema))
}

#[derive(Debug)]
struct ReviewStrategy;

impl Strategy for ReviewStrategy {}

#[derive(Debug)]
struct Review {
    answer: Answer,
}

#[async_trait]
impl VirtualResource for Review {
    /// Every authenticated caller may send reviews.
    fn body_limits(&self) -> Option<BodyLimits> {
        Some(BodyLimits { max_bytes: 64 << 10, timeout: Duration::from_secs(5) })
    }

    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult {
        request.answer_posted(target, options, body, |review| (self.answer)(request, review))
    }
}

/// A review with its status.
pub(crate) fn with_status(mut review: Value, status: Value) -> Value {
    review["status"] = status;
    review
}

/// The answer to a review of the caller, which repeats nothing of it.
pub(crate) fn answer_of(review: &Value, metadata: Value, status: Value) -> Value {
    let mut answer = serde_json::json!({"metadata": metadata, "status": status});
    for field in ["apiVersion", "kind"] {
        answer[field] = review[field].clone();
    }
    answer
}
