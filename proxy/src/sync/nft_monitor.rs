//! Netlink monitor for foreign nf_tables transactions; closed during our own.

use std::io;

use tokio::io::unix::AsyncFd;

use crate::apply::nf_tables_netlink::{Commit, NftMonitor};

/// A monitor that is open only between our own writes: while a socket listens, the kernel builds a notification for
/// every changed rule, which would slow down the loading of a large table.
#[derive(Debug, Default)]
pub(super) struct RulesetMonitor {
    socket: Option<AsyncFd<NftMonitor>>,
    /// The kernel does not let us listen: only the periodic check detects changes.
    unavailable: bool,
}

/// What a monitor reports.
#[derive(Debug)]
pub(super) enum RulesetChange {
    /// These transactions, in order, without gaps.
    Commits(Vec<Commit>),
    /// Unknown changes: those before the monitor was opened, or more than its queue could take.
    Unknown,
}

/// `AsyncFd::new` is deprecated in favour of an unsafe function; its condition, that the value owns its descriptor for
/// as long as it lives, is met by the socket.
#[allow(deprecated, reason = "see above")]
fn open() -> io::Result<AsyncFd<NftMonitor>> {
    AsyncFd::new(NftMonitor::open()?)
}

impl RulesetMonitor {
    /// A closed monitor; one that is unavailable never reports anything.
    pub(super) const fn new(unavailable: bool) -> Self {
        Self { socket: None, unavailable }
    }

    /// Closes the monitor before a write of our own.
    pub(super) fn close(&mut self) {
        self.socket = None;
    }

    /// Waits for a change. Opening the monitor counts as one, for what happened before.
    pub(super) async fn changed(&mut self) -> RulesetChange {
        if self.socket.is_none() && !self.unavailable {
            match open() {
                Ok(socket) => {
                    self.socket = Some(socket);
                    return RulesetChange::Unknown;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to monitor nf_tables over netlink; foreign changes are detected by periodic checks only");
                    self.unavailable = true;
                }
            }
        }
        let Some(socket) = &mut self.socket else { return std::future::pending().await };
        loop {
            match socket.readable_mut().await {
                Ok(mut ready) => {
                    ready.clear_ready();
                    match ready.get_inner_mut().commits() {
                        None => return RulesetChange::Unknown,
                        Some(commits) if !commits.is_empty() => return RulesetChange::Commits(commits),
                        Some(_) => {}
                    }
                }
                Err(_) => return std::future::pending().await,
            }
        }
    }
}
