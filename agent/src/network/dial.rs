//! Connections into a pod's network, as its own processes see it: from its loopback interface.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream},
    time::Duration,
};

use tokio::net::TcpStream;

use super::NetworkError;

/// A port that answers nothing is given up after so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a port that something listens on in the network of process `pid`, or of the machine.
///
/// # Errors
/// When nothing listens there, on either family.
pub async fn dial(pid: Option<i32>, port: u16) -> Result<TcpStream, NetworkError> {
    let failed = |why: &dyn std::fmt::Display| {
        NetworkError::new(format!("failed to connect to localhost:{port} inside the pod's network namespace"), why)
    };
    let namespace = pid.map(|pid| File::open(format!("/proc/{pid}/ns/net"))).transpose().map_err(|e| failed(&e))?;
    let (done, waits) = tokio::sync::oneshot::channel();
    // A thread that has entered a namespace never comes back, so each ends with its one connection.
    std::thread::Builder::new()
        .name("port-forward".to_owned())
        .spawn(move || {
            let _ = done.send(connect(namespace, port));
        })
        .map_err(|e| failed(&e))?;
    let stream = waits.await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
    TcpStream::from_std(stream).map_err(|e| failed(&e))
}

fn connect(namespace: Option<File>, port: u16) -> Result<StdStream, String> {
    if let Some(namespace) = namespace {
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).map_err(|e| format!("entering it: {e}"))?;
    }
    let mut refused = Vec::new();
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let address = SocketAddr::new(address, port);
        match StdStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return stream.set_nonblocking(true).map(|()| stream).map_err(|e| e.to_string());
            }
            Err(error) => refused.push(format!("{address}: {error}")),
        }
    }
    Err(refused.join(", "))
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
            let stream = dial(None, port).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap().port(), port);
            drop((listener, stream));
            let refused = dial(None, port).await.unwrap_err().to_string();
            assert!(refused.contains("127.0.0.1") && refused.contains("[::1]"), "{refused}");
        }
    }
}
