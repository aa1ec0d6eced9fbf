//! The kubelet API of the node: pods, logs, usage, exec, attach and port-forward.
//!
//! Up to four listeners: the secure one (TLS and credentials, everything), an in-process one for an API server of the
//! same process with the same routes, an optional read-only one without credentials, and one for health. Imports
//! `engine` and `network`, and of `pods` only how a Pod object is read.

mod auth;
mod authz;
mod container_exits;
mod dashboard;
mod files;
mod health;
mod log_query;
mod logs;
mod metrics;
mod pod_endpoints;
mod stream;
mod usage;

use std::{
    fmt,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::Body,
    extract::Request,
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse as _, Response},
    routing::{any, get, post},
};
use http_body_util::Limited;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::Usage;
use windlass_kit::{
    liveness::Heartbeats,
    serve::{self, InProcessListener, ReservedAddresses, ServeError, Tls, headers},
    slis::HealthChecks,
};

pub use container_exits::Exits;
pub use stream::Streaming;
#[cfg(any(test, feature = "fuzzing"))]
pub use stream::fuzzing;

use crate::{
    RunningContainers,
    engine::{Engine, Health},
    images::PullsInProgress,
    metrics::Metrics,
    probe_metrics::ProbeMetrics,
};

/// Grace period of streaming connections at shutdown.
const STREAM_SHUTDOWN_GRACE: Duration = Duration::from_secs(4);
/// How long a pod that is not known yet is waited for.
const POD_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a request body.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Configuration of the node's API.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The node's name, for access reviews.
    pub node_name: String,
    /// Address of the secure listener.
    pub secure: SocketAddr,
    /// Address of the read-only listener, if any.
    pub read_only: Option<SocketAddr>,
    /// Address of the health listener.
    pub health: SocketAddr,
    /// A `GET` that opens a connection to a process or a port is authorized as `create`, not as `get`.
    pub get_needs_create: bool,
    /// `enableDebuggingHandlers`: whether exec, attach, port-forward and logs are served.
    pub debugging_handlers: bool,
    /// `enableSystemLogHandler`: whether `/logs/` is served.
    pub system_log_handler: bool,
}

/// What the node reports about itself, for `/configz`, `/flagz`, `/statusz` and metrics.
#[derive(Debug)]
pub struct NodeInfo {
    /// The node's name.
    pub node_name: String,
    /// The certificate of the secure listener.
    pub certificate: Tls,
    /// The program's version.
    pub version: String,
    /// When it started.
    pub started: Instant,
    /// The effective configuration, as a KubeletConfiguration.
    pub settings: serde_json::Value,
    /// The effective flags: names and values.
    pub flags: Vec<(String, String)>,
}

/// What `/logs/` serves.
#[derive(Debug, Clone)]
pub struct SystemLogs {
    /// The log directory.
    pub root: PathBuf,
    /// `enableSystemLogQuery`: whether logs of services can be queried.
    pub query: bool,
}

/// State of the HTTP handlers.
#[derive(Clone)]
pub struct ServerState {
    /// For access reviews.
    pub client: Client,
    /// For logs.
    pub engine: Engine,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// Running containers, sandboxes included.
    pub containers: RunningContainers,
    /// Their ends.
    pub exits: Exits,
    /// Whether Docker answers.
    pub docker: watch::Receiver<Health>,
    /// Progress of image pulls.
    pub pulls: watch::Receiver<PullsInProgress>,
    /// Usage of the node, pods and containers.
    pub usage: Usage,
    /// Results of probes.
    pub probes: ProbeMetrics,
    /// Upgraded connections.
    pub streaming: Streaming,
    /// Liveness of the agent's loops.
    pub heartbeats: Heartbeats,
    /// How health checks ended.
    pub health_checks: Arc<HealthChecks>,
    /// The agent's metrics.
    pub metrics: Arc<Metrics>,
    /// What `/logs/` serves.
    pub system_logs: SystemLogs,
    /// What the node reports about itself.
    pub node_info: Arc<NodeInfo>,
}

impl fmt::Debug for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerState").field("usage", &self.usage).finish_non_exhaustive()
    }
}

/// The bound listeners of the node's API.
#[derive(Debug)]
pub struct Listeners {
    secure: TcpListener,
    read_only: Option<TcpListener>,
    health: TcpListener,
    inside: Option<InProcessListener>,
}

impl Listeners {
    /// Adds the in-process listener.
    #[must_use]
    pub fn with_inside(self, inside: InProcessListener) -> Self {
        Self { inside: Some(inside), ..self }
    }
}

/// Binds the ports, so that a conflict is known before anything else starts.
///
/// # Errors
/// Names the port and the process that holds it.
pub async fn listen(config: &ServerConfig) -> Result<Listeners, ServeError> {
    let read_only = match config.read_only {
        Some(address) => Some(serve::listen("the read-only stats", address).await?),
        None => None,
    };
    Ok(Listeners {
        secure: serve::listen("the node's API", config.secure).await?,
        read_only,
        health: serve::listen("the agent's health", config.health).await?,
        inside: None,
    })
}

