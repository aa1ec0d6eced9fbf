//! A server's door for callers of the same process: what would be encrypted, sent over loopback and decrypted again by
//! the same program is handed over instead.

use std::{io, sync::Arc};

use axum::Router;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::{
    io::{DuplexStream, duplex},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{Connection, DRAIN, Limits, Peer, Reserved, Server};

/// What may be on its way in one direction of a connection.
const ON_ITS_WAY: usize = 256 << 10;
/// Connections that wait to be taken.
const WAITING: usize = 16;

/// The caller's side. Every connection through it is the caller's named when the door was made.
#[derive(Debug, Clone)]
pub struct Door(mpsc::Sender<DuplexStream>);

/// The server's side.
#[derive(Debug)]
pub struct Inside {
    peer: Peer,
    arriving: mpsc::Receiver<DuplexStream>,
}

/// A door for `peer`, who needs no certificate here.
#[must_use]
pub fn inside(peer: Peer) -> (Door, Inside) {
    let (door, arriving) = mpsc::channel(WAITING);
    (Door(door), Inside { peer, arriving })
}

impl Door {
    /// Opens a connection.
    ///
    /// # Errors
    /// When the server has ended.
    pub async fn connect(&self) -> io::Result<DuplexStream> {
        let (near, far) = duplex(ON_ITS_WAY);
        let closed = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "its server has ended");
        self.0.send(far).await.map_err(closed)?;
        Ok(near)
    }
}

/// Serves what comes through the door until `shutdown`, then lets open requests end.
pub async fn serve_inside(name: &'static str, mut inside: Inside, router: Router, shutdown: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let server = Server::new(name, router, Limits::of_one_caller(), Reserved::default());
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            stream = inside.arriving.recv() => stream,
        };
        let Some(stream) = stream else { break };
        let Some(admitted) = server.open.admit(name, None) else { continue };
        let (closed, peer) = (admitted.closed(), inside.peer.clone());
        let connection = Connection { server: server.clone(), admitted: Arc::new(admitted), address: None };
        let answering = connection.answer(stream, Some(peer), graceful.watcher());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = answering => {}
            }
        });
    }
    drop(inside);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}
