//! `/metrics`: what the parts of this process have registered, for Prometheus.

use axum::{
    http::{Method, header},
    response::IntoResponse as _,
};
use windlass_kit::prometheus::{Format, Text};

use super::{
    chain::{ApiRequest, ApiResult, header_text},
    error::ApiError,
    health,
};

/// The path that is authorized as a non-resource URL.
pub(super) const PATH: &str = "/metrics";
/// The path of the results of health checks, upstream's service level indicators of components.
pub(super) const SLIS_PATH: &str = "/metrics/slis";

impl ApiRequest {
    pub(super) fn metrics_page(&self) -> ApiResult {
        self.text(|format| self.api.metrics().page(format))
    }

    /// Every check is made for the page, so that it tells of now, whoever else asks for health.
    pub(super) fn slis_page(&self) -> ApiResult {
        self.text(|format| {
            health::check_all(&self.store().health(), &self.api.inner.health_checks);
            let mut page = Text::of(format);
            self.api.inner.health_checks.write(&mut page);
            page.finish()
        })
    }

    fn text(&self, page: impl FnOnce(Format) -> String) -> ApiResult {
        if self.method != Method::GET {
            return Err(ApiError::method_not_allowed_here());
        }
        let format = Format::accepted(&header_text(&self.headers, header::ACCEPT));
        Ok(([(header::CONTENT_TYPE, format.content_type())], page(format)).into_response())
    }
}
