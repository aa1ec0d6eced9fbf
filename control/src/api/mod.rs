//! The Kubernetes API over the store: one set of handlers for all types of the registry.
//!
//! A request comes in through [`router`], with the caller's identity as an extension; `target` reads its
//! path, `auth` decides whether it may, and one file for each verb does it. Kinds are named only where
//! upstream's API has something for one kind alone (`special`).

mod access;
mod accounts;
mod allocate;
mod auth;
mod connect;
mod delete;
mod discovery;
mod error;
mod health;
mod identity;
mod kubelet;
mod metrics;
mod node_authorizer;
mod node_restriction;
mod output;
mod parts;
mod prepare;
mod read;
mod repair;
mod reviews;
mod special;
mod target;
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
use windlass_kit::serve::{self, BodyError, Caller, LongRunning, Peer};

pub use error::ApiError;
use identity::NODES;
pub use identity::UserInfo;
pub use kubelet::KubeletClient;

use crate::{
    metrics::{Ledger, Readings},
    registry,
    store::Store,
    tokens::Tokens,
};
use allocate::Allocator;
use node_authorizer::NodeGraph;
use target::{Options, Target};

/// The version that clients are told; ours stands behind the `+`.
pub const VERSION: &str = "v1.36.2+windlass";

/// Upstream's limits (`--max-requests-inflight`, `--max-mutating-requests-inflight`).
const MOST_READS: usize = 400;
const MOST_WRITES: usize = 200;
const MOST_BODY: usize = 3 << 20;
/// Of the parts of this process and of nodes, beside the limits of all others: whatever clients do, controllers,
/// scheduler, and nodes' heartbeats go on.
const SYSTEM_READS: usize = 200;
const SYSTEM_WRITES: usize = 100;
/// Reviews that are read and worked on at once, their longest body, and the time that it has to come: everybody who is
/// authenticated may ask for reviews.
const MOST_REVIEWS: usize = 64;
const MOST_REVIEW_BODY: usize = 64 << 10;
const REVIEW_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// What the server needs to know beyond the store.
#[derive(Debug, Clone)]
pub struct Settings {
    /// First address and length of the range of service addresses.
    pub service_cidr: (Ipv4Addr, u8),
    /// Ports of NodePort services.
    pub node_ports: RangeInclusive<u16>,
    /// Tokens of service accounts live no longer than this, whatever is asked for.
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
    allocator: Arc<Allocator>,
    kubelet: Option<KubeletClient>,
    tokens: Option<Tokens>,
    /// The longest life of a token that is asked for, in seconds.
    max_token_seconds: Option<i64>,
    node_graph: NodeGraph,
    usage: RwLock<Ledger>,
    /// Requests that are worked on, of all clients but those of `system`.
    shared: InFlight,
    /// Of the parts of this process, and of nodes.
    system: InFlight,
    reviews: Semaphore,
    /// Ends connections that were turned over.
    closing: CancellationToken,
}

/// How many more requests may be worked on.
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
    /// An API over `store`. Without a `kubelet` client there are no logs, without `tokens` no service accounts as callers.
    #[must_use]
    pub fn new(store: Store, settings: &Settings, kubelet: Option<KubeletClient>, tokens: Option<Tokens>) -> Self {
        let allocator = Arc::new(Allocator::new(settings, &store));
        store.settle_with(Arc::<Allocator>::clone(&allocator));
        Self {
            inner: Arc::new(Inner {
                node_graph: NodeGraph::new(store.clone()),
                max_token_seconds: settings.max_token_seconds,
                store,
                allocator,
                kubelet,
                tokens,
                usage: RwLock::default(),
                shared: InFlight::new(MOST_READS, MOST_WRITES),
                system: InFlight::new(SYSTEM_READS, SYSTEM_WRITES),
                reviews: Semaphore::new(MOST_REVIEWS),
                closing: CancellationToken::new(),
            }),
        }
    }

    /// A router whose requests carry a [`UserInfo`] extension, or that of a client certificate; without either
    /// they are anonymous.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }

    /// Adds a round of readings to what `metrics.k8s.io` tells.
    pub fn take_usage(&self, round: &Readings) {
        self.inner.usage.write().unwrap_or_else(PoisonError::into_inner).take(round);
    }

    /// Ends the connections that were turned over: they outlive their requests.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    fn store(&self) -> &Store {
        &self.inner.store
    }
}

