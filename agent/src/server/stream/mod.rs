//! `/exec`, `/attach`, `/portForward` and `/run`: processes and ports of pods, over connections that are turned over.
//!
//! `negotiate`, `channels` and `spdy`'s frames are pure: what clients say, apart from Docker and sockets. `websocket`
//! and `spdy_session` make a session of a connection; `command` puts a process at its other end, `forward` a pod's
//! ports. Every queue between holds a few pieces, so that a slow side slows the other down and memory stays bounded.

mod channels;
mod command;
mod forward;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod negotiate;
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
    negotiate::{Refusal, Upgrade, refuse},
    session::{Activity, Wanted},
};
use super::{ServerState, known_pod, logs::end_of};
use crate::{
    engine::{
        EngineError,
        names::SANDBOX_NAME,
        process::{self, Process, Streams},
    },
    network::Namespace,
    pods::runtime_uid,
};

/// How much is read from a socket at once.
const PIECE: usize = 64 << 10;
/// What `/run` gives of a command's output.
const MOST_OUTPUT: usize = 16 << 20;

/// The connections that were turned over.
#[derive(Debug, Clone)]
pub struct Streaming {
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Streaming {
    /// None yet; all end with `shutdown`.
    #[must_use]
    pub fn new(shutdown: CancellationToken) -> Self {
        Self { tasks: TaskTracker::new(), shutdown }
    }

    /// Waits until all have ended, after the shutdown.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Answers with the turn, and runs `then` on the connection. An idle one is ended.
    fn turn_over<F: Future<Output = ()> + Send>(
        &self,
        upgrade: &Upgrade,
        protocol: Option<&'static str>,
        request: &mut Request,
        then: impl FnOnce(Upgraded, CancellationToken, Activity) -> F + Send + 'static,
    ) -> Response {
        let turned = hyper::upgrade::on(request);
        let (gone, activity) = (self.shutdown.child_token(), Activity::new());
        self.tasks.spawn(async move {
            let connection = match turned.await {
                Ok(connection) => connection,
                Err(error) => return tracing::debug!(%error, "a connection could not be turned over"),
            };
            let watched = activity.clone();
            let idle = gone.clone();
            let work = then(connection, gone, activity);
            tokio::pin!(work);
            tokio::select! {
                () = &mut work => return,
                () = watched.is_idle() => idle.cancel(),
            }
            work.await;
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = upgrade.headers(protocol);
        response
    }
}

/// The routes; with the uid of a pod, only that one is meant.
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

/// What a path names.
#[derive(Debug, Deserialize)]
struct Named {
    namespace: String,
    pod: String,
    uid: Option<String>,
    #[serde(default)]
    container: String,
}

type Parameters = Query<Vec<(String, String)>>;

async fn find(state: &ServerState, named: &Named) -> Result<Arc<Pod>, Refusal> {
    let found = known_pod(state, &named.namespace, &named.pod).await;
    let found = found.filter(|pod| named.uid.as_ref().is_none_or(|uid| pod.metadata.uid.as_ref() == Some(uid)));
    found.ok_or_else(|| refuse(StatusCode::NOT_FOUND, "pod does not exist"))
}

fn container_of<'p>(pod: &'p Pod, name: &str) -> Option<&'p Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

/// Whether a container of the spec has a terminal; `None` when there is no such container.
fn has_tty(pod: &Pod, name: &str) -> Option<bool> {
    let ephemeral = || {
        let mut all = pod.spec.as_ref()?.ephemeral_containers.iter().flatten();
        all.find(|c| c.name == name).map(|c| c.tty == Some(true))
    };
    container_of(pod, name).map(|c| c.tty == Some(true)).or_else(ephemeral)
}

/// The running container, by its Docker id.
async fn running(state: &ServerState, pod: &Pod, name: &str) -> Result<String, Refusal> {
    let found = state.engine.running(runtime_uid(pod), name).await.map_err(|e| failed(&e))?;
    found.ok_or_else(|| refuse(StatusCode::BAD_REQUEST, format!("container {name:?} is not running")))
}

fn failed(error: &EngineError) -> Refusal {
    refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = super::refuse(self.code, self.why);
        for (name, value) in self.headers {
            response.headers_mut().append(name, axum::http::HeaderValue::from_static(value));
        }
        response
    }
}

/// The streams of a query, in the node's names for them.
fn wanted(query: &[(String, String)]) -> Result<Wanted, Refusal> {
    let is = |key: &str| query.iter().any(|(k, v)| k == key && matches!(v.as_str(), "1" | "true"));
    let tty = is("tty");
    // A terminal has one stream.
    let wanted = Wanted { stdin: is("input"), stdout: is("output"), stderr: is("error") && !tty, tty };
    if wanted.stdin || wanted.stdout || wanted.stderr {
        Ok(wanted)
    } else {
        Err(refuse(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr"))
    }
}

async fn exec(state: State<ServerState>, named: Path<Named>, Query(query): Parameters, request: Request) -> Response {
    let command: Vec<String> = query.iter().filter(|(k, _)| k == "command").map(|(_, v)| v.clone()).collect();
    if command.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "you must specify a command").into_response();
    }
    begin(state.0, named.0, &query, request, Some(command)).await.unwrap_or_else(IntoResponse::into_response)
}

async fn attach(state: State<ServerState>, named: Path<Named>, Query(query): Parameters, request: Request) -> Response {
    begin(state.0, named.0, &query, request, None).await.unwrap_or_else(IntoResponse::into_response)
}

/// A session with a command, or with the container's own process.
async fn begin(
    state: ServerState,
    named: Named,
    query: &[(String, String)],
    mut request: Request,
    command: Option<Vec<String>>,
) -> Result<Response, Refusal> {
    let mut wanted = wanted(query)?;
    let upgrade = Upgrade::read(request.headers())?;
    let protocol = upgrade.choose(&channels::PROTOCOLS, &spdy_session::PROTOCOLS)?;
    let pod = find(&state, &named).await?;
    let missing = || refuse(StatusCode::NOT_FOUND, format!("container not found ({:?})", named.container));
    let has_tty = has_tty(&pod, &named.container).ok_or_else(missing)?;
    let container = running(&state, &pod, &named.container).await?;
    if command.is_none() {
        wanted.tty = has_tty;
        wanted.stderr &= !has_tty;
    }
    let streams = Streams { stdin: wanted.stdin, stdout: wanted.stdout, stderr: wanted.stderr, tty: wanted.tty };
    let process = match command {
        Some(command) => state.engine.prepare(&container, &command, streams).await.map_err(|e| failed(&e))?,
        None => Process::Main { container },
    };
    let streaming = state.streaming.clone();
    let tasks = streaming.tasks.clone();
    let is_websocket = matches!(upgrade, Upgrade::WebSocket { .. });
    Ok(streaming.turn_over(&upgrade, protocol, &mut request, move |connection, gone, activity| async move {
        let session = if is_websocket {
            let socket = websocket::accept(connection).await;
            let channels = channels::Channels::of(protocol);
            Some(websocket::session(socket, channels, wanted, &tasks, gone, activity))
        } else {
            let connection = spdy_of(connection, &tasks, gone, activity);
            spdy_session::session(connection, protocol.unwrap_or_default(), wanted, &tasks).await
        };
        if let Some(session) = session {
            command::run(state.engine, process, streams, session).await;
        }
    }))
}

fn spdy_of(connection: Upgraded, tasks: &TaskTracker, gone: CancellationToken, activity: Activity) -> spdy::Connection {
    let (read, write) = tokio::io::split(TokioIo::new(connection));
    let mut output = FramedWrite::new(write, BytesCodec::new());
    output.set_backpressure_boundary(PIECE);
    spdy::start(ReaderStream::with_capacity(read, PIECE), output, tasks, gone, activity)
}

async fn port_forward(
    State(state): State<ServerState>,
    Path(named): Path<Named>,
    Query(query): Parameters,
    request: Request,
) -> Response {
    forward_ports(state, named, &query, request).await.unwrap_or_else(IntoResponse::into_response)
}

async fn forward_ports(
    state: ServerState,
    named: Named,
    query: &[(String, String)],
    mut request: Request,
) -> Result<Response, Refusal> {
    let upgrade = Upgrade::read(request.headers())?;
    let [v4, v4_base64] = forward::LEGACY;
    let protocol = upgrade.choose(&[forward::TUNNEL, v4, v4_base64], &[forward::SPDY])?;
    let is_websocket = matches!(upgrade, Upgrade::WebSocket { .. });
    let is_legacy = is_websocket && protocol != Some(forward::TUNNEL);
    let ports =
        if is_legacy { forward::ports(query).map_err(|why| refuse(StatusCode::BAD_REQUEST, why))? } else { Vec::new() };
    let pod = find(&state, &named).await?;
    let sandbox = running(&state, &pod, SANDBOX_NAME).await?;
    let network = if pod.spec.as_ref().and_then(|s| s.host_network) == Some(true) {
        Namespace::host()
    } else {
        network_of(&state, &sandbox).await?
    };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let pod = forward::Pod { name: format!("{}/{}, uid {uid}", named.namespace, named.pod).into(), network };
    let tasks = state.streaming.tasks.clone();
    let sandbox_ended = end_of(state.engine.clone(), state.containers.clone(), sandbox);
    Ok(state.streaming.turn_over(&upgrade, protocol, &mut request, move |connection, gone, activity| async move {
        let over = gone.clone();
        let forwarding = async move {
            if is_legacy {
                let socket = websocket::accept(connection).await;
                let channels = channels::Channels::of(protocol);
                forward::channels(socket, channels, ports, pod, &tasks, gone, activity).await;
            } else if is_websocket {
                let (input, output) = websocket::bytes(websocket::accept(connection).await);
                forward::streams(spdy::start(input, output, &tasks, gone, activity), pod, &tasks).await;
            } else {
                forward::streams(spdy_of(connection, &tasks, gone, activity), pod, &tasks).await;
            }
        };
        tokio::pin!(forwarding);
        tokio::select! {
            () = &mut forwarding => return,
            // A namespace that is held open outlives its pod, and leads nowhere then.
            () = sandbox_ended => over.cancel(),
        }
        forwarding.await;
    }))
}

/// The network of a sandbox that runs. Docker's number of its process may be another process's by now.
async fn network_of(state: &ServerState, sandbox: &str) -> Result<Namespace, Refusal> {
    let seen = state.engine.inspect(sandbox).await.map_err(|e| failed(&e))?;
    let gone = || refuse(StatusCode::INTERNAL_SERVER_ERROR, "the pod's sandbox does not run");
    let pid = seen.and_then(|s| s.pid()).ok_or_else(gone)?;
    let opened = Namespace::of_process(pid, || process::is_of(pid, sandbox));
    opened.map_err(|e| refuse(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))
}

/// Runs a command to its end and gives what it printed, both streams as one.
async fn run(State(state): State<ServerState>, Path(named): Path<Named>, Query(query): Parameters) -> Response {
    let command = query.iter().find(|(k, _)| k == "cmd").map(|(_, v)| v.as_str()).unwrap_or_default();
    let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    if command.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "you must specify a command").into_response();
    }
    let ran = async {
        let pod = find(&state, &named).await?;
        let missing = || refuse(StatusCode::NOT_FOUND, format!("container not found ({:?})", named.container));
        has_tty(&pod, &named.container).ok_or_else(missing)?;
        let container = running(&state, &pod, &named.container).await?;
        let ended = state.engine.exec(&container, &command, MOST_OUTPUT).await.map_err(|e| failed(&e))?;
        if ended.code == 0 {
            return Ok(ended.output.into_response());
        }
        let why = format!("command {:?} exited with {}: {}", command.join(" "), ended.code, ended.output);
        Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, why))
    };
    ran.await.unwrap_or_else(|refused: Refusal| refused.into_response())
}
