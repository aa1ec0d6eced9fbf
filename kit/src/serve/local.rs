//! Servers on Unix sockets, whose file alone says who may connect.

use std::{io, time::Duration};

use axum::Router;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{Connection, Limits, ReservedAddresses, SHUTDOWN_GRACE, SWEEP_INTERVAL, Server};

/// The wait after a connection could not be accepted: most likely out of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A socket that gives connections, whatever it takes to keep its file in place.
pub trait LocalListener: Send {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
    ///
    /// # Errors
    /// Those of the socket; it is asked again a moment later.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Serves at most `connections` until `shutdown`, then lets open requests end. A handler says of a request that keeps its
/// connection busy that it is [authenticated](super::Caller::authenticated); any other connection makes room for a new one when
/// there are too many. Without connections nothing wakes the process.
pub async fn serve_local<L: LocalListener>(
    name: &'static str,
    mut listener: L,
    connections: usize,
    router: Router,
    shutdown: CancellationToken,
) {
    let limits = Limits { connections, per_address: connections, unauthenticated: connections };
    let server = Server::new(name, router, limits, ReservedAddresses::default());
    let graceful = GracefulShutdown::new();
    let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = sweep.tick(), if !server.connections.is_empty() => {
                server.connections.sweep(name);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(server = name, %error, "failed to accept a connection; retrying");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Some(guard) = server.connections.admit(name, None) else { continue };
        let closed = guard.closed();
        let connection = Connection { server: server.clone(), guard: guard.into(), address: None };
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = connection.run(stream, None, watcher) => {}
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown()).await;
}
