//! The lock that admits one proxy for each network namespace: an abstract Unix socket name, which the kernel grants to
//! a single process and frees when that process ends.

use std::{
    fs, io,
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::fs::MetadataExt as _,
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
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The holder is queried again after this number of attempts.
const HOLDER_QUERY_ATTEMPTS: u32 = 30;
/// Tenths of a second that a proxy needs to end.
const MAX_WAIT_STEPS: u32 = 20;
/// A holder whose credentials are unknown is waited for this number of attempts.
const MAX_UNKNOWN_HOLDER_ATTEMPTS: u32 = 5;

/// Held for as long as rules may be written.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "dropping it gives the name back")] UnixListener);

/// The process that holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// A process of root that may write rules, as every proxy is; 0 for one that we cannot see.
    Root(i32),
    /// A process of another user, or without the capability, such as that of a container in the host's network: it can
    /// bind the name and cannot write rules.
    Other { user: u32, process: i32 },
    /// The socket does not listen.
    Unknown,
}

impl Holder {
    fn of(user: u32, process: i32) -> Self {
        if user == 0 && may_write_rules(process) != Some(false) {
            Self::Root(process)
        } else {
            Self::Other { user, process }
        }
    }
}

/// `CAP_NET_ADMIN` of include/uapi/linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;

/// The flags of a listening socket in `/proc/net/unix`.
const LISTENS: &str = "00010000";

/// Whether a process has the capability that rules need; `None` if it cannot be seen.
fn may_write_rules(process: i32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let bits = u64::from_str_radix(effective.trim(), 16).ok()?;
    Some(bits & (1 << CAP_NET_ADMIN) != 0)
}

/// The process that has the socket of an abstract name open, without a connection, for which its queue may have no
/// place: anybody can fill it.
fn opener(name: &[u8]) -> Option<Holder> {
    let name = format!("@{}", String::from_utf8_lossy(name));
    let sockets = fs::read_to_string("/proc/thread-self/net/unix").ok()?;
    let inode = sockets.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        // Connections that wait to be accepted have the name, too.
        (columns.get(7) == Some(&name.as_str()) && columns.get(3) == Some(&LISTENS))
            .then(|| columns.get(6).map(|inode| (*inode).to_owned()))?
    })?;
    let link = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|id| id.parse::<i32>().ok()) else { continue };
        let mut open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        if open.any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link.as_str())) {
            let user = process.metadata().map_or(0, |of| of.uid());
            return Some(Holder::of(user, id));
        }
    }
    // The socket exists, but no visible process has it open: the holder is in another PID namespace.
    Some(Holder::Root(0))
}

fn bind(name: &[u8]) -> io::Result<Lock> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?).map(Lock)
}

/// Queries the credentials of the holder (`SO_PEERCRED`), without waiting.
fn holder(name: &[u8]) -> Holder {
    let query = || -> Result<Holder, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(stream.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        let who = getsockopt(&stream, PeerCredentials)?;
        Ok(Holder::of(who.uid(), who.pid()))
    };
    match query() {
        Ok(holder) => holder,
        Err(Errno::EAGAIN) => opener(name).unwrap_or(Holder::Unknown),
        Err(_) => Holder::Unknown,
    }
}

/// Acquires the lock, and waits up to 2 s for a proxy that is just ending; otherwise as [`try_acquire`]. Blocks.
pub(crate) fn acquire_blocking(name: &[u8]) -> Result<Option<Lock>, i32> {
    const STEP: Duration = Duration::from_millis(100);
    for _ in 0..MAX_WAIT_STEPS {
        match try_acquire(name) {
            Err(_) => std::thread::sleep(STEP),
            taken => return taken,
        }
    }
    try_acquire(name)
}

/// Tries to acquire the lock; `Err` is the id of the root process that holds it. `None`: it is not available for
/// another reason, which does not prevent the caller from proceeding.
fn try_acquire(name: &[u8]) -> Result<Option<Lock>, i32> {
    match bind(name) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder(name) {
            Holder::Root(process) => Err(process),
            Holder::Other { .. } | Holder::Unknown => Ok(None),
        },
        Err(_) => Ok(None),
    }
}

