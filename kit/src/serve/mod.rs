//! HTTP servers: TLS, client certificates, limits on clients, graceful shutdown, ports in use, in-process clients.
//!
//! Any client that can reach a port can open connections. So a client's resources are limited before anything is known
//! of it (`limits`), unauthenticated connections are closed in favour of others (`connection_limit`), a client that
//! does not read its responses or does not send its body is disconnected (`stall`, `body`), and all of it is counted
//! (`counts`).

mod body;
mod connection_limit;
mod counts;
mod credentials;
mod dns_rebinding;
pub mod headers;
mod in_process;
mod limits;
mod listener;
mod local;
mod port_owner;
mod stall;
mod tls;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{Request, StatusCode},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

pub use body::{BodyError, BodyStreaming};
use body::{BodyMemoryLimit, RequestBody, ResponseBody};
use connection_limit::{ConnectionGuard, ConnectionLimit, RequestGuard};
pub use connection_limit::{Reservation, ReservedAddresses};
pub use counts::{ServerCounts, connection_counts};
pub use credentials::{bearer, is_own_origin};
pub use in_process::{InProcessConnector, InProcessListener, in_process, serve_in_process};
use limits::{
    CONNECTION_WINDOW, HANDSHAKE_TIMEOUT, HEADER_READ_TIMEOUT, Limits, MAX_CONCURRENT_STREAMS, MAX_HEADER_BYTES,
    STREAM_WINDOW, SWEEP_INTERVAL,
};
pub use listener::{ListenAddress, Listener};
pub use local::{LocalListener, serve_local};
use stall::{Socket, Streams};
pub use tls::{Pems, Tls, certificates, ends_at, identity};

/// Time for open requests to end; watches are cut.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// The identity in a verified client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientIdentity {
    /// The subject's common name.
    pub name: String,
    /// The subject's organisations.
    pub groups: Vec<String>,
    /// SHA-256 of the certificate, in hexadecimal digits; empty without a certificate, as for in-process clients.
    pub fingerprint: String,
    /// Expiry of the certificate, in seconds since 1970; `None` without a certificate.
    pub ends_at: Option<i64>,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port cannot be bound.
    #[error("{what} could not listen on {address}: {reason}{holder}")]
    Listen {
        /// Which server.
        what: &'static str,
        /// Which address.
        address: SocketAddr,
        /// Why not.
        reason: String,
        /// The process that has the port, if known.
        holder: String,
    },
    /// A certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Certificate(String),
}

/// Binds a port for `what`. An unspecified address is one of both families.
///
/// # Errors
/// Names the port and, when it is in use, the process that has it.
#[allow(clippy::unused_async, reason = "it must be called in a runtime")]
pub async fn listen(what: &'static str, address: impl Into<ListenAddress>) -> Result<TcpListener, ServeError> {
    let address = address.into();
    address.bind().map_err(|e| {
        let address = address.address();
        let holder = (e.kind() == std::io::ErrorKind::AddrInUse).then(|| port_owner::of(address.port())).flatten();
        ServeError::Listen { what, address, reason: e.to_string(), holder: holder.unwrap_or_default() }
    })
}

/// The origin of a request, as an extension of it. Authentication reports its success here: connections without it are
/// closed for others.
#[derive(Debug, Clone)]
pub struct Caller {
    address: Option<SocketAddr>,
    request: Arc<RequestGuard>,
}

impl Caller {
    /// The client's address; `None` for one in this process.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The client is authenticated.
    pub fn authenticated(&self) {
        self.request.authenticated();
    }
}

/// Extension of responses that may wait for their clients: watches, logs, streams. All others have a timeout.
#[derive(Debug, Clone, Copy)]
pub struct LongRunning;

/// What the connections of one server share.
#[derive(Clone)]
struct Server {
    name: &'static str,
    connections: ConnectionLimit,
    body_memory: BodyMemoryLimit,
    router: Router,
}

