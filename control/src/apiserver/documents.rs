//! Documents that do not change while the server runs, at paths that are no resources.

use axum::{
    body::Bytes,
    http::{Method, header},
    response::IntoResponse as _,
};

use super::{
    chain::{ApiRequest, ApiResult},
    error::ApiError,
};

/// A document, authorized as a non-resource URL.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its path.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its content.
    pub body: Bytes,
}

impl ApiRequest {
    /// The document at a path, if there is one.
    pub(super) fn document(&self, path: &str) -> Option<ApiResult> {
        let found = self.api.inner.documents.iter().find(|document| document.path == path)?;
        if !matches!(self.method, Method::GET | Method::HEAD) {
            return Some(Err(ApiError::method_not_allowed_here()));
        }
        // An hour, as upstream's.
        let headers = [(header::CONTENT_TYPE, found.content_type), (header::CACHE_CONTROL, "public, max-age=3600")];
        Some(Ok((headers, found.body.clone()).into_response()))
    }
}
