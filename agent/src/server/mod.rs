//! The node's own HTTP API: pods, logs, usage, and connections to processes and ports of pods.
//!
//! Up to four listeners: TLS with credentials (everything), in one process with an API server the same without TLS for
//! it alone, one without credentials for what anybody who reaches it may read, which can be off, and one for health
//! alone. Imports `engine` and `network`, and of `pods` only how a pod's object is read.

mod attributes;
mod auth;
mod dashboard;
mod files;
mod health;
mod log_query;
mod logs;
mod metrics;
mod pages;
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
    serve::{self, InProcessListener, ReservedAddresses, ServeError, Tls},
};

pub use stream::Streaming;
#[cfg(any(test, feature = "fuzzing"))]
pub use stream::fuzzing;

use crate::{
    ContainerRecord,
    engine::{Engine, Health},
    images::AllProgress,
    metrics::Metrics,
    probe_metrics::ProbeMetrics,
};

/// How long processes and connections of clients have to end at shutdown.
const STREAMS: Duration = Duration::from_secs(4);
/// How long the API's word on a pod may be on its way.
const HEARD_OF: Duration = Duration::from_secs(1);
/// The longest body of a request.
const LONGEST_BODY: usize = 64 << 10;

/// Settings of the node's API.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The node's name, for access reviews.
    pub node_name: String,
    /// The door with credentials.
    pub secure: SocketAddr,
    /// Where anybody may read; nobody where it is none.
    pub read_only: Option<SocketAddr>,
    /// The door for health.
    pub health: SocketAddr,
    /// What the secure door shows, and whose client certificates it trusts.
    pub tls: Tls,
    /// A `GET` that opens a connection to a process or a port needs the right to `create`, not only to `get`.
    pub get_needs_create: bool,
    /// Whether processes, ports and logs of pods can be reached at all: `enableDebuggingHandlers`.
    pub debugging_handlers: bool,
    /// Whether `/logs/` is served: `enableSystemLogHandler`.
    pub system_log_handler: bool,
}

/// What the node tells of itself.
#[derive(Debug)]
pub struct About {
    /// The node's name.
    pub node_name: String,
    /// What the secure door shows.
    pub certificate: Tls,
    /// The program's version.
    pub version: String,
    /// When it began.
    pub started: Instant,
    /// The settings in effect, by the names of KubeletConfiguration.
    pub settings: serde_json::Value,
    /// The settings as they were given: names and values.
    pub flags: Vec<(String, String)>,
}

/// What `/logs/` serves.
#[derive(Debug, Clone)]
pub struct SystemLogs {
    /// The folder of the files.
    pub root: PathBuf,
    /// Whether services can be asked for as well, of journald: `enableSystemLogQuery`.
    pub query: bool,
}

/// What the handlers need.
#[derive(Clone)]
pub struct ServerState {
    /// For access reviews.
    pub client: Client,
    /// For logs.
    pub engine: Engine,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<Vec<Arc<Pod>>>>,
    /// Containers that run, sandboxes included.
    pub containers: watch::Receiver<Arc<Vec<ContainerRecord>>>,
    /// Whether Docker answers.
    pub docker: watch::Receiver<Health>,
    /// How far pulls of images are.
    pub pulls: watch::Receiver<AllProgress>,
    /// What is used.
    pub usage: Usage,
    /// What came of probes.
    pub probes: ProbeMetrics,
    /// Connections that were turned over.
    pub streaming: Streaming,
    /// Whether the agent's loops move.
    pub heartbeats: Heartbeats,
    /// What the agent counted.
    pub metrics: Arc<Metrics>,
    /// What `/logs/` serves.
    pub system_logs: SystemLogs,
    /// What is told of the program.
    pub about: Arc<About>,
}

impl fmt::Debug for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerState").field("usage", &self.usage).finish_non_exhaustive()
    }
}

/// The ports of the node's API, taken.
#[derive(Debug)]
pub struct Listeners {
    secure: TcpListener,
    read_only: Option<TcpListener>,
    health: TcpListener,
    inside: Option<InProcessListener>,
}

impl Listeners {
    /// One more: for the API server of this process.
    #[must_use]
    pub fn with_inside(self, inside: InProcessListener) -> Self {
        Self { inside: Some(inside), ..self }
    }
}

/// Takes the ports, so that a taken one is known before anything else starts.
///
/// # Errors
/// Names the port and its holder.
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

