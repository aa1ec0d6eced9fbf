//! `/metrics`: what the parts of this process have registered, for Prometheus.

use axum::{
    http::{Method, header},
    response::IntoResponse as _,
};
use windlass_kit::{
    prometheus::{Format, Text},
    serve::headers,
};

use crate::apiserver::request::{
    api_request::ApiRequest,
    error::{ApiError, ApiResult},
};

/// The path that is authorized as a non-resource URL.
pub(in crate::apiserver) const PATH: &str = "/metrics";
/// The path of the results of health checks, upstream's service level indicators of components.
pub(in crate::apiserver) const SLIS_PATH: &str = "/metrics/slis";

impl ApiRequest {
    pub(in crate::apiserver) fn metrics_page(&self) -> ApiResult {
        self.text(|format| self.api.metrics().page(format))
    }

    /// Every check is run for each request, so that the page shows the current state, whoever else polls health.
    pub(in crate::apiserver) fn slis_page(&self) -> ApiResult {
        self.text(|format| {
            self.api.check_all();
            let mut page = Text::of(format);
            self.api.inner.health_checks.write(&mut page);
            page.finish()
        })
    }

    fn text(&self, page: impl FnOnce(Format) -> String) -> ApiResult {
        if self.method != Method::GET {
            return Err(ApiError::method_not_allowed_here());
        }
        let format = Format::accepted(&headers::shown(&self.headers, header::ACCEPT.as_str()));
        Ok(([(header::CONTENT_TYPE, format.content_type())], page(format)).into_response())
    }
}
