//! Doors of HTTP servers: TLS, client certificates, connections that end in order, ports that are taken, callers of
//! the same process.

mod holder;
mod inside;
mod open;
mod tls;

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

pub use inside::{Door, Inside, inside, serve_inside};
use open::{Admitted, Answering, Open};
pub use tls::{Pems, Tls, certificates, ends_at};

/// A client that does not finish its handshake is let go.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time that open requests have to end; watches are cut.
const DRAIN: Duration = Duration::from_secs(3);
/// Time that a client has for the head of a request, the wait for it included.
const HEAD: Duration = Duration::from_secs(30);
/// Connections that a server keeps. The process may have 1,024 files open where nobody raised that.
const CONNECTIONS: usize = 400;
/// The longest head of a request.
const LONGEST_HEAD: u32 = 64 << 10;

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

/// Serves without TLS until `shutdown`: for loopback only.
pub async fn serve_plain(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    serve(listener, None, router, shutdown).await;
}

/// Serves over TLS until `shutdown`, then lets open requests end. Requests carry a [`Peer`] extension when
/// the client has shown a certificate.
pub async fn serve_tls(listener: TcpListener, tls: Tls, router: Router, shutdown: CancellationToken) {
    serve(listener, Some(tls), router, shutdown).await;
}

async fn serve(listener: TcpListener, tls: Option<Tls>, router: Router, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let open = Open::new(CONNECTIONS);
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: a moment later there may be some.
                tracing::warn!(%error, "a server could not take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(admitted) = open.admit() else {
            tracing::debug!(connections = CONNECTIONS, "a connection was refused: all others have requests");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (tls, router, watcher) = (tls.clone(), router.clone(), graceful.watcher());
        let give_way = admitted.closed();
        tokio::spawn(async move {
            tokio::select! {
                () = give_way.cancelled() => {}
                () = connection(stream, tls, admitted, router, watcher) => {}
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}

async fn connection(stream: TcpStream, tls: Option<Tls>, admitted: Admitted, router: Router, watcher: Watcher) {
    let Some(tls) = tls else { return answer(stream, None, admitted, router, watcher).await };
    let acceptor = TlsAcceptor::from(tls.config());
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let peer = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let peer = peer.and_then(tls::identity);
            answer(stream, peer, admitted, router, watcher).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<Peer>,
    admitted: Admitted,
    router: Router,
    watcher: Watcher,
) {
    let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        let mut router = router.clone();
        let busy = admitted.request();
        async move {
            let answer = router.call(request.map(Body::new)).await;
            answer.map(|response| response.map(|body| Answering::wrap(body, busy)))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .max_header_list_size(LONGEST_HEAD);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%error, "a connection broke");
    }
}
