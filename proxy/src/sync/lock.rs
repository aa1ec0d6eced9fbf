//! One proxy for each network namespace: a name that the kernel gives to one process at a time and
//! takes back when that ends, however it ends.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio_util::sync::CancellationToken;

/// Abstract socket names belong to a network namespace, as iptables rules do.
pub(super) const NAME: &[u8] = b"windlass-proxy";
const RETRY: Duration = Duration::from_secs(1);

/// Held for as long as rules may be written.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code, reason = "dropping it gives the name back")] UnixListener);

fn take(name: &[u8]) -> io::Result<Lock> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?).map(Lock)
}

/// The process that holds the name, if it tells.
fn holder(name: &[u8]) -> Option<i32> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
    getsockopt(&stream, PeerCredentials).ok().map(|who| who.pid())
}

/// Waits until no other proxy writes rules here; `None` when the shutdown comes first.
pub(super) async fn acquire(name: &[u8], shutdown: &CancellationToken) -> Option<Lock> {
    let mut told = false;
    loop {
        match take(name) {
            Ok(lock) => return Some(lock),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut told, true) {
                    let process = holder(name).map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
                    tracing::warn!(
                        process,
                        "another windlass writes the service rules of this network namespace: waiting until it ends"
                    );
                }
            }
            Err(error) => {
                // Better two writers than none: both write the same rules.
                tracing::warn!(%error, "the lock of the service rules cannot be had: going on without");
                return None;
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time() {
        let name = b"windlass-proxy-test";
        let shutdown = CancellationToken::new();
        let first = acquire(name, &shutdown).await.unwrap();
        assert_eq!(holder(name), Some(std::process::id().cast_signed()));
        let waiting = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { acquire(name, &shutdown).await.is_some() }
        });
        tokio::time::sleep(RETRY * 2).await;
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.await.unwrap());
        // An end in between is no lock.
        let _held = acquire(name, &shutdown).await.unwrap();
        shutdown.cancel();
        assert!(acquire(name, &shutdown).await.is_none());
    }
}
