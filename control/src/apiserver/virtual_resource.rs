//! Resources without stored objects: computed on request, as usage, or only answered to, as reviews.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use axum::body::Bytes;

use super::{ApiRequest, ApiResult, request_info::RequestOptions, target::Target};

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
