//! A proxy in front of a testbed's real Docker Engine that injects one fault: a broken connection, a busy or dying
//! engine, or a client killed in the middle of a call, as the client sees them.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    client::conn::http1 as client,
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Notify,
};

/// How long a hanging call takes: longer than the timeout for Docker's version.
const HANG: Duration = Duration::from_secs(15);

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed; Docker has never heard of the call.
    Refuses,
    /// An answer of 500; Docker has never heard of the call.
    FailsBefore,
    /// Docker does it, and answers 500, as after a failure of its shim.
    FailsAfter,
    /// Docker does it, and the connection is closed before the answer.
    LosesAnswer,
    /// Docker hears of it after a while.
    Hangs,
    /// Docker never receives it, and the test is notified: the client, or Docker, is to die now. Ends with
    /// [`DockerProxy::release`].
    HoldsBefore,
    /// Docker has carried it out, and the test is notified.
    HoldsAfter,
}

/// What becomes of the stream of containers' events, at one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// It ends before the event, as when Docker is stopped.
    Ends,
    /// Half the event arrives, and the connection is closed.
    HalfAnEvent,
    /// Half the event arrives, and the stream ends.
    EndsInAnEvent,
}

/// Why a connection is closed without an answer.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is cut")
    }
}

impl std::error::Error for Cut {}

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

#[derive(Debug, Default)]
struct State {
    calls: Vec<String>,
    events: usize,
    fault: Option<(usize, Fault)>,
    stream_fault: Option<(usize, StreamFault)>,
    /// The call, or event, that was spoiled.
    spoiled: Option<String>,
    /// A call is held.
    holds: bool,
}

#[derive(Debug)]
struct Shared {
    engine: PathBuf,
    state: Mutex<State>,
    released: Notify,
    /// Nothing gets through to the engine.
    cut_off: AtomicBool,
}

/// A proxy before Docker Engine.
#[derive(Debug)]
pub struct DockerProxy {
    socket: PathBuf,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

impl DockerProxy {
    /// Starts a proxy at this socket, before the engine at that one.
    ///
    /// # Panics
    /// When the socket cannot be made.
    #[must_use]
    pub fn start(socket: &Path, engine: &Path) -> Self {
        let shared = Arc::new(Shared {
            engine: engine.to_owned(),
            state: Mutex::default(),
            released: Notify::new(),
            cut_off: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let listener = {
            let _guard = runtime.enter();
            UnixListener::bind(socket).expect("the proxy's socket")
        };
        drop(runtime.spawn(accept(listener, Arc::clone(&shared))));
        Self { socket: socket.to_owned(), shared, _runtime: runtime }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Counts calls and events again, and spoils those of these numbers, from 0.
    pub fn arm(&self, call: Option<(usize, Fault)>, event: Option<(usize, StreamFault)>) {
        *self.state() = State { fault: call, stream_fault: event, ..State::default() };
    }

    /// The calls since it was armed, without pings.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// The number of containers' events since it was armed.
    #[must_use]
    pub fn events(&self) -> usize {
        self.state().events
    }

    /// What was spoiled since it was armed.
    #[must_use]
    pub fn spoiled(&self) -> Option<String> {
        self.state().spoiled.clone()
    }

    /// Whether a call is held.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.state().holds
    }

    /// Closes the connection of the call that is held.
    pub fn release(&self) {
        self.state().holds = false;
        self.shared.released.notify_waiters();
    }

    /// Refuses all connections to the engine, or no longer, so that a test can look at one before its client acts.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.shared.cut_off.store(is_cut_off, Ordering::SeqCst);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        drop(tokio::spawn(async move {
            let serve = service_fn(|request| answer(Arc::clone(&shared), request));
            // Whatever becomes of a connection concerns its client alone.
            let _ = server::Builder::new().serve_connection(TokioIo::new(stream), serve).with_upgrades().await;
        }));
    }
}

