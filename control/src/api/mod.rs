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
    time::Instant,
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

pub use error::ApiError;
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

/// Upstream's limits.
const MOST_READS: usize = 400;
const MOST_WRITES: usize = 200;
const MOST_BODY: usize = 3 << 20;

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
    reads: Semaphore,
    writes: Semaphore,
    /// Ends connections that were turned over.
    closing: CancellationToken,
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
                reads: Semaphore::new(MOST_READS),
                writes: Semaphore::new(MOST_WRITES),
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
    let bearer = header_text(request.headers(), header::AUTHORIZATION);
    let shown = connect::token(request.headers());
    if let Some(token) = bearer.strip_prefix("Bearer ").or(shown.as_deref()).filter(|_| user.is_anonymous()) {
        match api.account_of(token.trim(), &[crate::tokens::ISSUER]) {
            Some((account, _)) => user = account,
            None => return ApiError::unauthorized().into_response(),
        }
    }
    if let Err(error) = access::refuse_impersonation(request.headers()) {
        return error.into_response();
    }
    let (mut parts, body) = request.into_parts();
    let upgrade = Mutex::new(parts.extensions.remove::<OnUpgrade>());
    let accept = output::Accept::read(&parts.headers);
    let content_type = header_text(&parts.headers, header::CONTENT_TYPE);
    let call =
        Call { api, user, method: parts.method, uri: parts.uri, accept, content_type, headers: parts.headers, upgrade };
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
            let body = self.body(body).await?;
            return reviews::answer(self, group, kind, &body);
        }
        let target = Target::read(&segments).ok_or_else(ApiError::unknown_path)?;
        let verb = target.verb(&self.method, &options).ok_or_else(|| target.not_allowed(&self.method))?;
        self.authorize(verb, &target, &options)?;
        if Self::also_needs_create(&target, verb) {
            self.authorize("create", &target, &options)?;
        }

        // Watches, logs and connections to pods last; they are not counted.
        let sub = target.sub.as_deref().unwrap_or("");
        if !self.accept.is_served && sub != "log" && !connect::SUBRESOURCES.contains(&sub) {
            return Err(ApiError::not_acceptable());
        }
        if matches!(verb, "list" | "watch" | "deletecollection") {
            options.check_match()?;
        }
        let long = verb == "watch" || sub == "log" || connect::SUBRESOURCES.contains(&sub);
        let limit = if self.method == Method::GET { &self.api.inner.reads } else { &self.api.inner.writes };
        let _permit = if long { None } else { Some(limit.try_acquire().map_err(|_| ApiError::too_many_requests())?) };
        let body = if self.method == Method::GET { Bytes::new() } else { self.body(body).await? };
        self.route(verb, &target, &options, &body).await
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

    async fn body(&self, body: Body) -> Result<Bytes, ApiError> {
        let collected = Limited::new(body, MOST_BODY).collect().await;
        collected.map(http_body_util::Collected::to_bytes).map_err(|e| {
            if e.is::<http_body_util::LengthLimitError>() {
                ApiError::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {MOST_BODY}"))
            } else {
                ApiError::bad_request(format!("the body could not be read: {e}"))
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
