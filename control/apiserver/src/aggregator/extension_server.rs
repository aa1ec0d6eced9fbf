//! The way to an extension API server: an endpoint of its Service, over a connection by which it knows this server.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, Request, StatusCode, header},
    response::Response,
};
use hyper::body::Incoming;
use tokio::time::Instant;
use windlass_kit::serve::headers;

use super::{
    api_service::{ApiService, ServicePort},
    openapi::OpenApiCache,
};
use crate::{
    apiserver::{
        User,
        handlers::proxy::head::auth_proxy_headers,
        types::{ExtensionError, ExtensionServer, OpenApiV2},
    },
    webhook::{self, ClientConfig, ExtensionClients, resolver::Endpoint},
};

/// What is asked of an extension API server on behalf of nobody else.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) path: &'a str,
    pub(super) user: &'a User,
    pub(super) accept: &'static str,
    /// What is known already.
    pub(super) etag: &'a str,
    pub(super) max_bytes: usize,
    pub(super) timeout: Duration,
}

/// What it has answered.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) status: StatusCode,
    pub(super) content_type: String,
    pub(super) etag: String,
    pub(super) body: Bytes,
}

/// The server of a group version.
#[derive(Clone)]
pub(super) struct RemoteServer {
    clients: Arc<ExtensionClients>,
    at: ServicePort,
    config: Result<ClientConfig, String>,
    openapi: Arc<OpenApiCache>,
}

impl fmt::Debug for RemoteServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteServer").field(&self.at).finish()
    }
}

impl RemoteServer {
    pub(super) fn new(clients: &Arc<ExtensionClients>, api_service: &ApiService) -> Self {
        Self {
            clients: Arc::clone(clients),
            at: api_service.at.clone(),
            config: api_service.config.clone(),
            openapi: Arc::new(OpenApiCache::new(&api_service.path())),
        }
    }

    /// Whether it is the server of an APIService.
    pub(super) fn is_of(&self, api_service: &ApiService) -> bool {
        (&self.at, &self.config) == (&api_service.at, &api_service.config)
    }

    /// An endpoint that a request may be sent to.
    pub(super) fn endpoint(&self) -> Result<Endpoint, String> {
        self.clients.endpoint(&self.at.service, self.at.port).map_err(|error| error.to_string())
    }

    /// Sends a request to an endpoint, and waits for the head of the response.
    pub(super) async fn send_to(
        &self,
        endpoint: &Endpoint,
        mut request: Request<Body>,
        lasts: bool,
    ) -> Result<Response<Incoming>, ExtensionError> {
        let config = self.config.as_ref().map_err(|why| ExtensionError::Misconfigured(why.clone()))?;
        let pool = self.clients.pool(config).map_err(|why| ExtensionError::Misconfigured(why.to_string()))?;
        let host = HeaderValue::from_str(&endpoint.address.to_string());
        let host = host.map_err(|error| ExtensionError::Unreachable(error.to_string()))?;
        request.headers_mut().insert(header::HOST, host);
        let sent = pool.send(&self.clients, endpoint, request, lasts).await;
        sent.map_err(|error| ExtensionError::Unreachable(error.to_string()))
    }

    /// Asks for something and reads the answer, bounded in size and in time.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn fetch(&self, ask: &Ask<'_>) -> Result<Fetched, String> {
        let deadline = Instant::now() + ask.timeout;
        let answered = async {
            let answer = self.send(get(ask)?, false).await.map_err(|error| error.to_string())?;
            let (parts, body) = answer.into_parts();
            let shown = |name: header::HeaderName| headers::shown(&parts.headers, name.as_str()).into_owned();
            let (content_type, etag) = (shown(header::CONTENT_TYPE), shown(header::ETAG));
            let body = webhook::read(body, ask.max_bytes).await?;
            Ok(Fetched { status: parts.status, content_type, etag, body })
        };
        tokio::time::timeout_at(deadline, answered).await.unwrap_or_else(|_| Err("request timed out".to_owned()))
    }
}

/// A request on behalf of a user.
pub(super) fn get(ask: &Ask<'_>) -> Result<Request<Body>, String> {
    let mut all = HeaderMap::new();
    auth_proxy_headers(&mut all, ask.user)?;
    all.insert(header::ACCEPT, HeaderValue::from_static(ask.accept));
    if !ask.etag.is_empty() {
        let known = HeaderValue::from_bytes(ask.etag.as_bytes()).map_err(|error| error.to_string())?;
        all.insert(header::IF_NONE_MATCH, known);
    }
    let mut request = Request::get(ask.path).body(Body::empty()).map_err(|error| error.to_string())?;
    *request.headers_mut() = all;
    Ok(request)
}

#[async_trait]
impl ExtensionServer for RemoteServer {
    async fn send(&self, request: Request<Body>, lasts: bool) -> Result<Response<Incoming>, ExtensionError> {
        let endpoint = self.endpoint().map_err(ExtensionError::Unresolved)?;
        self.send_to(&endpoint, request, lasts).await
    }

    async fn openapi_v2(&self) -> Option<Arc<OpenApiV2>> {
        self.openapi.document(self.clone()).await
    }
}
