//! `/exec`, `/attach`, `/portForward` and `/run`: processes and ports of pods, over upgraded connections.
//!
//! `negotiate`, `channels` and `spdy`'s frames are pure: what clients say, apart from Docker and sockets. `websocket`
//! and `spdy_session` turn a connection into a session; `exec` connects it with a process, `port_forward` with a pod's
//! ports. Every queue holds a few chunks, so that a slow side slows the other down and memory stays bounded.

mod channels;
mod exec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod negotiate;
mod port_forward;
mod session;
mod spdy;
mod spdy_session;
mod websocket;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Deserialize;
use tokio_util::{
    codec::{BytesCodec, FramedWrite},
    io::ReaderStream,
    sync::CancellationToken,
    task::TaskTracker,
};

use self::{
    negotiate::{Upgrade, UpgradeError, refuse},
    session::{Activity, RequestedStreams},
};
use super::{ServerState, known_pod};
use crate::{
    engine::{
        EngineError,
        exec_attach::{Process, Streams},
        names::SANDBOX_NAME,
    },
    network::{NetworkNamespace, PodDialer},
    pods::runtime_uid,
};

/// Bytes of one read from a socket.
const CHUNK_BYTES: usize = 64 << 10;
/// Limit of a command's output for `/run`.
const MAX_RUN_OUTPUT_BYTES: usize = 16 << 20;

