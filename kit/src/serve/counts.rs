//! What servers counted of their connections, by the server's name, for a page of metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Why a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Refused: all connections of the server are at work.
    Full,
    /// Refused: all connections of its source address are at work.
    AddressFull,
    /// Closed to make room for another one.
    Evicted,
    /// Closed, or one of its streams: the client did not take its answer.
    Stalled,
    /// Closed: no request came by it for long.
    Idle,
}

const REASONS: [(Reason, &str); 5] = [
    (Reason::Full, "full"),
    (Reason::AddressFull, "address_full"),
    (Reason::Evicted, "evicted"),
    (Reason::Stalled, "stalled"),
    (Reason::Idle, "idle"),
];

/// The counts of one server; servers of one name share them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    open: AtomicU64,
    dropped: [AtomicU64; REASONS.len()],
}

impl Counts {
    pub(super) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, why: Reason) {
        if let Some(count) = REASONS.iter().position(|(r, _)| *r == why).and_then(|at| self.dropped.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What one server has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCounts {
    /// The server's name.
    pub server: &'static str,
    /// Connections that are open.
    pub open: u64,
    /// Connections that were refused or closed by the server, by reason.
    pub dropped: Vec<(&'static str, u64)>,
}

static SERVERS: Mutex<BTreeMap<&'static str, Arc<Counts>>> = Mutex::new(BTreeMap::new());

pub(super) fn of(server: &'static str) -> Arc<Counts> {
    Arc::clone(SERVERS.lock().unwrap_or_else(PoisonError::into_inner).entry(server).or_default())
}

/// The counts of all servers of this process.
#[must_use]
pub fn connection_counts() -> Vec<ServerCounts> {
    let servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let told = |(server, counts): (&&'static str, &Arc<Counts>)| ServerCounts {
        server,
        open: counts.open.load(Ordering::Relaxed),
        dropped: REASONS.iter().zip(&counts.dropped).map(|((_, why), n)| (*why, n.load(Ordering::Relaxed))).collect(),
    };
    servers.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_told_by_server_and_reason() {
        let counts = of("a test");
        counts.opened();
        of("a test").opened();
        counts.closed();
        counts.dropped(Reason::Stalled);
        let told = connection_counts().into_iter().find(|c| c.server == "a test").unwrap();
        assert_eq!(told.open, 1);
        assert_eq!(told.dropped.iter().find(|(why, _)| *why == "stalled"), Some(&("stalled", 1)));
        assert_eq!(told.dropped.iter().map(|(_, n)| n).sum::<u64>(), 1);
    }
}
