//! `/metrics`: what the parts of this process have registered, for Prometheus.

use axum::{
    http::{Method, header},
    response::IntoResponse as _,
};
use windlass_kit::prometheus::Format;

use super::{
    chain::{ApiRequest, ApiResult, header_text},
    error::ApiError,
};

/// The path that is authorized as a non-resource URL.
pub(super) const PATH: &str = "/metrics";

impl ApiRequest {
    pub(super) fn metrics_page(&self) -> ApiResult {
        if self.method != Method::GET {
            return Err(ApiError::method_not_allowed_here());
        }
        let format = Format::accepted(&header_text(&self.headers, header::ACCEPT));
        Ok(([(header::CONTENT_TYPE, format.content_type())], self.api.metrics().page(format)).into_response())
    }
}
