//! Documents that do not change while the server runs, at paths that are no resources.

use axum::{
    http::{Method, header},
    response::IntoResponse as _,
};

use crate::apiserver::request::{
    api_request::ApiRequest,
    error::{ApiError, ApiResult},
};

impl ApiRequest {
    /// The document at a path, if there is one.
    pub(in crate::apiserver) fn document(&self, path: &str) -> Option<ApiResult> {
        let found = self.api.inner.documents.iter().find(|document| document.path == path)?;
        if !matches!(self.method, Method::GET | Method::HEAD) {
            return Some(Err(ApiError::method_not_allowed_here()));
        }
        // An hour, as upstream's.
        let headers = [(header::CONTENT_TYPE, found.content_type), (header::CACHE_CONTROL, "public, max-age=3600")];
        Some(Ok((headers, found.body.clone()).into_response()))
    }
}