/// Upgraded connections.
#[derive(Debug, Clone)]
pub struct Streaming {
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Streaming {
    /// No connections yet; all are closed at `shutdown`.
    #[must_use]
    pub fn new(shutdown: CancellationToken) -> Self {
        Self { tasks: TaskTracker::new(), shutdown }
    }

    /// Waits until all are closed, after shutdown.
    pub(super) async fn wait_closed(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Responds with 101 and runs `then` on the upgraded connection. An idle one is closed.
    fn upgrade_connection<F: Future<Output = ()> + Send>(
        &self,
        upgrade: &Upgrade,
        protocol: Option<&'static str>,
        request: &mut Request,
        then: impl FnOnce(Upgraded, CancellationToken, Activity) -> F + Send + 'static,
    ) -> Response {
        let upgrading = hyper::upgrade::on(request);
        let (client_gone, activity) = (self.shutdown.child_token(), Activity::new());
        self.tasks.spawn(async move {
            let connection = match upgrading.await {
                Ok(connection) => connection,
                Err(error) => return tracing::debug!(%error, "failed to upgrade connection"),
            };
            let idle_watch = activity.clone();
            let idle = client_gone.clone();
            let work = then(connection, client_gone, activity);
            tokio::pin!(work);
            tokio::select! {
                () = &mut work => return,
                () = idle_watch.wait_idle() => idle.cancel(),
            }
            work.await;
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = upgrade.headers(protocol);
        response
    }
}

/// The routes; a uid restricts them to that pod.
pub(super) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/exec/{namespace}/{pod}/{container}", get(exec).post(exec))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", get(exec).post(exec))
        .route("/attach/{namespace}/{pod}/{container}", get(attach).post(attach))
        .route("/attach/{namespace}/{pod}/{uid}/{container}", get(attach).post(attach))
        .route("/portForward/{namespace}/{pod}", get(port_forward).post(port_forward))
        .route("/portForward/{namespace}/{pod}/{uid}", get(port_forward).post(port_forward))
        .route("/run/{namespace}/{pod}/{container}", post(run))
        .route("/run/{namespace}/{pod}/{uid}/{container}", post(run))
}

/// The parameters of a path.
#[derive(Debug, Deserialize)]
struct StreamPath {
    namespace: String,
    pod: String,
    uid: Option<String>,
    #[serde(default)]
    container: String,
}

type Parameters = Query<Vec<(String, String)>>;

async fn find(state: &ServerState, path: &StreamPath) -> Result<Arc<Pod>, UpgradeError> {
    let found = known_pod(state, &path.namespace, &path.pod).await;
    let found = found.filter(|pod| path.uid.as_ref().is_none_or(|uid| pod.metadata.uid.as_ref() == Some(uid)));
    found.ok_or_else(|| refuse(StatusCode::NOT_FOUND, "pod does not exist"))
}

fn container_of<'p>(pod: &'p Pod, name: &str) -> Option<&'p Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

/// Whether a container of the spec has a terminal; `None` if there is no such container.
fn has_tty(pod: &Pod, name: &str) -> Option<bool> {
    let ephemeral = || {
        let mut all = pod.spec.as_ref()?.ephemeral_containers.iter().flatten();
        all.find(|c| c.name == name).map(|c| c.tty == Some(true))
    };
    container_of(pod, name).map(|c| c.tty == Some(true)).or_else(ephemeral)
}

/// The Docker id of a running container.
async fn running(state: &ServerState, pod: &Pod, name: &str) -> Result<String, UpgradeError> {
    let found = state.engine.running(runtime_uid(pod), name).await.map_err(|e| failed(&e))?;
    found.ok_or_else(|| refuse(StatusCode::BAD_REQUEST, format!("container {name:?} is not running")))
}

fn failed(error: &EngineError) -> UpgradeError {
    refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

impl IntoResponse for UpgradeError {
    fn into_response(self) -> Response {
        let mut response = super::refuse(self.code, self.why);
        for (name, value) in self.headers {
            response.headers_mut().append(name, axum::http::HeaderValue::from_static(value));
        }
        response
    }
}

/// The requested streams, by the kubelet's parameter names.
fn requested(query: &[(String, String)]) -> Result<RequestedStreams, UpgradeError> {
    let is = |key: &str| query.iter().any(|(k, v)| k == key && matches!(v.as_str(), "1" | "true"));
    let tty = is("tty");
    // A terminal has one stream.
    let requested = RequestedStreams { stdin: is("input"), stdout: is("output"), stderr: is("error") && !tty, tty };
    if requested.stdin || requested.stdout || requested.stderr {
        Ok(requested)
    } else {
        Err(refuse(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr"))
    }
}

async fn exec(
    state: State<ServerState>,
    path: Path<StreamPath>,
    Query(query): Parameters,
    request: Request,
) -> Response {
    let command: Vec<String> = query.iter().filter(|(k, _)| k == "command").map(|(_, v)| v.clone()).collect();
    if command.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "you must specify a command").into_response();
    }
    begin(state.0, path.0, &query, request, Some(command)).await.unwrap_or_else(IntoResponse::into_response)
}

async fn attach(
    state: State<ServerState>,
    path: Path<StreamPath>,
    Query(query): Parameters,
    request: Request,
) -> Response {
    begin(state.0, path.0, &query, request, None).await.unwrap_or_else(IntoResponse::into_response)
}

/// Starts a session with a command, or with the container's init process.
async fn begin(
    state: ServerState,
    path: StreamPath,
    query: &[(String, String)],
    mut request: Request,
    command: Option<Vec<String>>,
) -> Result<Response, UpgradeError> {
    let mut requested = requested(query)?;
    let upgrade = Upgrade::read(request.headers())?;
    let protocol = upgrade.choose(&channels::PROTOCOLS, &spdy_session::PROTOCOLS)?;
    let pod = find(&state, &path).await?;
    let missing = || refuse(StatusCode::NOT_FOUND, format!("container not found ({:?})", path.container));
    let has_tty = has_tty(&pod, &path.container).ok_or_else(missing)?;
    let container = running(&state, &pod, &path.container).await?;
    if command.is_none() {
        requested.tty = has_tty;
        requested.stderr &= !has_tty;
    }
    let streams =
        Streams { stdin: requested.stdin, stdout: requested.stdout, stderr: requested.stderr, tty: requested.tty };
    let process = match command {
        Some(command) => state.engine.create_exec(&container, &command, streams).await.map_err(|e| failed(&e))?,
        None => Process::Main { container },
    };
    let streaming = state.streaming.clone();
    let shutdown = streaming.shutdown.clone();
    let tasks = streaming.tasks.clone();
    let is_websocket = matches!(upgrade, Upgrade::WebSocket { .. });
    Ok(streaming.upgrade_connection(
        &upgrade,
        protocol,
        &mut request,
        move |connection, client_gone, activity| async move {
            let session = if is_websocket {
                let socket = websocket::accept(connection).await;
                let channels = channels::Channels::of(protocol);
                Some(websocket::session(socket, channels, requested, &tasks, client_gone, activity))
            } else {
                let connection = spdy_of(connection, &tasks, client_gone, activity);
                spdy_session::session(connection, protocol.unwrap_or_default(), requested, &tasks).await
            };
            if let Some(session) = session {
                exec::run(state.engine, process, streams, session, &shutdown).await;
            }
        },
    ))
}

fn spdy_of(
    connection: Upgraded,
    tasks: &TaskTracker,
    client_gone: CancellationToken,
    activity: Activity,
) -> spdy::Connection {
    let (read, write) = tokio::io::split(TokioIo::new(connection));
    let mut output = FramedWrite::new(write, BytesCodec::new());
    output.set_backpressure_boundary(CHUNK_BYTES);
    spdy::start(ReaderStream::with_capacity(read, CHUNK_BYTES), output, tasks, client_gone, activity)
}

async fn port_forward(
    State(state): State<ServerState>,
    Path(path): Path<StreamPath>,
    Query(query): Parameters,
    request: Request,
) -> Response {
    forward_ports(state, path, &query, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn forward_ports(
    state: ServerState,
    path: StreamPath,
    query: &[(String, String)],
    mut request: Request,
) -> Result<Response, UpgradeError> {
    let upgrade = Upgrade::read(request.headers())?;
    let [v4, v4_base64] = port_forward::LEGACY;
    let protocol = upgrade.choose(&[port_forward::TUNNEL, v4, v4_base64], &[port_forward::SPDY])?;
    let is_websocket = matches!(upgrade, Upgrade::WebSocket { .. });
    let is_legacy = is_websocket && protocol != Some(port_forward::TUNNEL);
    let ports = if is_legacy {
        port_forward::ports(query).map_err(|why| refuse(StatusCode::BAD_REQUEST, why))?
    } else {
        Vec::new()
    };
    let pod = find(&state, &path).await?;
    let sandbox = running(&state, &pod, SANDBOX_NAME).await?;
    let network = if pod.spec.as_ref().and_then(|s| s.host_network) == Some(true) {
        PodDialer::host()
    } else {
        network_of(&state, &sandbox).await?
    };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let pod = port_forward::Pod { name: format!("{}/{}, uid {uid}", path.namespace, path.pod).into(), network };
    let tasks = state.streaming.tasks.clone();
    let sandbox_ended = state.exits.clone().of_container(state.engine.clone(), sandbox);
    Ok(state.streaming.upgrade_connection(
        &upgrade,
        protocol,
        &mut request,
        move |connection, client_gone, activity| async move {
            let forwarding_done = client_gone.clone();
            let forwarding = async move {
                if is_legacy {
                    let socket = websocket::accept(connection).await;
                    let channels = channels::Channels::of(protocol);
                    port_forward::channels(socket, channels, ports, pod, &tasks, client_gone, activity).await;
                } else if is_websocket {
                    let (input, output) = websocket::bytes(websocket::accept(connection).await);
                    port_forward::streams(spdy::start(input, output, &tasks, client_gone, activity), pod, &tasks).await;
                } else {
                    port_forward::streams(spdy_of(connection, &tasks, client_gone, activity), pod, &tasks).await;
                }
            };
            tokio::pin!(forwarding);
            tokio::select! {
                () = &mut forwarding => return,
                // The open namespace would outlive its pod.
                () = sandbox_ended => forwarding_done.cancel(),
            }
            forwarding.await;
        },
    ))
}

/// Dials inside of a running sandbox.
async fn network_of(state: &ServerState, sandbox: &str) -> Result<PodDialer, UpgradeError> {
    let inspected = state.engine.inspect(sandbox).await.map_err(|e| failed(&e))?;
    let not_running = || refuse(StatusCode::INTERNAL_SERVER_ERROR, "the pod's sandbox does not run");
    let process = inspected.and_then(|s| s.process()).ok_or_else(not_running)?;
    let opened = NetworkNamespace::of_container(&process).map(PodDialer::inside);
    opened.map_err(|e| refuse(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))
}

/// Runs a command to its end and returns its output, both streams merged.
async fn run(State(state): State<ServerState>, Path(path): Path<StreamPath>, Query(query): Parameters) -> Response {
    let command = query.iter().find(|(k, _)| k == "cmd").map(|(_, v)| v.as_str()).unwrap_or_default();
    let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    if command.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "you must specify a command").into_response();
    }
    let ran = async {
        let pod = find(&state, &path).await?;
        let missing = || refuse(StatusCode::NOT_FOUND, format!("container not found ({:?})", path.container));
        has_tty(&pod, &path.container).ok_or_else(missing)?;
        let container = running(&state, &pod, &path.container).await?;
        let result = state.engine.exec(&container, &command, MAX_RUN_OUTPUT_BYTES).await.map_err(|e| failed(&e))?;
        if result.code == 0 {
            return Ok(result.output.into_response());
        }
        let why = format!("command {:?} exited with {}: {}", command.join(" "), result.code, result.output);
        Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, why))
    };
    ran.await.unwrap_or_else(|error: UpgradeError| error.into_response())
}