impl Server {
    fn new(name: &'static str, router: Router, limits: Limits, reserved: ReservedAddresses) -> Self {
        Self {
            name,
            connections: ConnectionLimit::new(name, limits, reserved),
            body_memory: BodyMemoryLimit::new(),
            router,
        }
    }
}

/// Serves without TLS until `shutdown`: for what anybody who can connect may read. On a loopback address it only
/// accepts local names.
pub async fn serve_plain(
    name: &'static str,
    listener: impl Into<Listener>,
    router: Router,
    shutdown: CancellationToken,
) {
    let listener = listener.into();
    let is_local = listener.local_addr().is_some_and(|address| address.ip().is_loopback());
    let router = if is_local { dns_rebinding::only_local_names(router) } else { router };
    serve(Server::new(name, router, Limits::of_process(), ReservedAddresses::default()), listener, None, shutdown)
        .await;
}

/// Serves over TLS until `shutdown`, then lets open requests end. Requests carry a [`ClientIdentity`] extension when
/// the client has shown a certificate. Connections from `reserved` addresses always have a place.
pub async fn serve_tls(
    name: &'static str,
    listener: TcpListener,
    tls: Tls,
    router: Router,
    reserved: ReservedAddresses,
    shutdown: CancellationToken,
) {
    serve(Server::new(name, router, Limits::of_process(), reserved), listener.into(), Some(tls), shutdown).await;
}

async fn serve(server: Server, listener: Listener, tls: Option<Tls>, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = sweep.tick() => {
                server.connections.sweep(server.name);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely out of descriptors: retry a moment later.
                tracing::warn!(server = server.name, %error, "failed to accept a connection; retrying");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(guard) = server.connections.admit(server.name, Some(address)) else { continue };
        let _ = stream.set_nodelay(true);
        let closed = guard.closed();
        let connection = Connection { server: server.clone(), guard: Arc::new(guard), address: Some(address) };
        let (tls, watcher) = (tls.clone(), graceful.watcher());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = connection.run(stream, tls, watcher) => {}
            }
        });
    }
    listener.close();
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown()).await;
}

/// An accepted connection.
struct Connection {
    server: Server,
    guard: Arc<ConnectionGuard>,
    address: Option<SocketAddr>,
}

impl Connection {
    async fn run<S>(self, stream: S, tls: Option<Tls>, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let socket = Socket { inner: stream, guard: Arc::clone(&self.guard) };
        let Some(tls) = tls else { return self.answer(socket, None, watcher).await };
        let acceptor = TlsAcceptor::from(tls.config());
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => {
                let peer = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let peer = peer.and_then(|certificate| identity(certificate));
                self.answer(stream, peer, watcher).await;
            }
            Ok(Err(error)) => tracing::debug!(server = self.server.name, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(server = self.server.name, "TLS handshake timed out"),
        }
    }

    async fn answer<S>(self, stream: S, peer: Option<ClientIdentity>, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { server, guard, address } = self;
        let client = address.map(|from| from.ip().to_canonical());
        let streams = Streams { server: server.name, client, counts: server.connections.counts() };
        let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
            let (mut router, connection, memory) =
                (server.router.clone(), Arc::clone(&guard), server.body_memory.request(server.name, client));
            let guard = Arc::new(connection.request());
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
                guard.authenticated();
            }
            request.extensions_mut().insert(Caller { address, request: Arc::clone(&guard) });
            request.extensions_mut().insert(memory.streaming());
            async move {
                let progress = stall::current_stream();
                let answer = router.call(request.map(|body| RequestBody::wrap(body, memory.clone()))).await;
                memory.release();
                answer.map(|mut response| {
                    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    let long_running = response.extensions_mut().remove::<LongRunning>().is_some();
                    guard.answered(long_running);
                    if upgraded {
                        connection.upgraded();
                    }
                    response.map(|body| ResponseBody::wrap(body, long_running, progress, guard))
                })
            }
        });
        let mut builder = auto::Builder::new(streams);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .max_buf_size(MAX_HEADER_BYTES as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_BYTES);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection.into_owned()).await {
            tracing::debug!(%error, "connection failed");
        }
    }
}

#[cfg(test)]
mod tests;
