//! Connects to ports of a pod from inside its network namespace, so that loopback is the pod's own. For port-forward.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::net::{TcpSocket, TcpStream};

use super::{NetworkError, netns::NetworkNamespace};

/// Timeout of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Dials inside of one network namespace; without one, of the host's.
#[derive(Debug, Clone)]
pub struct PodDialer(Option<NetworkNamespace>);

/// One socket per address family.
type Sockets = [io::Result<TcpSocket>; 2];

impl PodDialer {
    /// For pods with `hostNetwork`.
    #[must_use]
    pub fn host() -> Self {
        Self(None)
    }

    /// For pods with a network of their own.
    #[must_use]
    pub fn inside(namespace: NetworkNamespace) -> Self {
        Self(Some(namespace))
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
        match &self.0 {
            Some(namespace) => namespace.run(sockets).await,
            None => Ok(sockets()),
        }
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
            let stream = PodDialer::host().dial(port).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap().port(), port);
            drop((listener, stream));
            let refused = PodDialer::host().dial(port).await.unwrap_err().to_string();
            assert!(refused.contains("127.0.0.1") && refused.contains("[::1]"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_namespace_stays_what_it_was_when_its_process_has_ended() {
        // A process in its own network namespace, where nothing listens.
        let mut sleeper = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
        let pid = sleeper.id();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        while std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap() == own {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let inside = PodDialer::inside(NetworkNamespace::of_process(pid));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(inside.dial(port).await.is_err(), "the port of the machine is not reached");
        assert!(PodDialer::host().dial(port).await.is_ok());
    }
}