/// The reported name of a call, without the API version and with ids replaced.
fn name_of(request: &Request<Incoming>) -> String {
    let path = request.uri().path();
    let parts = path.split('/').filter(|part| !part.is_empty() && !part.starts_with("v1."));
    let is_id = |part: &str| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = parts.map(|part| if is_id(part) { "ID" } else { part }).collect();
    format!("{} /{}", request.method(), parts.join("/"))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Counts a call, and says what becomes of it.
    fn count(&self, name: &str) -> Option<Fault> {
        if name.ends_with("/_ping") || name.ends_with("/events") {
            return None;
        }
        let mut state = self.state();
        let number = state.calls.len();
        state.calls.push(name.to_owned());
        let (_, fault) = state.fault.filter(|(at, _)| *at == number)?;
        state.spoiled = Some(format!("call {number}, {name}"));
        Some(fault)
    }

    /// Counts an event, and says what becomes of its stream.
    fn count_event(&self) -> Option<StreamFault> {
        let mut state = self.state();
        let number = state.events;
        state.events += 1;
        let (_, fault) = state.stream_fault.filter(|(at, _)| *at == number)?;
        state.spoiled = Some(format!("event {number}"));
        Some(fault)
    }

    /// Notifies the test, and waits for its release.
    async fn hold(&self) {
        let released = self.released.notified();
        let mut released = std::pin::pin!(released);
        released.as_mut().enable();
        self.state().holds = true;
        released.await;
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Error> {
    let name = name_of(&request);
    let is_of_pods = name == "GET /events" && request.uri().query().is_some_and(|query| query.contains("label"));
    let Some(fault) = shared.count(&name) else {
        if shared.cut_off.load(Ordering::SeqCst) {
            return Err(Cut.into());
        }
        let answer = forward(&shared.engine, request).await?;
        return Ok(if is_of_pods { spoil_events(shared, answer) } else { answer });
    };
    match fault {
        Fault::Refuses => Err(Cut.into()),
        Fault::FailsBefore => Ok(server_error()),
        Fault::FailsAfter => {
            finish(&shared.engine, request).await?;
            Ok(server_error())
        }
        Fault::LosesAnswer => {
            finish(&shared.engine, request).await?;
            Err(Cut.into())
        }
        Fault::Hangs => {
            tokio::time::sleep(HANG).await;
            forward(&shared.engine, request).await
        }
        Fault::HoldsBefore | Fault::HoldsAfter => {
            if fault == Fault::HoldsAfter {
                finish(&shared.engine, request).await?;
            }
            shared.hold().await;
            Err(Cut.into())
        }
    }
}

fn server_error() -> Response<Body> {
    let text = Bytes::from_static(br#"{"message":"a fault of the test"}"#);
    let mut answer = Response::new(Full::new(text).map_err(|none: Infallible| match none {}).boxed_unsync());
    *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    answer.headers_mut().insert("content-type", "application/json".parse().expect("a value"));
    answer
}

/// Has Docker carry out a call to its end.
async fn finish(engine: &Path, request: Request<Incoming>) -> Result<(), Error> {
    let answer = forward(engine, request).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.into_body().collect().await?;
    }
    Ok(())
}

/// Passes a call on, and the connection that it may become.
async fn forward(engine: &Path, mut request: Request<Incoming>) -> Result<Response<Body>, Error> {
    let of_client = hyper::upgrade::on(&mut request);
    let stream = UnixStream::connect(engine).await?;
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    drop(tokio::spawn(connection.with_upgrades()));
    let mut answer = sender.send_request(request).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let of_engine = hyper::upgrade::on(&mut answer);
        drop(tokio::spawn(async move {
            if let (Ok(client), Ok(engine)) = (of_client.await, of_engine.await) {
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(engine)).await;
            }
        }));
    }
    Ok(answer.map(|body| body.map_err(Error::from).boxed_unsync()))
}

/// The same stream, which is spoiled at its event; each comes in a piece of its own.
fn spoil_events(shared: Arc<Shared>, answer: Response<Body>) -> Response<Body> {
    answer.map(|body| {
        let pieces = stream::unfold(Some((BodyStream::new(body), shared)), |rest| async move {
            let (mut body, shared) = rest?;
            let piece = match body.next().await? {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => return Some((vec![Err(error)], None)),
            };
            let half = Ok(Frame::data(piece.slice(..piece.len() / 2)));
            match shared.count_event() {
                None => Some((vec![Ok(Frame::data(piece))], Some((body, shared)))),
                Some(StreamFault::Ends) => None,
                Some(StreamFault::EndsInAnEvent) => Some((vec![half], None)),
                Some(StreamFault::HalfAnEvent) => Some((vec![half, Err(Cut.into())], None)),
            }
        });
        StreamBody::new(pieces.flat_map(stream::iter)).boxed_unsync()
    })
}