/// Serves all doors until `shutdown`.
///
/// # Errors
/// Never; it has the shape of the other tasks.
pub async fn run(
    config: ServerConfig,
    listeners: Listeners,
    state: ServerState,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let gate = auth::Gate::new(state.client.clone(), &config.node_name, config.get_needs_create);
    let streaming = state.streaming.clone();
    let counted = |router: Router<ServerState>, door: &'static str| {
        let counting = metrics::Counting { metrics: Arc::clone(&state.metrics), door };
        router.layer(middleware::from_fn_with_state(counting, metrics::count)).with_state(state.clone())
    };
    let secure = counted(secure_door(gate, &config), "secure");
    let read_only = counted(read_only_door(), "readonly");
    let health = counted(health_door(), "healthz");
    let (door, stop) = (secure.clone(), shutdown.clone());
    let inside = async move {
        if let Some(inside) = listeners.inside {
            serve::serve_in_process("kubelet_in_process", inside, door, stop).await;
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
        serve::serve_tls(
            "kubelet",
            listeners.secure,
            config.tls,
            secure,
            ReservedAddresses::default(),
            shutdown.clone()
        ),
        reading,
        serve::serve_plain("kubelet_healthz", listeners.health, health, shutdown),
    );
    // Terminals are hung up, and what was at them is ended.
    let _ = tokio::time::timeout(STREAMS, streaming.ended()).await;
    Ok(())
}

/// Everything, for whoever has the right to it.
fn secure_door(gate: auth::Gate, config: &ServerConfig) -> Router<ServerState> {
    let debugging = if config.debugging_handlers {
        let logs = if config.system_log_handler {
            Router::new().route("/logs/", get(files::root)).route("/logs/{*path}", get(files::serve))
        } else {
            closed(&["/logs/", "/logs/{*path}"], "logs endpoint is disabled.")
        };
        Router::new()
            .route("/containerLogs/{namespace}/{pod}/{container}", get(logs::container_logs))
            .route("/runningpods/", get(pages::running_pods))
            .route("/runningpods", get(pages::running_pods))
            .merge(logs)
            .merge(stream::routes())
    } else {
        closed(&DEBUGGING, "Debug endpoints are disabled.")
    };
    Router::new()
        .merge(debugging)
        .route("/pods", get(pages::pods))
        .route("/checkpoint/{namespace}/{pod}/{container}", post(pages::checkpoint))
        .route("/configz", get(pages::configz))
        .route("/flagz", get(pages::flagz))
        .route("/statusz", get(pages::statusz))
        .merge(readable())
        .fallback(unknown)
        .layer(middleware::from_fn(auth::check))
        .layer(Extension(gate))
        .layer(middleware::map_request(bounded))
}

/// What `enableDebuggingHandlers: false` closes.
const DEBUGGING: [&str; 9] = [
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

/// Paths that are there and closed.
fn closed(paths: &[&str], why: &'static str) -> Router<ServerState> {
    paths.iter().fold(Router::new(), |router, path| {
        router.route(path, any(move || async move { refuse(StatusCode::METHOD_NOT_ALLOWED, why) }))
    })
}

/// What may be read without credentials, by whoever reaches it.
fn read_only_door() -> Router<ServerState> {
    readable()
        .merge(dashboard::routes())
        .route("/pods", get(pages::pods_without_secrets))
        .fallback(unknown)
        .layer(middleware::map_request(bounded))
}

fn health_door() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(health::all))
        .route("/healthz/{check}", get(health::one))
        .fallback(unknown)
        .layer(middleware::map_request(bounded))
}

/// What both doors have alike.
fn readable() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(health::all))
        .route("/healthz/{check}", get(health::one))
        .route("/windlass/pulls", get(pages::pulls))
        .merge(usage::routes())
}

/// The pod of this name. One that was bound just now, or that is not heard of yet after a start, is waited for a moment.
async fn known_pod(state: &ServerState, namespace: &str, name: &str) -> Option<Arc<Pod>> {
    let find = |all: &Arc<Vec<Arc<Pod>>>| {
        let is = |pod: &Pod| {
            let metadata = &pod.metadata;
            metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
        };
        all.iter().find(|pod| is(pod)).cloned()
    };
    let mut pods = state.pods.clone();
    let heard = tokio::time::timeout(HEARD_OF, pods.wait_for(|all| find(all).is_some())).await;
    heard.ok()?.ok().and_then(|all| find(&all))
}

async fn unknown() -> Response {
    refuse(StatusCode::NOT_FOUND, "404 page not found")
}

/// Nothing here takes a body of any size; a stream that a client upgrades to is none.
async fn bounded(request: Request) -> Result<Request, Response> {
    let length = request.headers().get(header::CONTENT_LENGTH).map(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|l| l.is_none_or(|l| l > LONGEST_BODY as u64)) {
        return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, format!("a body may have {LONGEST_BODY} bytes")));
    }
    Ok(request.map(|body| Body::new(Limited::new(body, LONGEST_BODY))))
}

/// A plain refusal.
fn refuse(code: StatusCode, why: impl Into<String>) -> Response {
    (code, why.into()).into_response()
}
