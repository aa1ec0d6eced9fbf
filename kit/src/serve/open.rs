//! The open connections of a server: how many there may be, and which is closed when there are too many.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio_util::sync::CancellationToken;

use super::{
    counts::{self, Counts, Reason},
    limits::{IDLE_TIMEOUT, Limits, WRITE_TIMEOUT},
    stall::Writes,
};

/// The connections of one server.
///
/// A connection is at work while a request of somebody who was authenticated is worked on, or answered by a watch, a
/// log or a stream. One that is at work is never closed for others. All others may be: those with no request, those of
/// strangers, and those whose client has yet to take its answer. When there is no room, the address that has the most
/// of them loses the one on which nothing has happened for longest, so a client that opens many harms itself.
#[derive(Debug, Clone)]
pub(super) struct Open {
    limits: Limits,
    table: Arc<Mutex<Table>>,
    counts: Arc<Counts>,
    reserved: Reserved,
}

/// Local addresses of this process's own clients that watch over its servers. What connects from one of them has a
/// place whatever others do; nobody else can have the address while the client's socket is open.
#[derive(Debug, Clone, Default)]
pub struct Reserved(Arc<Mutex<HashSet<SocketAddr>>>);

/// A reserved address, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    reserved: Reserved,
    address: SocketAddr,
}

impl Reserved {
    /// Reserves a place for the connection that will come from `address`, which must be bound already.
    #[must_use]
    pub fn reserve(&self, address: SocketAddr) -> Reservation {
        self.addresses().insert(address);
        Reservation { reserved: self.clone(), address }
    }

    fn has(&self, address: &SocketAddr) -> bool {
        self.addresses().contains(address)
    }

    fn addresses(&self) -> MutexGuard<'_, HashSet<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.addresses().remove(&self.address);
    }
}

/// The decision alone.
#[derive(Debug, Default)]
struct Table {
    last_id: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    reserved: bool,
    authenticated: bool,
    /// Requests that it is at work with.
    busy: usize,
    /// Requests of any kind, until their answers are over.
    requests: usize,
    /// Of them those whose answers may wait for their clients: watches, logs, streams.
    long_running: usize,
    last_active: Instant,
    writes: Arc<Writes>,
    close: CancellationToken,
}

impl Connection {
    fn may_be_closed(&self) -> bool {
        self.busy == 0 && !self.reserved
    }
}

impl Table {
    /// Takes a connection in; what had to be closed for it is told too.
    fn admit(
        &mut self,
        limits: Limits,
        address: IpAddr,
        reserved: bool,
        now: Instant,
    ) -> (Result<u64, Reason>, Option<IpAddr>) {
        let mut closed = None;
        if !reserved {
            let of_address = self.connections.values().filter(|c| c.address == address).count();
            let strangers = self.connections.values().filter(|c| !c.authenticated).count();
            let room = if of_address >= limits.per_address {
                self.close_one(|c| c.address == address).ok_or(Reason::AddressFull).map(Some)
            } else if strangers >= limits.unauthenticated {
                self.close_one(|c| !c.authenticated).ok_or(Reason::Full).map(Some)
            } else if self.connections.len() >= limits.connections {
                self.close_one(|_| true).ok_or(Reason::Full).map(Some)
            } else {
                Ok(None)
            };
            match room {
                Ok(address) => closed = address,
                Err(why) => return (Err(why), None),
            }
        }
        self.last_id += 1;
        let connection = Connection {
            address,
            reserved,
            authenticated: reserved,
            busy: 0,
            requests: 0,
            long_running: 0,
            last_active: now,
            writes: Arc::default(),
            close: CancellationToken::new(),
        };
        self.connections.insert(self.last_id, connection);
        (Ok(self.last_id), closed)
    }

    /// Closes the connection that may be closed with the least harm, of those meant; its address.
    fn close_one(&mut self, is_meant: impl Fn(&Connection) -> bool) -> Option<IpAddr> {
        let meant = || self.connections.iter().filter(|(_, c)| c.may_be_closed() && is_meant(c));
        let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
        for (_, connection) in meant() {
            *of_address.entry(connection.address).or_default() += 1;
        }
        let (address, _) = of_address.into_iter().max_by_key(|(address, count)| (*count, *address))?;
        let (_, id) = meant().filter(|(_, c)| c.address == address).map(|(id, c)| (c.last_active, *id)).min()?;
        self.connections.remove(&id)?.close.cancel();
        Some(address)
    }

