//! The Kubernetes API over the store: one set of handlers for all types of the registry.
//!
//! A request enters through [`router`] and passes authentication, discovery and health, `request_info`, authorization,
//! decoding, admission, strategy and validation before it reaches the store through `commit`. Kinds are named only in
//! `admission`, `strategy` and `subresources`, where upstream's API treats one kind alone.

mod admission;
mod authentication;
mod authorization;
mod commit;
mod decode;
mod delete;
mod discovery;
mod error;
mod field_manager;
mod generate;
mod health;
mod kubelet_client;
mod metadata;
mod metrics;
mod negotiation;
mod node_authorizer;
mod preconditions;
mod qos;
mod read;
mod repair;
mod request_info;
mod reviews;
mod service_allocator;
mod strategy;
mod subresources;
mod watch;
mod write;

#[cfg(test)]
mod tests;

use std::{
    net::Ipv4Addr,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{Method, Uri, header},
    response::{IntoResponse as _, Response},
};
use http_body_util::{BodyExt as _, Limited};
use hyper::upgrade::OnUpgrade;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::{self, BodyError, Caller, ClientIdentity, LongRunning};

use authentication::NODES_GROUP;
pub use authentication::UserInfo;
pub use error::ApiError;
pub use kubelet_client::KubeletClient;

use crate::{
    metrics::{Readings, SampleWindow},
    registry::{self, ResourceType},
    service_account_tokens::TokenIssuer,
    store::{ResourceId, Store},
};
use node_authorizer::NodeGraph;
use request_info::{RequestInfo, RequestOptions};
use service_allocator::{SERVICES, ServiceAllocator};

/// The version that clients see; `+windlass` marks the build.
pub const VERSION: &str = "v1.36.2+windlass";

/// Upstream's limits (`--max-requests-inflight`, `--max-mutating-requests-inflight`).
const MAX_REQUESTS_IN_FLIGHT: usize = 400;
const MAX_MUTATING_REQUESTS_IN_FLIGHT: usize = 200;
const MAX_BODY_BYTES: usize = 3 << 20;
/// Separate limits for components of this process and for nodes, so that controllers, scheduler and heartbeats continue
/// whatever other clients do.
const MAX_SYSTEM_REQUESTS_IN_FLIGHT: usize = 200;
const MAX_SYSTEM_MUTATING_REQUESTS_IN_FLIGHT: usize = 100;
/// Limits of reviews, which every authenticated caller may create: in flight, body size, and time for the body.
const MAX_REVIEWS_IN_FLIGHT: usize = 64;
const MAX_REVIEW_BODY_BYTES: usize = 64 << 10;
const REVIEW_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of the API server.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// First address and prefix length of the service CIDR.
    pub service_cidr: (Ipv4Addr, u8),
    /// The node port range.
    pub node_ports: RangeInclusive<u16>,
    /// Maximum lifetime of service account tokens, in seconds.
    pub max_token_seconds: Option<i64>,
}

/// The API server, apart from its sockets.
#[derive(Debug, Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    allocator: Arc<ServiceAllocator>,
    kubelet: Option<KubeletClient>,
    tokens: Option<TokenIssuer>,
    /// Maximum lifetime of service account tokens, in seconds.
    max_token_seconds: Option<i64>,
    node_graph: NodeGraph,
    usage: RwLock<SampleWindow>,
    /// Limits of all callers but those of `system`.
    shared: InFlight,
    /// Limits of components of this process and of nodes.
    system: InFlight,
    reviews: Semaphore,
    /// Closes upgraded connections.
    closing: CancellationToken,
}

/// Limits of requests in flight.
#[derive(Debug)]
struct InFlight {
    reads: Semaphore,
    writes: Semaphore,
}

impl InFlight {
    fn new(reads: usize, writes: usize) -> Self {
        Self { reads: Semaphore::new(reads), writes: Semaphore::new(writes) }
    }
}

