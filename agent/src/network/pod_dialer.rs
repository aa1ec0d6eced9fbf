//! Connects to ports of a pod from inside its network namespace, so that loopback is the pod's own. For port-forward.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::net::{TcpSocket, TcpStream};

use super::NetworkError;

/// Timeout of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A network namespace by an open descriptor: it stays the same whatever becomes of the process it was found by. `None`
/// is the host's.
#[derive(Debug, Clone)]
pub struct NetworkNamespace(Option<Arc<File>>);

/// One socket per address family.
type Sockets = [io::Result<TcpSocket>; 2];

impl NetworkNamespace {
    /// The host's, for pods with `hostNetwork`.
    #[must_use]
    pub fn host() -> Self {
        Self(None)
    }

    /// The namespace of a process. Process ids are reused, so `is_still` checks the identity once the namespace is
    /// open.
    ///
    /// # Errors
    /// When there is no such process, or the id belongs to another.
    pub fn of_process(pid: i32, is_still: impl FnOnce() -> bool) -> Result<Self, NetworkError> {
        let attempt = || format!("the network namespace of process {pid} could not be opened");
        let file = File::open(format!("/proc/{pid}/ns/net")).map_err(|e| NetworkError::new(attempt(), e))?;
        if is_still() {
            Ok(Self(Some(Arc::new(file))))
        } else {
            Err(NetworkError::new(attempt(), "the process has exited, and its id is another one's"))
        }
    }

    /// Connects to a port on the loopback of the namespace.
    ///
    /// # Errors
    /// When nothing listens there, on either family.
    pub async fn dial(&self, port: u16) -> Result<TcpStream, NetworkError> {
        let failed = |why: &dyn std::fmt::Display| {
            NetworkError::new(format!("failed to connect to localhost:{port} inside the pod's network namespace"), why)
        };
        let sockets = self.sockets().await.map_err(|e| failed(&e))?;
        let mut refused = Vec::new();
        for (ip, socket) in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].into_iter().zip(sockets)
        {
            let address = SocketAddr::new(ip, port);
            let connecting = async { socket?.connect(address).await };
            match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => refused.push(format!("{address}: {error}")),
                Err(_) => refused.push(format!("{address}: no answer")),
            }
        }
        Err(failed(&refused.join(", ")))
    }

    /// Creates sockets inside: a socket stays in the namespace where it was created, whichever thread uses it.
    async fn sockets(&self) -> io::Result<Sockets> {
        let Some(namespace) = self.0.clone() else { return Ok(sockets()) };
        let (done, received) = tokio::sync::oneshot::channel();
        // A thread cannot reliably leave a namespace again, so a fresh one is used and ends.
        std::thread::Builder::new().name("port-forward".to_owned()).spawn(move || {
            let entered = nix::sched::setns(&*namespace, nix::sched::CloneFlags::CLONE_NEWNET);
            let _ = done.send(entered.map(|()| sockets()).map_err(io::Error::from));
        })?;
        received.await.map_err(io::Error::other)?
    }
}

fn sockets() -> Sockets {
    [TcpSocket::new_v4(), TcpSocket::new_v6()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_families_are_tried() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has nothing to show here.
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let stream = NetworkNamespace::host().dial(port).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap().port(), port);
            drop((listener, stream));
            let refused = NetworkNamespace::host().dial(port).await.unwrap_err().to_string();
            assert!(refused.contains("127.0.0.1") && refused.contains("[::1]"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_namespace_stays_what_it_was_when_its_process_has_ended() {
        // A process in its own network namespace, where nothing listens.
        let mut sleeper = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        while std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap() == own {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let inside = NetworkNamespace::of_process(pid, || true).unwrap();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(inside.dial(port).await.is_err(), "the port of the machine is not reached");
        assert!(NetworkNamespace::host().dial(port).await.is_ok());
        let error = NetworkNamespace::of_process(pid, || true).unwrap_err().to_string();
        assert!(error.contains(&pid.to_string()), "{error}");
    }

    #[test]
    fn a_number_that_is_another_process_s_is_refused() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(NetworkNamespace::of_process(pid, || true).is_ok());
        let refused = NetworkNamespace::of_process(pid, || false).unwrap_err().to_string();
        assert!(refused.contains("another one's"), "{refused}");
    }
}
