//! Connections into a pod's network, as its own processes see it: from its loopback interface.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::net::{TcpSocket, TcpStream};

use super::NetworkError;

/// A port that answers nothing is given up after so long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A network namespace, held open: it stays the same one whatever becomes of the process that it was found by.
#[derive(Debug, Clone)]
pub struct Namespace(Option<Arc<File>>);

/// The sockets for one connection, of each family that the namespace has.
type Sockets = [io::Result<TcpSocket>; 2];

impl Namespace {
    /// The machine's own, for pods in it.
    #[must_use]
    pub fn host() -> Self {
        Self(None)
    }

    /// That of a process. The number may have gone to another process, which `is_still` is asked about once the
    /// namespace is open.
    ///
    /// # Errors
    /// When there is no such process, or it is another one.
    pub fn of_process(pid: i32, is_still: impl FnOnce() -> bool) -> Result<Self, NetworkError> {
        let attempt = || format!("the network namespace of process {pid} could not be opened");
        let file = File::open(format!("/proc/{pid}/ns/net")).map_err(|e| NetworkError::new(attempt(), e))?;
        if is_still() {
            Ok(Self(Some(Arc::new(file))))
        } else {
            Err(NetworkError::new(attempt(), "the process has ended, and its number is another one's"))
        }
    }

    /// Connects to a port that something listens on in the namespace.
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

    /// Sockets made inside: a socket belongs to the namespace that it was made in, wherever it is used.
    async fn sockets(&self) -> io::Result<Sockets> {
        let Some(namespace) = self.0.clone() else { return Ok(sockets()) };
        let (done, waits) = tokio::sync::oneshot::channel();
        // A thread that has entered a namespace never comes back, so each ends with the sockets that it made.
        std::thread::Builder::new().name("port-forward".to_owned()).spawn(move || {
            let entered = nix::sched::setns(&*namespace, nix::sched::CloneFlags::CLONE_NEWNET);
            let _ = done.send(entered.map(|()| sockets()).map_err(io::Error::from));
        })?;
        waits.await.map_err(io::Error::other)?
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
            let stream = Namespace::host().dial(port).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap().port(), port);
            drop((listener, stream));
            let refused = Namespace::host().dial(port).await.unwrap_err().to_string();
            assert!(refused.contains("127.0.0.1") && refused.contains("[::1]"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_namespace_stays_what_it_was_when_its_process_has_ended() {
        // A process in a network namespace of its own, which nobody listens in.
        let mut sleeper = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        while std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap() == own {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let inside = Namespace::of_process(pid, || true).unwrap();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(inside.dial(port).await.is_err(), "the port of the machine is not reached");
        assert!(Namespace::host().dial(port).await.is_ok());
        let gone = Namespace::of_process(pid, || true).unwrap_err().to_string();
        assert!(gone.contains(&pid.to_string()), "{gone}");
    }

    #[test]
    fn a_number_that_is_another_process_s_is_refused() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(Namespace::of_process(pid, || true).is_ok());
        let refused = Namespace::of_process(pid, || false).unwrap_err().to_string();
        assert!(refused.contains("another one's"), "{refused}");
    }
}