impl Api {
    /// An API over `store`. Without a `kubelet` client there are no logs, without `tokens` service accounts cannot
    /// authenticate.
    #[must_use]
    pub fn new(store: Store, config: &ApiConfig, kubelet: Option<KubeletClient>, tokens: Option<TokenIssuer>) -> Self {
        let allocator = Arc::new(ServiceAllocator::new(config.service_cidr, config.node_ports.clone(), &store));
        store.set_allocator(store.resource(SERVICES), Arc::<ServiceAllocator>::clone(&allocator));
        Self {
            inner: Arc::new(Inner {
                node_graph: NodeGraph::new(store.clone()),
                max_token_seconds: config.max_token_seconds,
                store,
                allocator,
                kubelet,
                tokens,
                usage: RwLock::default(),
                shared: InFlight::new(MAX_REQUESTS_IN_FLIGHT, MAX_MUTATING_REQUESTS_IN_FLIGHT),
                system: InFlight::new(MAX_SYSTEM_REQUESTS_IN_FLIGHT, MAX_SYSTEM_MUTATING_REQUESTS_IN_FLIGHT),
                reviews: Semaphore::new(MAX_REVIEWS_IN_FLIGHT),
                closing: CancellationToken::new(),
            }),
        }
    }

    /// A router whose requests carry a [`UserInfo`] extension, or that of a client certificate; without either
    /// they are anonymous.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }

    /// Adds a sample of usage to `metrics.k8s.io`.
    pub fn record_usage(&self, readings: &Readings) {
        self.inner.usage.write().unwrap_or_else(PoisonError::into_inner).record(readings);
    }

    /// Closes upgraded connections, which outlive their requests.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    fn store(&self) -> &Store {
        &self.inner.store
    }

    fn resource_id(&self, resource: &ResourceType) -> ResourceId {
        self.store().resource(resource.group_resource())
    }
}

async fn handle(State(api): State<Api>, request: Request) -> Response {
    let mut user = UserInfo::from_extensions(request.extensions());
    let in_process = request.extensions().get::<UserInfo>().is_some();
    let by_certificate = !in_process && request.extensions().get::<ClientIdentity>().is_some();
    let caller = request.extensions().get::<Caller>();
    let websocket_token = authentication::protocol_token(request.headers());
    if let Some(token) = serve::bearer(request.headers()).or(websocket_token.as_deref()).filter(|_| user.is_anonymous())
    {
        match api.authenticate_token(token.trim(), &[crate::service_account_tokens::ISSUER]) {
            Some((account, _)) => user = account,
            None => {
                let client = caller.and_then(Caller::address).map(|address| address.ip().to_string());
                tracing::warn!(client, "unauthenticated request: token is invalid or has expired");
                return ApiError::unauthorized().into_response();
            }
        }
        if let Some(caller) = caller {
            caller.authenticated();
        }
    }
    if let Err(error) = authentication::refuse_impersonation(request.headers()) {
        return error.into_response();
    }
    let (mut parts, body) = request.into_parts();
    let upgrade = Mutex::new(parts.extensions.remove::<OnUpgrade>());
    let accept = negotiation::Accept::read(&parts.headers);
    let content_type = header_text(&parts.headers, header::CONTENT_TYPE);
    let request = ApiRequest {
        api,
        user,
        in_process,
        by_certificate,
        method: parts.method,
        uri: parts.uri,
        accept,
        content_type,
        headers: parts.headers,
        upgrade,
    };
    let started = Instant::now();
    let response = request.respond(body).await.unwrap_or_else(|error| error.into_response());
    // Bodies and queries may hold secrets and are not logged.
    tracing::debug!(
        user = request.user.name,
        method = %request.method,
        path = request.uri.path(),
        status = response.status().as_u16(),
        microseconds = started.elapsed().as_micros(),
        "handled request"
    );
    response
}

fn header_text(headers: &axum::http::HeaderMap, name: header::HeaderName) -> String {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned()
}

/// One request.
struct ApiRequest {
    api: Api,
    user: UserInfo,
    /// The caller is a component of this process.
    in_process: bool,
    /// The caller was authenticated by a client certificate.
    by_certificate: bool,
    method: Method,
    uri: Uri,
    accept: negotiation::Accept,
    content_type: String,
    headers: axum::http::HeaderMap,
    /// The client's connection, for the handler that upgrades it.
    upgrade: Mutex<Option<OnUpgrade>>,
}

type ApiResult = Result<Response, ApiError>;