async fn handle(State(api): State<Api>, request: Request) -> Response {
    let mut user = UserInfo::of(request.extensions());
    let in_process = request.extensions().get::<UserInfo>().is_some();
    let by_certificate = !in_process && request.extensions().get::<Peer>().is_some();
    let caller = request.extensions().get::<Caller>();
    let shown = connect::token(request.headers());
    if let Some(token) = serve::bearer(request.headers()).or(shown.as_deref()).filter(|_| user.is_anonymous()) {
        match api.account_of(token.trim(), &[crate::tokens::ISSUER]) {
            Some((account, _)) => user = account,
            None => {
                let client = caller.and_then(Caller::address).map(|address| address.ip().to_string());
                tracing::warn!(client, "a request was refused: its token is not one of this server, or is over");
                return ApiError::unauthorized().into_response();
            }
        }
        if let Some(caller) = caller {
            caller.authenticated();
        }
    }
    if let Err(error) = access::refuse_impersonation(request.headers()) {
        return error.into_response();
    }
    let (mut parts, body) = request.into_parts();
    let upgrade = Mutex::new(parts.extensions.remove::<OnUpgrade>());
    let accept = output::Accept::read(&parts.headers);
    let content_type = header_text(&parts.headers, header::CONTENT_TYPE);
    let call = Call {
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
    let response = call.answer(body).await.unwrap_or_else(|error| error.into_response());
    // Neither bodies nor queries: both can hold what nobody should read in a log.
    tracing::debug!(
        user = call.user.name,
        method = %call.method,
        path = call.uri.path(),
        status = response.status().as_u16(),
        microseconds = started.elapsed().as_micros(),
        "answered"
    );
    response
}

fn header_text(headers: &axum::http::HeaderMap, name: header::HeaderName) -> String {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned()
}

/// One request.
struct Call {
    api: Api,
    user: UserInfo,
    /// The caller is a part of this process.
    in_process: bool,
    /// The caller was authenticated by a client certificate.
    by_certificate: bool,
    method: Method,
    uri: Uri,
    accept: output::Accept,
    content_type: String,
    headers: axum::http::HeaderMap,
    /// The client's connection, for whoever takes it over.
    upgrade: Mutex<Option<OnUpgrade>>,
}

type Answer = Result<Response, ApiError>;

impl Call {
    async fn answer(&self, body: Body) -> Answer {
        let (segments, watch) = target::segments(self.uri.path())
            .ok_or_else(|| ApiError::bad_request("the path holds an escape that cannot be read"))?;
        let path = segments.join("/");
        let mut options = Options::read(&self.uri)?;
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
        let target = Target::read(&segments).ok_or_else(ApiError::unknown_path)?;
        let verb = target.verb(&self.method, &options).ok_or_else(|| target.not_allowed(&self.method))?;
        self.authorize(verb, &target, &options)?;
        if Self::also_needs_create(&target, verb) {
            self.authorize("create", &target, &options)?;
        }

        let sub = target.sub.as_deref().unwrap_or("");
        if !self.accept.is_served && sub != "log" && !connect::SUBRESOURCES.contains(&sub) {
            return Err(ApiError::not_acceptable());
        }
        if matches!(verb, "list" | "watch" | "deletecollection") {
            options.check_match()?;
        }
        // Read before the request counts: a body that does not come holds nobody up.
        let body = if self.method == Method::GET { Bytes::new() } else { self.body(body, MOST_BODY).await? };
        // Watches, logs and connections to pods last; they are not counted.
        if verb == "watch" || sub == "log" || connect::SUBRESOURCES.contains(&sub) {
            let mut answer = self.route(verb, &target, &options, &body).await?;
            answer.extensions_mut().insert(LongRunning);
            return Ok(answer);
        }
        let in_flight = self.in_flight();
        let limit = if self.method == Method::GET { &in_flight.reads } else { &in_flight.writes };
        let _permit = limit.try_acquire().map_err(|_| ApiError::too_many_requests())?;
        self.route(verb, &target, &options, &body).await
    }

    /// The caller is a part of this process, or a node.
    fn is_system(&self) -> bool {
        self.in_process || self.user.is_in(NODES)
    }

    /// The limit that the request falls under.
    fn in_flight(&self) -> &InFlight {
        if self.is_system() { &self.api.inner.system } else { &self.api.inner.shared }
    }

    async fn route(&self, verb: &str, target: &Target, options: &Options, body: &Bytes) -> Answer {
        if !target.resource.verbs.contains(&verb) && target.sub.is_none() {
            return Err(target.not_allowed(&self.method));
        }
        if target.resource.gvk.group == registry::METRICS {
            return self.metrics(target, options);
        }
        match (target.sub.as_deref(), verb) {
            (None, "get") => self.get(target),
            (None, "list") => self.list(target, options),
            (None, "watch") => self.watch(target, options),
            (None, "create") => self.create(target, options, body).await,
            (None | Some("status" | "resize" | "ephemeralcontainers"), "update") => {
                self.update(target, options, body).await
            }
            (None | Some("status" | "resize" | "ephemeralcontainers"), "patch") => {
                self.patch(target, options, body).await
            }
            (None, "delete") => self.delete(target, options, body).await,
            (None, "deletecollection") => self.delete_collection(target, options, body).await,
            (Some("status" | "resize" | "ephemeralcontainers"), "get") => self.get(target),
            (Some(_), _) => self.special(verb, target, options, body).await,
            (None, _) => Err(target.not_allowed(&self.method)),
        }
    }

    fn take_upgrade(&self) -> Option<OnUpgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn body(&self, body: Body, most: usize) -> Result<Bytes, ApiError> {
        let collected = Limited::new(body, most).collect().await;
        collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                return ApiError::new(
                    413,
                    "RequestEntityTooLarge",
                    format!("Request entity too large: limit is {most}"),
                );
            }
            match BodyError::of(error.as_ref()) {
                Some(BodyError::Timeout) => ApiError::new(408, "Timeout", BodyError::Timeout.to_string()),
                Some(BodyError::Busy) => ApiError::too_many_requests(),
                None => ApiError::bad_request(format!("the body could not be read: {error}")),
            }
        })
    }

    /// Whether the server lives and can do its work: for anybody.
    fn health(&self, path: &str) -> Option<Response> {
        let (base, check) = path.split_once('/').map_or((path, None), |(b, c)| (b, Some(c)));
        let verbose = self.uri.query().is_some_and(|q| q.contains("verbose"));
        health::answer(base, check, verbose, &self.api.store().health())
    }
}
