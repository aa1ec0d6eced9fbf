//! The two families' shared view of nf_tables: which transactions are other programs', and a netlink monitor of them.
//! The kernel counts all transactions in one generation; ours are counted here, so that the rest are those of others.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{io::unix::AsyncFd, sync::Notify};

use crate::apply::nf_tables_netlink::{Affected, NfTables, NftMonitor};

/// Transactions of other programs, by their number: the generation without ours.
pub(super) type ForeignCount = u32;

/// A transaction of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForeignCommit {
    /// Its number.
    pub(super) number: ForeignCount,
    pub(super) affected: Affected,
}

/// What the monitor reports.
#[derive(Debug, Clone)]
pub(super) enum RulesetChange {
    /// These transactions, in order, without gaps.
    Commits(Vec<ForeignCommit>),
    /// Unknown changes: those before the monitor was opened, or more than its queue could take.
    Unknown,
}

#[derive(Debug, Default)]
struct State {
    /// Transactions of ours that were committed.
    own: u32,
    /// Transactions of ours whose end was not seen yet.
    in_flight: usize,
    /// Families that write.
    writers: usize,
    /// Open only while we are not writing: while a socket listens, the kernel builds a notification for every changed
    /// rule, which would slow down the loading of a large table.
    monitor: Option<AsyncFd<NftMonitor>>,
    /// The kernel does not let us listen: only the periodic check detects changes.
    unavailable: bool,
}

/// Shared by the tasks of both families.
#[derive(Debug)]
pub(super) struct Transactions {
    state: Mutex<State>,
    written: Notify,
}

/// `AsyncFd::new` is deprecated in favour of an unsafe function; its condition, that the value owns its descriptor for
/// as long as it lives, is met by the socket.
#[allow(deprecated, reason = "see above")]
fn open() -> io::Result<AsyncFd<NftMonitor>> {
    AsyncFd::new(NftMonitor::open()?)
}

impl Transactions {
    /// One that is not `monitored` never reports a change.
    pub(super) fn new(monitored: bool) -> Arc<Self> {
        let state = State { unavailable: !monitored, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), written: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A family writes, until the guard is dropped: the monitor is closed.
    pub(super) fn write(self: &Arc<Self>) -> Writing {
        let mut state = self.lock();
        state.writers += 1;
        state.monitor = None;
        Writing(Arc::clone(self))
    }

    /// A transaction begins, until the guard is dropped or [committed](Transaction::committed).
    pub(super) fn begin(self: &Arc<Self>) -> Transaction {
        self.lock().in_flight += 1;
        Transaction(Arc::clone(self))
    }

    /// The number of other programs' transactions; `None` while one of ours may or may not be counted, and if the
    /// kernel does not report a generation.
    pub(super) fn foreign(&self, netlink: &mut NfTables) -> Option<ForeignCount> {
        let state = self.lock();
        if state.in_flight > 0 {
            return None;
        }
        netlink.generation().ok().map(|generation| generation.wrapping_sub(state.own))
    }

    /// Waits for a change. Opening the monitor counts as one, for what happened before.
    pub(super) async fn changed(&self) -> RulesetChange {
        loop {
            tokio::select! {
                change = std::future::poll_fn(|context| self.poll(context)) => return change,
                () = self.written.notified() => {}
            }
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<RulesetChange> {
        let mut state = self.lock();
        if state.unavailable || state.writers > 0 {
            return Poll::Pending;
        }
        let own = state.own;
        let Some(monitor) = &mut state.monitor else {
            match open() {
                Ok(monitor) => {
                    state.monitor = Some(monitor);
                    return Poll::Ready(RulesetChange::Unknown);
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to monitor nf_tables over netlink; foreign changes are detected by periodic checks only");
                    state.unavailable = true;
                    return Poll::Pending;
                }
            }
        };
        loop {
            let mut ready = match monitor.poll_read_ready_mut(context) {
                Poll::Ready(Ok(ready)) => ready,
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            };
            ready.clear_ready();
            match ready.get_inner_mut().commits() {
                None => return Poll::Ready(RulesetChange::Unknown),
                Some(commits) if !commits.is_empty() => {
                    // No transaction of ours was committed since the monitor was opened.
                    let foreign = commits.iter().map(|commit| ForeignCommit {
                        number: commit.generation.wrapping_sub(own),
                        affected: commit.affected,
                    });
                    return Poll::Ready(RulesetChange::Commits(foreign.collect()));
                }
                Some(_) => {}
            }
        }
    }
}

/// A family writes.
pub(super) struct Writing(Arc<Transactions>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.lock().writers -= 1;
        self.0.written.notify_one();
    }
}

/// A transaction of ours.
pub(super) struct Transaction(Arc<Transactions>);

impl Transaction {
    /// The kernel has committed it.
    pub(super) fn committed(self) {
        let mut state = self.0.lock();
        state.own = state.own.wrapping_add(1);
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}
