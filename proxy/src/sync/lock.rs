//! One proxy for each network namespace: a name that the kernel gives to one process at a time and
//! takes back when that ends, however it ends.

use std::{
    io,
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials},
};
use tokio_util::sync::CancellationToken;

/// Abstract socket names belong to a network namespace, as iptables rules do.
pub(crate) const NAME: &[u8] = b"windlass-proxy";
const RETRY: Duration = Duration::from_secs(1);
/// The holder is asked for again after so many tries.
const LOOKS: u32 = 30;
/// Tenths of a second in which a proxy ends.
const ENDING: u32 = 20;
/// A holder that does not tell who it is keeps us waiting for so many tries.
const PATIENCE: u32 = 5;

/// Held for as long as rules may be written.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "dropping it gives the name back")] UnixListener);

/// Who has the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// A process of root, as each proxy is.
    Root(i32),
    /// Any user may take the name, and only root may write rules.
    Other { user: u32, process: i32 },
    /// It does not listen, or its queue is full.
    Unknown,
}

fn take(name: &[u8]) -> io::Result<Lock> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?).map(Lock)
}

/// Asks who holds the name, without waiting.
fn holder(name: &[u8]) -> Holder {
    let ask = || -> Result<Holder, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(stream.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        let who = getsockopt(&stream, PeerCredentials)?;
        Ok(match who.uid() {
            0 => Holder::Root(who.pid()),
            user => Holder::Other { user, process: who.pid() },
        })
    };
    ask().unwrap_or(Holder::Unknown)
}

/// Takes the lock, with some patience for a proxy that is just ending; otherwise as [`try_take`]. Blocks.
pub(crate) fn take_soon(name: &[u8]) -> Result<Option<Lock>, i32> {
    const STEP: Duration = Duration::from_millis(100);
    for _ in 0..ENDING {
        match try_take(name) {
            Err(_) => std::thread::sleep(STEP),
            taken => return taken,
        }
    }
    try_take(name)
}

/// Takes the lock at once; `Err` names the process of root that has it. `None`: it cannot be had for another reason,
/// which must keep nobody from working.
fn try_take(name: &[u8]) -> Result<Option<Lock>, i32> {
    match take(name) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder(name) {
            Holder::Root(process) => Err(process),
            Holder::Other { .. } | Holder::Unknown => Ok(None),
        },
        Err(_) => Ok(None),
    }
}

/// Waits until no other proxy writes rules here; `None` when the shutdown comes first, and when whoever has the lock
/// cannot be a proxy.
pub(super) async fn acquire(name: &[u8], shutdown: &CancellationToken) -> Option<Lock> {
    let (mut known, mut tries) = (None, 0_u32);
    loop {
        match take(name) {
            Ok(lock) => return Some(lock),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if known.is_none() || tries.is_multiple_of(LOOKS) {
                    match holder(name) {
                        Holder::Root(process) if known.replace(process) != Some(process) => tracing::warn!(
                            process = process.to_string(),
                            "another windlass writes the service rules of this network namespace: waiting until it ends"
                        ),
                        Holder::Root(_) => {}
                        Holder::Other { user, process } => {
                            tracing::error!(
                                user,
                                process,
                                "the lock of the service rules is held by a process that is not root's and cannot write rules: going on without the lock; end that process"
                            );
                            return None;
                        }
                        Holder::Unknown if known.is_none() && tries >= PATIENCE => {
                            tracing::error!(
                                "the lock of the service rules is held by a process that does not tell who it is: going on without the lock"
                            );
                            return None;
                        }
                        Holder::Unknown => {}
                    }
                }
            }
            Err(error) => {
                // Better two writers than none: both write the same rules.
                tracing::warn!(%error, "the lock of the service rules cannot be had: going on without");
                return None;
            }
        }
        tries += 1;
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn one_at_a_time() {
        let name = b"windlass-proxy-test";
        let shutdown = CancellationToken::new();
        let first = acquire(name, &shutdown).await.unwrap();
        assert_eq!(holder(name), Holder::Root(std::process::id().cast_signed()));
        assert_eq!(try_take(name).unwrap_err(), std::process::id().cast_signed());
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

    /// Whoever is not root may take the name, but keeps no proxy from its work.
    #[tokio::test]
    async fn strangers_hold_up_nothing() {
        let script = "import socket,os;s=socket.socket(1);os.setuid(65534);s.bind('\\0windlass-proxy-stranger');s.listen();print('x',flush=True);input()";
        let mut stranger =
            Command::new("python3").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0];
        std::io::Read::read_exact(stranger.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let name = b"windlass-proxy-stranger";
        let process = stranger.id().cast_signed();
        assert_eq!(holder(name), Holder::Other { user: 65534, process });
        let shutdown = CancellationToken::new();
        let limit = tokio::time::timeout(Duration::from_secs(5), acquire(name, &shutdown));
        assert!(limit.await.expect("it does not wait").is_none());
        assert!(try_take(name).unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
