//! Group versions that extension API servers serve in place of this one, as APIServices register them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use axum::{
    body::{Body, Bytes},
    http::Request,
    response::Response,
};
use hyper::body::Incoming;
use serde_json::Value;

use super::priority::Priority;

/// Why a request did not reach an extension API server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtensionError {
    /// Its Service has no endpoint to send the request to.
    #[error("{0}")]
    Unresolved(String),
    /// Its APIService has certificates that cannot be read.
    #[error("{0}")]
    Misconfigured(String),
    /// The endpoint did not take it, or gave no response.
    #[error("{0}")]
    Unreachable(String),
}

/// An OpenAPI document of version 2 with the tag that says which it is.
#[derive(Debug)]
pub struct OpenApiV2 {
    /// The server's own, or the hash of what it says.
    pub etag: String,
    /// The document.
    pub document: Value,
}

/// An OpenAPI document of version 3 that this server has for an extension API server.
#[derive(Debug)]
pub struct OpenApiV3 {
    /// The hash of what it says, by which clients keep it.
    pub hash: String,
    /// Its text.
    pub text: Bytes,
}

/// The way to an extension API server.
#[async_trait]
pub trait ExtensionServer: Send + Sync + fmt::Debug {
    /// Sends a request whose headers say who it is from, and waits for the head of the response. The connection of one that
    /// `lasts` is used for nothing else.
    async fn send(&self, request: Request<Body>, lasts: bool) -> Result<Response<Incoming>, ExtensionError>;

    /// The OpenAPI document of version 2, as it was when it was last read; `None` where there is none, or none in time.
    async fn openapi_v2(&self) -> Option<Arc<OpenApiV2>>;
}

/// A group version that an extension API server serves.
#[derive(Debug, Clone)]
pub struct Extension {
    /// The group.
    pub group: String,
    /// The version.
    pub version: String,
    /// Its place in discovery.
    pub priority: Priority,
    /// Whether requests are passed on: the APIService is available.
    pub is_available: bool,
    /// The version in aggregated discovery, as far as it is known.
    pub discovery: Arc<Value>,
    /// The OpenAPI documents of version 3 that it has for the group, by their paths: where each is.
    pub openapi_v3: Arc<BTreeMap<String, String>>,
    /// The document of the group version, where the server itself has none of version 3.
    pub converted: Option<Arc<OpenApiV3>>,
    /// The way to the server.
    pub server: Arc<dyn ExtensionServer>,
}

impl PartialEq for Extension {
    /// Whether clients see no difference.
    fn eq(&self, other: &Self) -> bool {
        (&self.group, &self.version, self.priority) == (&other.group, &other.version, other.priority)
            && self.is_available == other.is_available
            && self.discovery == other.discovery
            && self.openapi_v3 == other.openapi_v3
            && self.converted.as_ref().map(Arc::as_ptr) == other.converted.as_ref().map(Arc::as_ptr)
            && Arc::ptr_eq(&self.server, &other.server)
    }
}