    /// Closes what is idle, and what its client has left blocked.
    fn sweep(&mut self, now: Instant) -> Vec<(IpAddr, Reason)> {
        let mut closed = Vec::new();
        self.connections.retain(|_, connection| {
            let idle = now.saturating_duration_since(connection.last_active) >= IDLE_TIMEOUT;
            let blocked = connection.writes.blocked_for(now).is_some_and(|time| time >= WRITE_TIMEOUT);
            let why = if connection.requests == 0 && idle {
                Reason::Idle
            } else if connection.long_running == 0 && blocked {
                Reason::Stalled
            } else {
                return true;
            };
            connection.close.cancel();
            closed.push((connection.address, why));
            false
        });
        closed
    }
}

impl Open {
    pub(super) fn new(server: &'static str, limits: Limits, reserved: Reserved) -> Self {
        Self { limits, table: Arc::default(), counts: counts::of(server), reserved }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in; `None` when there is no room. One without an address comes from this process.
    pub(super) fn admit(&self, server: &'static str, from: Option<SocketAddr>) -> Option<Admitted> {
        let address = from.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |from| from.ip().to_canonical());
        let reserved = from.is_some_and(|from| self.reserved.has(&from));
        let mut table = self.table();
        let (admitted, closed) = table.admit(self.limits, address, reserved, Instant::now());
        let found =
            admitted.map(|id| (id, table.connections.get(&id).map(|c| (c.close.clone(), Arc::clone(&c.writes)))));
        drop(table);
        if let Some(client) = closed {
            self.counts.dropped(Reason::Evicted);
            tracing::warn!(
                server,
                %client,
                "too many connections: the one of this client that did nothing for longest was closed"
            );
        }
        match found {
            Ok((id, Some((close, writes)))) => {
                self.counts.opened();
                Some(Admitted { open: self.clone(), id, close, writes })
            }
            Ok((_, None)) => None,
            Err(why) => {
                self.counts.dropped(why);
                tracing::warn!(server, client = %address, "a connection was refused: too many others are at work");
                None
            }
        }
    }

    /// Closes what is idle or blocked for too long.
    pub(super) fn sweep(&self, server: &'static str) {
        let closed = self.table().sweep(Instant::now());
        for (client, why) in closed {
            self.counts.dropped(why);
            if why == Reason::Stalled {
                tracing::warn!(server, %client, "a connection was closed: its client takes nothing of its answers");
            }
        }
    }

    pub(super) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    fn with(&self, id: u64, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.table().connections.get_mut(&id) {
            connection.last_active = Instant::now();
            change(connection);
        }
    }
}

/// A connection that was taken in; it is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    open: Open,
    id: u64,
    close: CancellationToken,
    writes: Arc<Writes>,
}

impl Admitted {
    /// Cancelled when the connection must be closed.
    pub(super) fn closed(&self) -> CancellationToken {
        self.close.clone()
    }

    /// What is known of its writes.
    pub(super) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Notes a request, until what is given back is dropped.
    pub(super) fn request(self: &Arc<Self>) -> RequestGuard {
        self.open.with(self.id, |c| c.requests += 1);
        RequestGuard { admitted: Arc::clone(self), state: Mutex::default() }
    }

    /// Something else than HTTP is spoken from now on, to the connection's end.
    pub(super) fn upgraded(&self) {
        self.open.with(self.id, |connection| {
            connection.busy += 1;
            connection.requests += 1;
            connection.long_running += 1;
        });
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.open.table().connections.remove(&self.id);
        self.open.counts.closed();
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct RequestGuard {
    admitted: Arc<Admitted>,
    state: Mutex<Work>,
}

#[derive(Debug, Default)]
struct Work {
    busy: bool,
    answered: bool,
    long_running: bool,
}

impl RequestGuard {
    fn change(&self, change: impl FnOnce(&mut Work, &mut Connection)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.admitted.open.with(self.admitted.id, |connection| change(&mut state, connection));
    }

    /// Somebody vouches for the client.
    pub(super) fn authenticated(&self) {
        self.change(|work, connection| {
            connection.authenticated = true;
            if !work.busy && !work.answered {
                work.busy = true;
                connection.busy += 1;
            }
        });
    }

    /// There is an answer: the rest is for the client to take. A long-running one is work to its end.
    pub(super) fn answered(&self, long_running: bool) {
        self.change(|work, connection| {
            work.answered = true;
            work.long_running = long_running;
            if long_running {
                connection.long_running += 1;
            } else if std::mem::take(&mut work.busy) {
                connection.busy = connection.busy.saturating_sub(1);
            }
        });
    }

    /// The client took a part of the answer.
    pub(super) fn progressed(&self) {
        self.change(|_, _| {});
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.change(|work, connection| {
            connection.requests = connection.requests.saturating_sub(1);
            if work.long_running {
                connection.long_running = connection.long_running.saturating_sub(1);
            }
            if work.busy {
                connection.busy = connection.busy.saturating_sub(1);
            }
        });
    }
}

#[cfg(test)]
mod tests;
