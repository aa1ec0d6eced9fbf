//! The node's own HTTP API: pods, logs, usage, and connections to processes and ports of pods.
//!
//! Three doors: TLS with credentials (everything), loopback without (what may be read by anybody on the
//! machine), and loopback for health alone. Imports `engine` and `network`, nothing of `pods`.

mod auth;
mod logs;
mod stream;

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Query, State},
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse as _, Response},
    routing::get,
};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::json;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    expo,
    serve::{self, ServeError},
};

pub use stream::Streaming;

use crate::{
    ContainerRecord,
    engine::{Engine, Health},
    images::AllProgress,
};

/// How long processes and connections of clients have to end at shutdown.
const STREAMS: Duration = Duration::from_secs(4);

/// Where usage comes from.
pub trait Stats: Send + Sync + fmt::Debug {
    /// The Summary API's answer, as JSON.
    fn summary_json(&self, only_cpu_and_memory: bool) -> Vec<u8>;
    /// The metrics of cAdvisor, as text.
    fn cadvisor_text(&self) -> String;
    /// The resource metrics, as text.
    fn resource_text(&self) -> String;
}

/// Settings of the node's API.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The node's name, for access reviews.
    pub node_name: String,
    /// The door with credentials.
    pub secure: SocketAddr,
    /// The door for reading.
    pub read_only: SocketAddr,
    /// The door for health.
    pub health: SocketAddr,
    /// Certificate of the secure door.
    pub cert_pem: String,
    /// Its key.
    pub key_pem: String,
    /// Whose client certificates are trusted.
    pub client_ca_pem: String,
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
    /// Usage.
    pub stats: Arc<dyn Stats>,
    /// Connections that were turned over.
    pub streaming: Streaming,
}

impl fmt::Debug for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerState").field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// The ports of the node's API, taken.
#[derive(Debug)]
pub struct Listeners {
    secure: TcpListener,
    read_only: TcpListener,
    health: TcpListener,
}

/// Takes the three ports, so that a taken one is known before anything else starts.
///
/// # Errors
/// Names the port and its holder.
pub async fn listen(config: &ServerConfig) -> Result<Listeners, ServeError> {
    Ok(Listeners {
        secure: serve::listen("the node's API", config.secure).await?,
        read_only: serve::listen("the read-only stats", config.read_only).await?,
        health: serve::listen("the agent's health", config.health).await?,
    })
}

/// Serves all three doors until `shutdown`.
///
/// # Errors
/// When the certificate cannot be used.
pub async fn run(
    config: ServerConfig,
    listeners: Listeners,
    state: ServerState,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let tls = serve::tls_config(&config.cert_pem, &config.key_pem, &config.client_ca_pem)?;
    let gate = auth::Gate::new(state.client.clone(), &config.node_name);
    let secure = Router::new()
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs::container_logs))
        .merge(stream::routes())
        .merge(readable())
        .layer(middleware::from_fn(auth::check))
        .layer(Extension(gate))
        .with_state(state.clone());
    let streaming = state.streaming.clone();
    let read_only = readable().with_state(state);
    let health = Router::new().route("/healthz", get(|| async { "ok" }));
    tokio::join!(
        serve::serve_tls(listeners.secure, tls, secure, shutdown.clone()),
        serve::serve_plain(listeners.read_only, read_only, shutdown.clone()),
        serve::serve_plain(listeners.health, health, shutdown),
    );
    // Terminals are hung up, and what was at them is ended.
    let _ = tokio::time::timeout(STREAMS, streaming.ended()).await;
    Ok(())
}

/// What may be read without credentials on the machine itself.
fn readable() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/pods", get(pods))
        .route("/windlass/pulls", get(pulls))
        .route("/stats/summary", get(summary).post(summary))
        .route("/metrics", get(metrics))
        .route("/metrics/cadvisor", get(|State(s): State<ServerState>| async move { text(s.stats.cadvisor_text()) }))
        .route("/metrics/resource", get(|State(s): State<ServerState>| async move { text(s.stats.resource_text()) }))
}

fn text(page: String) -> Response {
    ([(header::CONTENT_TYPE, expo::CONTENT_TYPE)], page).into_response()
}

#[derive(Debug, serde::Deserialize)]
struct SummaryQuery {
    #[serde(default)]
    only_cpu_and_memory: bool,
}

async fn summary(State(state): State<ServerState>, query: Query<SummaryQuery>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], state.stats.summary_json(query.only_cpu_and_memory)).into_response()
}

async fn pods(State(state): State<ServerState>) -> Response {
    let pods = state.pods.borrow().clone();
    let mut items = Vec::with_capacity(pods.len());
    for pod in pods.iter() {
        let mut pod = serde_json::to_value(pod.as_ref()).unwrap_or_default();
        // Environments may hold secrets, and this door asks for no credentials.
        for key in ["containers", "initContainers"] {
            for container in pod["spec"][key].as_array_mut().into_iter().flatten() {
                for variable in container["env"].as_array_mut().into_iter().flatten().filter_map(|v| v.as_object_mut())
                {
                    variable.remove("value");
                }
            }
        }
        items.push(pod);
    }
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})).into_response()
}

/// Images that are being pulled, and how far.
async fn pulls(State(state): State<ServerState>) -> Response {
    Json(state.pulls.borrow().values().cloned().collect::<Vec<_>>()).into_response()
}

/// The agent's own metrics.
async fn metrics(State(state): State<ServerState>) -> Response {
    let mut page = expo::Text::new();
    let pods = state.pods.borrow().len();
    #[allow(clippy::cast_precision_loss, reason = "a node has few pods")]
    let pods = pods as f64;
    page.family("kubelet_desired_pods", "Pods of this node that the API knows.", expo::Kind::Gauge);
    page.sample("kubelet_desired_pods", &[], pods);
    let up = f64::from(u8::from(matches!(*state.docker.borrow(), Health::Up { .. })));
    page.family("windlass_docker_up", "Whether Docker answers.", expo::Kind::Gauge);
    page.sample("windlass_docker_up", &[], up);
    text(page.finish())
}

/// A plain refusal.
fn refuse(code: StatusCode, why: impl Into<String>) -> Response {
    (code, why.into()).into_response()
}
