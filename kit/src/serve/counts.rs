//! Counters of the connections of servers, by the name of the server, for metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

/// Why a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Refused: no connection of the server may be closed.
    Full,
    /// Refused: no connection of its source address may be closed.
    AddressFull,
    /// Closed for another connection.
    Evicted,
    /// Closed, or one of its streams: the client did not read its response.
    Stalled,
    /// Closed: it had no request for a long time.
    Idle,
}

const REASONS: [(Reason, &str); 5] = [
    (Reason::Full, "full"),
    (Reason::AddressFull, "address_full"),
    (Reason::Evicted, "evicted"),
    (Reason::Stalled, "stalled"),
    (Reason::Idle, "idle"),
];

/// The counters of one server; servers of one name share them.
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

/// The values of one server's counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCounts {
    /// The server's name.
    pub server: &'static str,
    /// Connections that are open.
    pub open: u64,
    /// Connections that the server refused or closed, by reason.
    pub dropped: Vec<(&'static str, u64)>,
}

static SERVERS: Mutex<BTreeMap<&'static str, Arc<Counts>>> = Mutex::new(BTreeMap::new());

pub(super) fn of(server: &'static str) -> Arc<Counts> {
    Arc::clone(SERVERS.lock().entry(server).or_default())
}

/// The counters of all servers of this process.
#[must_use]
pub fn connection_counts() -> Vec<ServerCounts> {
    let servers = SERVERS.lock();
    let counts = |(server, counts): (&&'static str, &Arc<Counts>)| ServerCounts {
        server,
        open: counts.open.load(Ordering::Relaxed),
        dropped: REASONS.iter().zip(&counts.dropped).map(|((_, why), n)| (*why, n.load(Ordering::Relaxed))).collect(),
    };
    servers.iter().map(counts).collect()
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
        let counts = connection_counts().into_iter().find(|c| c.server == "a test").unwrap();
        assert_eq!(counts.open, 1);
        assert_eq!(counts.dropped.iter().find(|(why, _)| *why == "stalled"), Some(&("stalled", 1)));
        assert_eq!(counts.dropped.iter().map(|(_, n)| n).sum::<u64>(), 1);
    }
}
