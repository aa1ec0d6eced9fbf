//! In-process transport: callers of the same process connect to a server without loopback and TLS.

use std::{io, sync::Arc};

use axum::Router;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::{
    io::{DuplexStream, duplex},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{ClientIdentity, Connection, Limits, ReservedAddresses, SHUTDOWN_GRACE, Server};

/// Buffered bytes in each direction of a connection.
const PIPE_BYTES: usize = 256 << 10;
/// Connections that wait to be accepted.
const ACCEPT_QUEUE_CAPACITY: usize = 16;

/// The client's side. Its connections have the identity given at its creation.
#[derive(Debug, Clone)]
pub struct InProcessConnector(mpsc::Sender<DuplexStream>);

/// The server's side.
#[derive(Debug)]
pub struct InProcessListener {
    peer: ClientIdentity,
    arriving: mpsc::Receiver<DuplexStream>,
}

/// A transport for clients with this identity, which need no certificate.
#[must_use]
pub fn in_process(peer: ClientIdentity) -> (InProcessConnector, InProcessListener) {
    let (connector, arriving) = mpsc::channel(ACCEPT_QUEUE_CAPACITY);
    (InProcessConnector(connector), InProcessListener { peer, arriving })
}

impl InProcessConnector {
    /// Opens a connection.
    ///
    /// # Errors
    /// When the server has ended.
    pub async fn connect(&self) -> io::Result<DuplexStream> {
        let (near, far) = duplex(PIPE_BYTES);
        let closed = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "its server has ended");
        self.0.send(far).await.map_err(closed)?;
        Ok(near)
    }
}

/// Serves connections of the transport until `shutdown`, then lets open requests end.
pub async fn serve_in_process(
    name: &'static str,
    mut listener: InProcessListener,
    router: Router,
    shutdown: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let server = Server::new(name, router, Limits::of_one_caller(), ReservedAddresses::default());
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            stream = listener.arriving.recv() => stream,
        };
        let Some(stream) = stream else { break };
        let Some(guard) = server.connections.admit(name, None) else { continue };
        let (closed, peer) = (guard.closed(), listener.peer.clone());
        let connection = Connection { server: server.clone(), guard: Arc::new(guard), address: None };
        let answering = connection.answer(stream, Some(peer), graceful.watcher());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = answering => {}
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown()).await;
}
