//! Limits the open connections of a server, and decides which one is closed when there are too many.

mod table;

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::{
    counts::{self, Counts, Reason},
    limits::Limits,
    stall::Writes,
};
use table::{Connection, Table};

/// The connections of one server.
///
/// A connection is busy while an authenticated request is processed, or answered by a watch, a log or a stream. A busy
/// one is never closed for others. All others may be: those without requests, unauthenticated ones, and those whose
/// client has yet to read its response. When the limit is reached, the address with most of these loses its least
/// recently active one, so a client that opens many harms itself.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimit {
    limits: Limits,
    table: Arc<Mutex<Table>>,
    counts: Arc<Counts>,
    reserved: ReservedAddresses,
}

/// Local addresses of this process's own clients that monitor its servers. A connection from one of them is always
/// accepted; no other process can use the address while the client's socket is open.
#[derive(Debug, Clone, Default)]
pub struct ReservedAddresses(Arc<Mutex<HashSet<SocketAddr>>>);

/// A reserved address, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    reserved: ReservedAddresses,
    address: SocketAddr,
}

impl ReservedAddresses {
    /// Reserves a connection from `address`, which must be bound already.
    #[must_use]
    pub fn reserve(&self, address: SocketAddr) -> Reservation {
        self.addresses().insert(address);
        Reservation { reserved: self.clone(), address }
    }

    fn has(&self, address: &SocketAddr) -> bool {
        self.addresses().contains(address)
    }

    fn addresses(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.0.lock()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.addresses().remove(&self.address);
    }
}

impl ConnectionLimit {
    pub(super) fn new(server: &'static str, limits: Limits, reserved: ReservedAddresses) -> Self {
        Self { limits, table: Arc::default(), counts: counts::of(server), reserved }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Accepts a connection; `None` when the limit is reached. One without an address comes from this process.
    pub(super) fn admit(&self, server: &'static str, from: Option<SocketAddr>) -> Option<ConnectionGuard> {
        let address = from.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |from| from.ip().to_canonical());
        let reserved = from.is_some_and(|from| self.reserved.has(&from));
        let mut table = self.table();
        let (admitted, closed) = table.admit(self.limits, address, reserved, Instant::now());
        let registered = admitted.map(|id| (id, table.get(id).map(|c| (c.close.clone(), Arc::clone(&c.writes)))));
        drop(table);
        if let Some(client) = closed {
            self.counts.dropped(Reason::Evicted);
            tracing::warn!(
                server,
                %client,
                "too many connections; closed the least recently active one of this client"
            );
        }
        match registered {
            Ok((id, Some((close, writes)))) => {
                self.counts.opened();
                Some(ConnectionGuard { limit: self.clone(), id, close, writes })
            }
            Ok((_, None)) => None,
            Err(why) => {
                self.counts.dropped(why);
                tracing::warn!(server, client = %address, "too many busy connections; refused a connection");
                None
            }
        }
    }

    /// Whether nobody is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// Closes idle and stalled connections.
    pub(super) fn sweep(&self, server: &'static str) {
        let closed = self.table().sweep(Instant::now());
        for (client, why) in closed {
            self.counts.dropped(why);
            if why == Reason::Stalled {
                tracing::warn!(server, %client, "closed a connection: its client takes nothing of its answers");
            }
        }
    }

    pub(super) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    fn with(&self, id: u64, change: impl FnOnce(&mut Connection)) {
        self.table().change(id, Instant::now(), change);
    }
}

/// An accepted connection; dropping it removes it.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    limit: ConnectionLimit,
    id: u64,
    close: CancellationToken,
    writes: Arc<Writes>,
}

impl ConnectionGuard {
    /// Cancelled when the connection must be closed.
    pub(super) fn closed(&self) -> CancellationToken {
        self.close.clone()
    }

    /// The progress of its writes.
    pub(super) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn request(self: &Arc<Self>) -> RequestGuard {
        self.limit.with(self.id, |c| c.requests += 1);
        RequestGuard { guard: Arc::clone(self), state: Mutex::default() }
    }

    /// The connection was upgraded: it is busy until its end.
    pub(super) fn upgraded(&self) {
        self.limit.with(self.id, |connection| {
            connection.busy += 1;
            connection.requests += 1;
            connection.long_running += 1;
        });
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.limit.table().remove(self.id);
        self.limit.counts.closed();
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct RequestGuard {
    guard: Arc<ConnectionGuard>,
    state: Mutex<RequestState>,
}

#[derive(Debug, Default)]
struct RequestState {
    busy: bool,
    answered: bool,
    long_running: bool,
}

impl RequestGuard {
    fn change(&self, change: impl FnOnce(&mut RequestState, &mut Connection)) {
        let mut state = self.state.lock();
        self.guard.limit.with(self.guard.id, |connection| change(&mut state, connection));
    }

    /// The client is authenticated.
    pub(super) fn authenticated(&self) {
        self.change(|request, connection| {
            connection.authenticated = true;
            if !request.busy && !request.answered {
                request.busy = true;
                connection.busy += 1;
            }
        });
    }

    /// The response is ready, and is read by the client. A long-running one keeps the connection busy until its end.
    pub(super) fn answered(&self, long_running: bool) {
        self.change(|request, connection| {
            request.answered = true;
            request.long_running = long_running;
            if long_running {
                connection.long_running += 1;
            } else if std::mem::take(&mut request.busy) {
                connection.busy = connection.busy.saturating_sub(1);
            }
        });
    }

    /// The client read a part of the response.
    pub(super) fn progressed(&self) {
        self.change(|_, _| {});
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.change(|request, connection| {
            connection.requests = connection.requests.saturating_sub(1);
            if request.long_running {
                connection.long_running = connection.long_running.saturating_sub(1);
            }
            if request.busy {
                connection.busy = connection.busy.saturating_sub(1);
            }
        });
    }
}

#[cfg(test)]
mod tests;
