//! Which connection is admitted, and which one is closed for it. Pure. Counts and orders are maintained as connections
//! change, so that an admission costs the same however many there are: an attacker would open many.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use tokio_util::sync::CancellationToken;

use super::super::{
    counts::Reason,
    limits::{IDLE_TIMEOUT, Limits, WRITE_TIMEOUT},
    stall::Writes,
};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) address: IpAddr,
    pub(super) reserved: bool,
    pub(super) authenticated: bool,
    /// Requests that keep it busy.
    pub(super) busy: usize,
    /// All requests, until their responses end.
    pub(super) requests: usize,
    /// Of these, those with long-running responses: watches, logs, streams.
    pub(super) long_running: usize,
    pub(super) last_active: Instant,
    pub(super) writes: Arc<Writes>,
    pub(super) close: CancellationToken,
}

impl Connection {
    fn is_closable(&self) -> bool {
        self.busy == 0 && !self.reserved
    }

    /// Since when nothing was asked on it, if it may be closed for others, and if those without credentials alone are meant,
    /// is one of them.
    fn closable_since(&self, unauthenticated_only: bool) -> Option<Instant> {
        (self.is_closable() && !(unauthenticated_only && self.authenticated)).then_some(self.last_active)
    }
}

/// Connections that may be closed for others, by address.
#[derive(Debug, Default)]
struct Closable {
    /// The least recently active one is the first.
    of_address: HashMap<IpAddr, BTreeSet<(Instant, u64)>>,
    /// The address with the most is the last.
    sizes: BTreeSet<(usize, IpAddr)>,
}

impl Closable {
    /// A connection is closable since another time, or is not any more.
    fn replace(&mut self, address: IpAddr, id: u64, before: Option<Instant>, after: Option<Instant>) {
        if before == after {
            return;
        }
        let own = self.of_address.entry(address).or_default();
        let size = own.len();
        if let Some(before) = before {
            own.remove(&(before, id));
        }
        if let Some(after) = after {
            own.insert((after, id));
        }
        let new_size = own.len();
        if new_size == size {
            return;
        }
        if new_size == 0 {
            self.of_address.remove(&address);
        } else {
            self.sizes.insert((new_size, address));
        }
        self.sizes.remove(&(size, address));
    }

    /// The least recently active one of an address.
    fn least_of(&self, address: IpAddr) -> Option<u64> {
        self.of_address.get(&address)?.first().map(|(_, id)| *id)
    }

    /// The least recently active one of the address with the most.
    fn least(&self) -> Option<u64> {
        self.sizes.last().and_then(|(_, address)| self.least_of(*address))
    }
}

/// The connections of a server.
#[derive(Debug, Default)]
pub(super) struct Table {
    last_id: u64,
    connections: BTreeMap<u64, Connection>,
    of_address: HashMap<IpAddr, usize>,
    unauthenticated: usize,
    closable: Closable,
    /// Of these, those of unauthenticated clients.
    closable_unauthenticated: Closable,
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    pub(super) fn get(&self, id: u64) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// Changes a connection, which is active by that.
    pub(super) fn change(&mut self, id: u64, now: Instant, change: impl FnOnce(&mut Connection)) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let before = [false, true].map(|only| connection.closable_since(only));
        let was_unauthenticated = !connection.authenticated;
        connection.last_active = now;
        change(connection);
        let after = [false, true].map(|only| connection.closable_since(only));
        let address = connection.address;
        self.unauthenticated += usize::from(!connection.authenticated);
        self.unauthenticated -= usize::from(was_unauthenticated);
        self.closable.replace(address, id, before[0], after[0]);
        self.closable_unauthenticated.replace(address, id, before[1], after[1]);
    }

    fn insert(&mut self, id: u64, connection: Connection) {
        *self.of_address.entry(connection.address).or_default() += 1;
        self.unauthenticated += usize::from(!connection.authenticated);
        self.closable.replace(connection.address, id, None, connection.closable_since(false));
        self.closable_unauthenticated.replace(connection.address, id, None, connection.closable_since(true));
        self.connections.insert(id, connection);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        let address = connection.address;
        if let Some(count) = self.of_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.of_address.remove(&address);
            }
        }
        self.unauthenticated -= usize::from(!connection.authenticated);
        self.closable.replace(address, id, connection.closable_since(false), None);
        self.closable_unauthenticated.replace(address, id, connection.closable_since(true), None);
        Some(connection)
    }

    /// Accepts a connection; also returns the address of one that was closed for it.
    pub(super) fn admit(
        &mut self,
        limits: Limits,
        address: IpAddr,
        reserved: bool,
        now: Instant,
    ) -> (Result<u64, Reason>, Option<IpAddr>) {
        let mut closed = None;
        if !reserved {
            let of_address = self.of_address.get(&address).copied().unwrap_or_default();
            let room = if of_address >= limits.per_address {
                self.close(self.closable.least_of(address)).ok_or(Reason::AddressFull).map(Some)
            } else if self.unauthenticated >= limits.unauthenticated {
                self.close(self.closable_unauthenticated.least()).ok_or(Reason::Full).map(Some)
            } else if self.connections.len() >= limits.connections {
                self.close(self.closable.least()).ok_or(Reason::Full).map(Some)
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
        self.insert(self.last_id, connection);
        (Ok(self.last_id), closed)
    }

    /// Closes a connection; returns its address.
    fn close(&mut self, id: Option<u64>) -> Option<IpAddr> {
        let connection = self.remove(id?)?;
        connection.close.cancel();
        Some(connection.address)
    }

    /// Closes idle and stalled connections.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<(IpAddr, Reason)> {
        let why = |connection: &Connection| {
            let idle = now.saturating_duration_since(connection.last_active) >= IDLE_TIMEOUT;
            let blocked = connection.writes.blocked_for(now).is_some_and(|time| time >= WRITE_TIMEOUT);
            if connection.requests == 0 && idle {
                Some(Reason::Idle)
            } else if connection.long_running == 0 && blocked {
                Some(Reason::Stalled)
            } else {
                None
            }
        };
        let ended: Vec<(u64, Reason)> =
            self.connections.iter().filter_map(|(id, connection)| Some((*id, why(connection)?))).collect();
        ended.into_iter().filter_map(|(id, why)| Some((self.close(Some(id))?, why))).collect()
    }
}

#[cfg(test)]
mod tests;
