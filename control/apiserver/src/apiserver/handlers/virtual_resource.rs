//! Resources without stored objects: computed on request, as usage, or only answered to, as reviews.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use serde_json::Value;

use crate::apiserver::{
    pipeline::{
        field_manager::{self, FieldManager},
        metadata,
    },
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        request_info::RequestOptions,
        target::Target,
    },
    types::{Handler, Resource, Storage},
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

impl Storage {
    /// Nowhere: `handler` computes them, or answers to them.
    pub(crate) fn computed(handler: impl VirtualResource + 'static) -> Self {
        Self::Virtual(Handler::new::<dyn VirtualResource>(Arc::new(handler)))
    }
}

impl Resource {
    /// The handler of a virtual resource.
    ///
    /// # Errors
    /// When it was made with another kind of handler.
    pub(crate) fn as_virtual(&self) -> Result<Option<&dyn VirtualResource>, ApiError> {
        let Storage::Virtual(handler) = &self.storage else { return Ok(None) };
        let wrong = || ApiError::internal(format!("{handler:?} answers no {}", self.group_resource()));
        handler.get().map(Some).ok_or_else(wrong)
    }
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
