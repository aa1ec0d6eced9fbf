//! Resources without stored objects: computed on request, as usage, or only answered to, as reviews.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use serde_json::Value;

use super::{
    ApiRequest, ApiResult,
    error::ApiError,
    field_manager::{self, FieldManager},
    metadata,
    request_info::RequestOptions,
    target::Target,
};

/// Limits of the bodies of a virtual resource that every authenticated caller may write.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// The largest body.
    pub max_bytes: usize,
    /// The time that it may take to arrive.
    pub timeout: Duration,
}

/// A resource whose objects are not stored.
#[async_trait]
pub trait VirtualResource: Send + Sync + fmt::Debug {
    /// Limits for bodies; such requests have limits in flight of their own.
    fn body_limits(&self) -> Option<BodyLimits> {
        None
    }

    /// Handles a request that is authorized and has one of the resource's verbs.
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult;
}

impl ApiRequest {
    /// Answers an object that is posted to be answered and not to be stored. `make` gets it in its canonical form, with the
    /// owners of its fields, and gives the answer.
    ///
    /// # Errors
    /// When the object cannot be read, or `make` refuses it.
    pub(crate) fn answer_posted(
        &self,
        target: &Target,
        options: &RequestOptions,
        body: &Bytes,
        make: impl FnOnce(Value) -> Result<Value, ApiError>,
    ) -> ApiResult {
        if target.version.namespaced && target.namespace.is_none() {
            return Err(ApiError::unknown_path());
        }
        field_manager::validate_options("CreateOptions", options, false)?;
        let mut value = self.read_object(&target.version, options, body)?;
        metadata::ensure_namespace(target, metadata::metadata_of(&mut value)?)?;
        target.version.spec.schema.prune(&mut value);
        FieldManager::new(self, target, options).update(&Value::Null, &mut value);
        Ok(self.accept.write(StatusCode::CREATED, &make(value)?))
    }
}
