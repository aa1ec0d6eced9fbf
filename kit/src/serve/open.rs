//! The open connections of a server: how many there may be, and who goes when there are too many.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

/// The connections of one server. A connection without a request gives way to a new one, the one that has been so
/// for longest first; while all have requests a new one is refused. So whoever opens connections and sends nothing
/// keeps nobody out.
#[derive(Debug, Clone)]
pub(super) struct Open {
    most: usize,
    table: Arc<Mutex<Table>>,
}

/// The decision alone.
#[derive(Debug, Default)]
struct Table {
    /// Counts up with all that happens; a smaller number is longer ago.
    clock: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    /// Since when it has had no request; `None` while it has one.
    idle_since: Option<u64>,
    requests: usize,
    close: CancellationToken,
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Takes a connection in; `None` when there is no room.
    fn admit(&mut self, most: usize) -> Option<(u64, CancellationToken)> {
        if self.connections.len() >= most {
            let idlest = self.connections.iter().filter_map(|(id, c)| Some((c.idle_since?, *id))).min()?;
            if let Some(connection) = self.connections.remove(&idlest.1) {
                connection.close.cancel();
            }
        }
        let id = self.tick();
        let close = CancellationToken::new();
        self.connections.insert(id, Connection { idle_since: Some(id), requests: 0, close: close.clone() });
        Some((id, close))
    }

    fn begin(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.requests += 1;
            connection.idle_since = None;
        }
    }

    fn end(&mut self, id: u64) {
        let now = self.tick();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.requests = connection.requests.saturating_sub(1);
            connection.idle_since = (connection.requests == 0).then_some(now);
        }
    }
}

impl Open {
    pub(super) fn new(most: usize) -> Self {
        Self { most, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in; `None` when there is no room.
    pub(super) fn admit(&self) -> Option<Admitted> {
        let (id, close) = self.table().admit(self.most)?;
        Some(Admitted { open: self.clone(), id, close })
    }
}

/// A connection that was taken in; it is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    open: Open,
    id: u64,
    close: CancellationToken,
}

impl Admitted {
    /// Ends when the connection must give way.
    pub(super) fn closed(&self) -> CancellationToken {
        self.close.clone()
    }

    /// Notes a request, until what is given back is dropped.
    pub(super) fn request(&self) -> Busy {
        self.open.table().begin(self.id);
        Busy { open: self.open.clone(), id: self.id }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.open.table().connections.remove(&self.id);
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Busy {
    open: Open,
    id: u64,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.open.table().end(self.id);
    }
}

/// An answer's body that keeps its connection busy until it was sent.
#[derive(Debug)]
pub(super) struct Answering {
    body: Body,
    _busy: Busy,
}

impl Answering {
    pub(super) fn wrap(body: Body, busy: Busy) -> Body {
        Body::new(Self { body, _busy: busy })
    }
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idlest_gives_way_and_the_busy_stay() {
        let mut table = Table::default();
        let (first, first_close) = table.admit(2).unwrap();
        let (second, second_close) = table.admit(2).unwrap();
        // The first was busy after the second had come, so the second has been idle for longer.
        table.begin(first);
        table.end(first);
        let (third, third_close) = table.admit(2).unwrap();
        assert!(second_close.is_cancelled() && !first_close.is_cancelled());
        table.begin(first);
        table.begin(third);
        assert!(table.admit(2).is_none(), "all are busy");
        table.begin(third);
        table.end(third);
        assert!(table.admit(2).is_none(), "one of two requests has ended");
        table.end(third);
        assert!(table.admit(2).is_some() && third_close.is_cancelled());
        // What is over is no concern any more.
        table.end(second);
        table.end(third);
        assert_eq!(table.connections.len(), 2);
    }
}
