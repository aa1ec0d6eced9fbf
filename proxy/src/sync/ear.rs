//! Hears when others change nf_tables, while we change nothing ourselves.

use std::io;

use tokio::io::unix::AsyncFd;

use crate::{apply::nftables, netlink::Netfilter};

/// A socket that is open only between our own writes: a listener makes the kernel describe every
/// changed rule, which would slow down the loading of a large table.
#[derive(Debug, Default)]
pub(super) struct Ear {
    socket: Option<AsyncFd<Netfilter>>,
    /// The kernel does not let us listen: the timed look is all there is.
    deaf: bool,
}

/// The replacement of `new` is unsafe; the socket owns its descriptor for as long as it lives, which is all
/// that is asked for.
#[allow(deprecated, reason = "see above")]
fn open() -> io::Result<AsyncFd<Netfilter>> {
    AsyncFd::new(nftables::listen()?)
}

impl Ear {
    /// Ready to listen; a deaf one never hears a thing.
    pub(super) const fn new(deaf: bool) -> Self {
        Self { socket: None, deaf }
    }

    /// Stops listening, before a write of our own.
    pub(super) fn close(&mut self) {
        self.socket = None;
    }

    /// Comes back when something was changed. Opening counts as hearing, for what happened before.
    pub(super) async fn hear(&mut self) {
        if self.socket.is_none() && !self.deaf {
            match open() {
                Ok(socket) => {
                    self.socket = Some(socket);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "changes of others to the rules are not heard at once: they are looked for from time to time");
                    self.deaf = true;
                }
            }
        }
        let Some(socket) = &self.socket else { return std::future::pending().await };
        loop {
            match socket.readable().await {
                Ok(mut ready) => {
                    ready.clear_ready();
                    if socket.get_ref().drain() {
                        return;
                    }
                }
                Err(_) => return std::future::pending().await,
            }
        }
    }
}