/// Waits until no other proxy writes rules in this network namespace; `None` when the shutdown comes first, and when
/// the holder cannot be a proxy.
pub(super) async fn acquire(name: &[u8], shutdown: &CancellationToken) -> Option<Lock> {
    let (mut known, mut attempts) = (None, 0_u32);
    loop {
        match bind(name) {
            Ok(lock) => return Some(lock),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if known.is_none() || attempts.is_multiple_of(HOLDER_QUERY_ATTEMPTS) {
                    match holder(name) {
                        Holder::Root(process) if known.replace(process) != Some(process) => tracing::warn!(
                            process = process.to_string(),
                            "another windlass writes the service rules of this network namespace; waiting until it ends"
                        ),
                        Holder::Root(_) => {}
                        Holder::Other { user, process } => {
                            tracing::error!(
                                user,
                                process,
                                "the lock of the service rules is held by a process that cannot write rules, of another user or without CAP_NET_ADMIN; proceeding without the lock, stop that process"
                            );
                            return None;
                        }
                        Holder::Unknown if known.is_none() && attempts >= MAX_UNKNOWN_HOLDER_ATTEMPTS => {
                            tracing::error!(
                                "the lock of the service rules is held by an unknown process; proceeding without the lock"
                            );
                            return None;
                        }
                        Holder::Unknown => {}
                    }
                }
            }
            Err(error) => {
                // Two writers are better than none: both write the same rules.
                tracing::warn!(%error, "failed to acquire the lock of the service rules; proceeding without it");
                return None;
            }
        }
        attempts += 1;
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
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
        assert_eq!(try_acquire(name).unwrap_err(), std::process::id().cast_signed());
        let waiting = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { acquire(name, &shutdown).await.is_some() }
        });
        tokio::time::sleep(RETRY_INTERVAL * 2).await;
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.await.unwrap());
        // An end in between is no lock.
        let _held = acquire(name, &shutdown).await.unwrap();
        shutdown.cancel();
        assert!(acquire(name, &shutdown).await.is_none());
    }

    /// A process that listens at `name` after it has become user `user`, with a queue of one.
    fn listening(name: &str, user: u32, wrapper: &[&str]) -> std::process::Child {
        let script = format!(
            "import socket,os;s=socket.socket(1);os.setuid({user});s.bind('\\0{name}');s.listen(0);print('x',flush=True);input()"
        );
        let words: Vec<&str> = wrapper.iter().copied().chain(["python3", "-c", &script]).collect();
        let mut command = Command::new(words[0]);
        let mut other = command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0];
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut ready).unwrap();
        other
    }

    fn connection(name: &[u8]) -> Result<std::os::fd::OwnedFd, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(stream.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        Ok(stream)
    }

    /// A container in the host's network may run as root, and may not write rules.
    #[test]
    fn root_without_the_capability_is_no_proxy() {
        let name = "windlass-proxy-no-capability";
        let mut other = listening(name, 0, &["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
        assert_eq!(holder(name.as_bytes()), Holder::Other { user: 0, process: other.id().cast_signed() });
        assert!(try_acquire(name.as_bytes()).unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// Any process can fill the queue of the socket; the lock holds anyway.
    #[test]
    fn a_full_queue_does_not_free_the_lock() {
        let name = "windlass-proxy-full";
        let mut other = listening(name, 0, &[]);
        let full: Vec<_> = (0..10).map_while(|_| connection(name.as_bytes()).ok()).collect();
        assert!(full.len() < 10);
        assert_eq!(holder(name.as_bytes()), Holder::Root(other.id().cast_signed()));
        assert_eq!(try_acquire(name.as_bytes()).unwrap_err(), other.id().cast_signed());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// A process of another user may bind the name, but does not prevent a proxy from working.
    #[tokio::test]
    async fn a_holder_other_than_root_does_not_delay() {
        let mut other = listening("windlass-proxy-other-user", 65534, &[]);
        let name = b"windlass-proxy-other-user";
        let process = other.id().cast_signed();
        assert_eq!(holder(name), Holder::Other { user: 65534, process });
        let shutdown = CancellationToken::new();
        let limit = tokio::time::timeout(Duration::from_secs(5), acquire(name, &shutdown));
        assert!(limit.await.expect("it does not wait").is_none());
        assert!(try_acquire(name).unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
