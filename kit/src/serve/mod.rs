//! Servers of HTTP: TLS, client certificates, limits on what clients may take, connections that end in order, ports that
//! are taken, callers of the same process.
//!
//! Whoever can reach a port can open connections and leave them. So what a client may hold is bounded before anything
//! is known of it (`limits`), connections of strangers are closed for those of others (`open`), a client that does not
//! take its answers or does not send its body is let go (`stall`, `body`), and all of it is counted (`counts`).

mod body;
mod counts;
mod credentials;
mod holder;
mod inside;
mod limits;
mod local_name;
mod open;
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

pub use body::BodyError;
use body::{InFlight, RequestBody, ResponseBody};
pub use counts::{ServerCounts, connection_counts};
pub use credentials::{bearer, is_own_origin};
pub use inside::{Door, Inside, inside, serve_inside};
use limits::{
    CONNECTION_WINDOW, HANDSHAKE_TIMEOUT, HEADER_READ_TIMEOUT, Limits, MAX_CONCURRENT_STREAMS, MAX_HEADER_BYTES,
    STREAM_WINDOW, SWEEP,
};
use open::{Admitted, Open, RequestGuard};
pub use open::{Reservation, Reserved};
use stall::{Socket, Streams};
pub use tls::{Pems, Tls, certificates, ends_at};

/// Time that open requests have to end; watches are cut.
const DRAIN: Duration = Duration::from_secs(3);

/// Who a verified client certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The subject's common name.
    pub name: String,
    /// The subject's organisations.
    pub groups: Vec<String>,
}

/// Why a server could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port could not be had.
    #[error("{what} could not listen on {address}: {reason}{holder}")]
    Listen {
        /// Who wanted it.
        what: &'static str,
        /// Which address.
        address: SocketAddr,
        /// Why not.
        reason: String,
        /// Who has it, if it can be told.
        holder: String,
    },
    /// A certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Certificate(String),
}

/// Takes a port for `what`.
///
/// # Errors
/// Names the port and, when another process has it, that process.
pub async fn listen(what: &'static str, address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|e| {
        let holder = (e.kind() == std::io::ErrorKind::AddrInUse).then(|| holder::of(address.port())).flatten();
        ServeError::Listen { what, address, reason: e.to_string(), holder: holder.unwrap_or_default() }
    })
}

/// Where a request comes from: an extension of it. Whoever authenticates the request says so here: what nobody was
/// authenticated for makes room for others.
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

    /// Somebody vouches for the client.
    pub fn authenticated(&self) {
        self.request.authenticated();
    }
}

/// An extension of answers that may wait for their clients: watches, logs, streams. All others must be taken in time.
#[derive(Debug, Clone, Copy)]
pub struct LongRunning;

/// What the connections of one server have in common.
#[derive(Clone)]
struct Server {
    name: &'static str,
    open: Open,
    in_flight: InFlight,
    router: Router,
}

impl Server {
    fn new(name: &'static str, router: Router, limits: Limits, reserved: Reserved) -> Self {
        Self { name, open: Open::new(name, limits, reserved), in_flight: InFlight::new(), router }
    }
}

/// Serves without TLS until `shutdown`: for what anybody who can connect may know. On a loopback address it answers to
/// local names alone.
pub async fn serve_plain(name: &'static str, listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let router = if is_local { local_name::only_local_names(router) } else { router };
    serve(Server::new(name, router, Limits::of_process(), Reserved::default()), listener, None, shutdown).await;
}

/// Serves over TLS until `shutdown`, then lets open requests end. Requests carry a [`Peer`] extension when the client
/// has shown a certificate. Connections from `reserved` addresses always have a place.
pub async fn serve_tls(
    name: &'static str,
    listener: TcpListener,
    tls: Tls,
    router: Router,
    reserved: Reserved,
    shutdown: CancellationToken,
) {
    serve(Server::new(name, router, Limits::of_process(), reserved), listener, Some(tls), shutdown).await;
}

async fn serve(server: Server, listener: TcpListener, tls: Option<Tls>, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let mut sweep = tokio::time::interval(SWEEP);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = sweep.tick() => {
                server.open.sweep(server.name);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: a moment later there may be some.
                tracing::warn!(server = server.name, %error, "a server could not take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(admitted) = server.open.admit(server.name, Some(address)) else { continue };
        let _ = stream.set_nodelay(true);
        let closed = admitted.closed();
        let connection = Connection { server: server.clone(), admitted: Arc::new(admitted), address: Some(address) };
        let (tls, watcher) = (tls.clone(), graceful.watcher());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = connection.run(stream, tls, watcher) => {}
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}

/// A connection that was taken in.
struct Connection {
    server: Server,
    admitted: Arc<Admitted>,
    address: Option<SocketAddr>,
}

impl Connection {
    async fn run<S>(self, stream: S, tls: Option<Tls>, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let socket = Socket { inner: stream, admitted: Arc::clone(&self.admitted) };
        let Some(tls) = tls else { return self.answer(socket, None, watcher).await };
        let acceptor = TlsAcceptor::from(tls.config());
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => {
                let peer = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let peer = peer.and_then(tls::identity);
                self.answer(stream, peer, watcher).await;
            }
            Ok(Err(error)) => tracing::debug!(server = self.server.name, %error, "a TLS handshake failed"),
            Err(_) => tracing::debug!(server = self.server.name, "a TLS handshake took too long"),
        }
    }

    async fn answer<S>(self, stream: S, peer: Option<Peer>, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { server, admitted, address } = self;
        let client = address.map(|from| from.ip().to_canonical());
        let streams = Streams { server: server.name, client, counts: server.open.counts() };
        let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
            let (mut router, admitted, held) =
                (server.router.clone(), Arc::clone(&admitted), server.in_flight.request(server.name, client));
            let guard = Arc::new(admitted.request());
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
                guard.authenticated();
            }
            request.extensions_mut().insert(Caller { address, request: Arc::clone(&guard) });
            async move {
                let progress = stall::of_this_stream();
                let answer = router.call(request.map(|body| RequestBody::wrap(body, held.clone()))).await;
                held.release();
                answer.map(|mut response| {
                    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    let long_running = response.extensions_mut().remove::<LongRunning>().is_some();
                    guard.answered(long_running);
                    if upgraded {
                        admitted.upgraded();
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
            tracing::debug!(%error, "a connection broke");
        }
    }
}

#[cfg(test)]
mod tests;
