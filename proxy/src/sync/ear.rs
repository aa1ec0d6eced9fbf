//! Hears when others change nf_tables, while we change nothing ourselves.

use std::io;

use tokio::io::unix::AsyncFd;

use crate::apply::nftables::{Commit, NftMonitor};

/// A monitor that is open only between our own writes: a listener makes the kernel describe every
/// changed rule, which would slow down the loading of a large table.
#[derive(Debug, Default)]
pub(super) struct Ear {
    monitor: Option<AsyncFd<NftMonitor>>,
    /// The kernel does not let us listen: the timed look is all there is.
    deaf: bool,
}

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// These transactions, each after the one before.
    Commits(Vec<Commit>),
    /// Something that cannot be told: what came before the monitor was opened, or more than it could take.
    Unknown,
}

/// The replacement of `new` is unsafe; the socket owns its descriptor for as long as it lives, which is all
/// that is asked for.
#[allow(deprecated, reason = "see above")]
fn open() -> io::Result<AsyncFd<NftMonitor>> {
    AsyncFd::new(NftMonitor::open()?)
}

impl Ear {
    /// Ready to listen; a deaf one never hears a thing.
    pub(super) const fn new(deaf: bool) -> Self {
        Self { monitor: None, deaf }
    }

    /// Stops listening, before a write of our own.
    pub(super) fn close(&mut self) {
        self.monitor = None;
    }

    /// Comes back when something was changed. Opening counts as hearing, for what happened before.
    pub(super) async fn hear(&mut self) -> Heard {
        if self.monitor.is_none() && !self.deaf {
            match open() {
                Ok(monitor) => {
                    self.monitor = Some(monitor);
                    return Heard::Unknown;
                }
                Err(error) => {
                    tracing::warn!(%error, "changes of others to the rules are not heard at once: they are looked for from time to time");
                    self.deaf = true;
                }
            }
        }
        let Some(monitor) = &mut self.monitor else { return std::future::pending().await };
        loop {
            match monitor.readable_mut().await {
                Ok(mut ready) => {
                    ready.clear_ready();
                    match ready.get_inner_mut().commits() {
                        None => return Heard::Unknown,
                        Some(commits) if !commits.is_empty() => return Heard::Commits(commits),
                        Some(_) => {}
                    }
                }
                Err(_) => return std::future::pending().await,
            }
        }
    }
}