/// Serves all listeners until `shutdown`.
///
/// # Errors
/// Never; the signature is that of the other tasks.
pub async fn run(
    config: ServerConfig,
    listeners: Listeners,
    state: ServerState,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let filter = auth::AuthFilter::new(state.client.clone(), &config.node_name, config.get_needs_create);
    let (streaming, tls) = (state.streaming.clone(), state.node_info.certificate.clone());
    let with_metrics = |router: Router<ServerState>, server_type: &'static str| {
        let request_metrics = metrics::RequestMetrics { metrics: Arc::clone(&state.metrics), server_type };
        router.layer(middleware::from_fn_with_state(request_metrics, metrics::count)).with_state(state.clone())
    };
    let secure = with_metrics(secure_router(filter, &config), "secure");
    let read_only = with_metrics(read_only_router(), "readonly");
    let health = with_metrics(health_router(), "healthz");
    let (router, stop) = (secure.clone(), shutdown.clone());
    let inside = async move {
        if let Some(inside) = listeners.inside {
            serve::serve_in_process("kubelet_in_process", inside, router, stop).await;
        }
    };
    let stop = shutdown.clone();
    let reading = async move {
        if let Some(listener) = listeners.read_only {
            serve::serve_plain("kubelet_readonly", listener, read_only, stop).await;
        }
    };
    tokio::join!(
        inside,
        serve::serve_tls("kubelet", listeners.secure, tls, secure, ReservedAddresses::default(), shutdown.clone()),
        reading,
        serve::serve_plain("kubelet_healthz", listeners.health, health, shutdown),
    );
    // Streams are closed, and processes on a terminal get SIGHUP.
    let _ = tokio::time::timeout(STREAM_SHUTDOWN_GRACE, streaming.wait_closed()).await;
    Ok(())
}

/// All routes, with authentication and authorization.
fn secure_router(filter: auth::AuthFilter, config: &ServerConfig) -> Router<ServerState> {
    let debugging = if config.debugging_handlers {
        let logs = if config.system_log_handler {
            Router::new().route("/logs/", get(files::root)).route("/logs/{*path}", get(files::serve))
        } else {
            disabled(&["/logs/", "/logs/{*path}"], "logs endpoint is disabled.")
        };
        Router::new()
            .route("/containerLogs/{namespace}/{pod}/{container}", get(logs::container_logs))
            .route("/runningpods/", get(pod_endpoints::running_pods))
            .route("/runningpods", get(pod_endpoints::running_pods))
            .merge(logs)
            .merge(stream::routes())
    } else {
        disabled(&DEBUGGING_PATHS, "Debug endpoints are disabled.")
    };
    Router::new()
        .merge(debugging)
        .route("/pods", get(pod_endpoints::pods))
        .route("/checkpoint/{namespace}/{pod}/{container}", post(pod_endpoints::checkpoint))
        .route("/configz", get(pod_endpoints::configz))
        .route("/flagz", get(pod_endpoints::flagz))
        .route("/statusz", get(pod_endpoints::statusz))
        .merge(read_only_routes())
        .fallback(not_found)
        .layer(middleware::from_fn(auth::check))
        .layer(Extension(filter))
        .layer(middleware::map_request(limit_body))
}

/// The paths that `enableDebuggingHandlers: false` disables.
const DEBUGGING_PATHS: [&str; 9] = [
    "/attach/{*path}",
    "/containerLogs/{*path}",
    "/exec/{*path}",
    "/logs/",
    "/logs/{*path}",
    "/portForward/{*path}",
    "/run/{*path}",
    "/runningpods",
    "/runningpods/",
];

/// Routes that answer that they are disabled.
fn disabled(paths: &[&str], why: &'static str) -> Router<ServerState> {
    paths.iter().fold(Router::new(), |router, path| {
        router.route(path, any(move || async move { refuse(StatusCode::METHOD_NOT_ALLOWED, why) }))
    })
}

/// Routes without credentials.
fn read_only_router() -> Router<ServerState> {
    read_only_routes()
        .merge(dashboard::routes())
        .route("/pods", get(pod_endpoints::pods_without_secrets))
        .fallback(not_found)
        .layer(middleware::map_request(limit_body))
}

fn health_router() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(health::all))
        .route("/healthz/{check}", get(health::one))
        .fallback(not_found)
        .layer(middleware::map_request(limit_body))
}

/// Routes of both the secure and the read-only listener.
fn read_only_routes() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(health::all))
        .route("/healthz/{check}", get(health::one))
        .route("/windlass/pulls", get(pod_endpoints::pulls))
        .merge(usage::routes())
}

/// The pod of this name. One that was bound just now, or is not known yet after a start, is waited for.
async fn known_pod(state: &ServerState, namespace: &str, name: &str) -> Option<Arc<Pod>> {
    let find = |all: &Arc<Vec<Arc<Pod>>>| {
        let is = |pod: &Pod| {
            let metadata = &pod.metadata;
            metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
        };
        all.iter().find(|pod| is(pod)).cloned()
    };
    let mut pods = state.pods.clone();
    let found = tokio::time::timeout(POD_LOOKUP_TIMEOUT, pods.wait_for(|all| find(all).is_some())).await;
    found.ok()?.ok().and_then(|all| find(&all))
}

async fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "404 page not found")
}

/// Limits request bodies; an upgraded connection has none.
async fn limit_body(request: Request) -> Result<Request, Response> {
    let stated = request.headers().contains_key(header::CONTENT_LENGTH);
    let length = stated.then(|| headers::shown(request.headers(), "content-length").parse::<u64>().ok());
    if length.is_some_and(|l| l.is_none_or(|l| l > MAX_BODY_BYTES as u64)) {
        return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, format!("a body may have {MAX_BODY_BYTES} bytes")));
    }
    Ok(request.map(|body| Body::new(Limited::new(body, MAX_BODY_BYTES))))
}

/// A plain text error response.
fn refuse(code: StatusCode, why: impl Into<String>) -> Response {
    (code, why.into()).into_response()
}