impl ApiRequest {
    async fn respond(&self, body: Body) -> ApiResult {
        let (segments, watch) = request_info::segments(self.uri.path())
            .ok_or_else(|| ApiError::bad_request("the path holds an escape that cannot be read"))?;
        let path = segments.join("/");
        let mut options = RequestOptions::parse(&self.uri)?;
        options.watch |= watch;
        if let Some(answer) = self.health(&path) {
            return Ok(answer);
        }
        if self.user.is_anonymous() && path != "version" {
            return Err(ApiError::unauthorized());
        }
        if let Some(answer) = discovery::answer(&path, &self.method, &self.headers, &options) {
            return answer;
        }
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        if let ["apis", group @ ("authorization.k8s.io" | "authentication.k8s.io"), "v1", kind] = segments[..] {
            return reviews::answer(self, group, kind, body).await;
        }
        let info = RequestInfo::parse(&segments).ok_or_else(ApiError::unknown_path)?;
        let verb = info.verb(&self.method, &options).ok_or_else(|| info.method_not_allowed(&self.method))?;
        self.authorize(verb, &info, &options)?;
        if Self::requires_create(&info, verb) {
            self.authorize("create", &info, &options)?;
        }

        let subresource = info.subresource.as_deref().unwrap_or("");
        if !self.accept.is_acceptable
            && subresource != "log"
            && !subresources::CONNECT_SUBRESOURCES.contains(&subresource)
        {
            return Err(ApiError::not_acceptable());
        }
        if matches!(verb, "list" | "watch" | "deletecollection") {
            options.validate_list_options()?;
        }
        // Read before the in-flight limit applies: a slow body must not block others.
        let body = if self.method == Method::GET { Bytes::new() } else { self.body(body, MAX_BODY_BYTES).await? };
        // Long-running requests are not counted.
        if verb == "watch" || subresource == "log" || subresources::CONNECT_SUBRESOURCES.contains(&subresource) {
            let mut answer = self.route(verb, &info, &options, &body).await?;
            answer.extensions_mut().insert(LongRunning);
            return Ok(answer);
        }
        let in_flight = self.in_flight();
        let limit = if self.method == Method::GET { &in_flight.reads } else { &in_flight.writes };
        let _permit = limit.try_acquire().map_err(|_| ApiError::too_many_requests())?;
        self.route(verb, &info, &options, &body).await
    }

    /// The caller is a component of this process, or a node.
    fn is_system(&self) -> bool {
        self.in_process || self.user.is_in(NODES_GROUP)
    }

    /// The in-flight limits of the caller.
    fn in_flight(&self) -> &InFlight {
        if self.is_system() { &self.api.inner.system } else { &self.api.inner.shared }
    }

    async fn route(&self, verb: &str, info: &RequestInfo, options: &RequestOptions, body: &Bytes) -> ApiResult {
        if !info.resource.verbs.contains(&verb) && info.subresource.is_none() {
            return Err(info.method_not_allowed(&self.method));
        }
        if info.resource.gvk.group == registry::METRICS_GROUP {
            return self.metrics(info, options);
        }
        match (info.subresource.as_deref(), verb) {
            (None, "get") => self.get(info),
            (None, "list") => self.list(info, options),
            (None, "watch") => self.watch(info, options),
            (None, "create") => self.create(info, options, body).await,
            (None | Some("status" | "resize" | "ephemeralcontainers"), "update") => {
                self.update(info, options, body).await
            }
            (None | Some("status" | "resize" | "ephemeralcontainers"), "patch") => {
                self.patch(info, options, body).await
            }
            (None, "delete") => self.delete(info, options, body).await,
            (None, "deletecollection") => self.delete_collection(info, options, body).await,
            (Some("status" | "resize" | "ephemeralcontainers"), "get") => self.get(info),
            (Some(_), _) => self.handle_subresource(verb, info, options, body).await,
            (None, _) => Err(info.method_not_allowed(&self.method)),
        }
    }

    fn take_upgrade(&self) -> Option<OnUpgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn body(&self, body: Body, max_bytes: usize) -> Result<Bytes, ApiError> {
        let collected = Limited::new(body, max_bytes).collect().await;
        collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                return ApiError::new(
                    413,
                    "RequestEntityTooLarge",
                    format!("Request entity too large: limit is {max_bytes}"),
                );
            }
            match BodyError::of(error.as_ref()) {
                Some(BodyError::Timeout) => ApiError::new(408, "Timeout", BodyError::Timeout.to_string()),
                Some(BodyError::Busy) => ApiError::too_many_requests(),
                None => ApiError::bad_request(format!("the body could not be read: {error}")),
            }
        })
    }

    /// Serves the health endpoints, which need no authentication.
    fn health(&self, path: &str) -> Option<Response> {
        let (base, check) = path.split_once('/').map_or((path, None), |(b, c)| (b, Some(c)));
        let verbose = self.uri.query().is_some_and(|q| q.contains("verbose"));
        health::answer(base, check, verbose, &self.api.store().health())
    }
}
