//! Listening sockets: which families an address means, and who closes one.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    task::Poll,
};

use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that wait to be accepted; Go's and the kernel's default.
const BACKLOG: u32 = 1024;

/// Where a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenAddress {
    /// All addresses of both families: as Go's `net.Listen` for `0.0.0.0` and `::`, on which clients of a node's IPv6
    /// address rely. Without IPv6, all addresses of IPv4.
    Wildcard(u16),
    /// At this address exactly.
    At(SocketAddr),
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        if address.ip().is_unspecified() { Self::Wildcard(address.port()) } else { Self::At(address) }
    }
}

impl ListenAddress {
    /// The address, for messages.
    #[must_use]
    pub const fn address(self) -> SocketAddr {
        match self {
            Self::Wildcard(port) => SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
            Self::At(address) => address,
        }
    }

    /// Listens. Must be called in a runtime.
    ///
    /// # Errors
    /// Why the kernel does not let us.
    pub fn bind(self) -> io::Result<TcpListener> {
        match self {
            Self::At(address @ SocketAddr::V4(_)) => listen(TcpSocket::new_v4()?, address),
            Self::At(address @ SocketAddr::V6(_)) => listen(v6_socket(true)?, address),
            Self::Wildcard(port) => match v6_socket(false) {
                Ok(socket) => match listen(socket, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
                    Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Self::v4_wildcard(port),
                    result => result,
                },
                // The kernel was started without IPv6.
                Err(_) => Self::v4_wildcard(port),
            },
        }
    }

    fn v4_wildcard(port: u16) -> io::Result<TcpListener> {
        listen(TcpSocket::new_v4()?, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
    }
}

/// A socket of IPv6, for it alone or for both families.
fn v6_socket(only: bool) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v6()?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &only)?;
    Ok(socket)
}

fn listen(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listener that its owner closes at once, whatever its server is doing: the port is free when [`Self::close`]
/// returns. Clones share it.
#[derive(Debug, Clone)]
pub struct Listener(Arc<Mutex<Option<TcpListener>>>);

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(Arc::new(Mutex::new(Some(listener))))
    }
}

impl Listener {
    /// Closes the socket; connections that were accepted stay.
    pub fn close(&self) {
        *self.0.lock() = None;
    }

    /// Where it listens; `None` once it is closed.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.lock().as_ref()?.local_addr().ok()
    }

    /// The next connection, and its client's address as it is known in its family; never any once it is closed.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, address) = std::future::poll_fn(|context| match &*self.0.lock() {
            Some(listener) => listener.poll_accept(context),
            None => Poll::Pending,
        })
        .await?;
        Ok((stream, SocketAddr::new(address.ip().to_canonical(), address.port())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wildcard_is_of_both_families_and_an_address_of_one() {
        for unspecified in ["0.0.0.0:0", "[::]:0"] {
            let address: SocketAddr = unspecified.parse().unwrap();
            let listener = Listener::from(ListenAddress::from(address).bind().unwrap());
            let port = listener.local_addr().unwrap().port();
            for client in ["127.0.0.1", "::1"] {
                let client: std::net::IpAddr = client.parse().unwrap();
                let _stream = TcpStream::connect((client, port)).await.unwrap();
                let (_, from) = listener.accept().await.unwrap();
                assert_eq!(from.ip(), client, "not as an address of the other family");
            }
        }
        let four = ListenAddress::from("127.0.0.1:0".parse::<SocketAddr>().unwrap()).bind().unwrap();
        let port = four.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_err());
        // Each family has a port of its own.
        let _six = ListenAddress::At(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)).bind().unwrap();
    }

    #[tokio::test]
    async fn a_port_is_free_when_its_owner_has_closed_it() {
        let listener = Listener::from(ListenAddress::Wildcard(0).bind().unwrap());
        let port = listener.local_addr().unwrap().port();
        let server = listener.clone();
        let serving = tokio::spawn(async move { server.accept().await.map(drop) });
        tokio::task::yield_now().await;
        assert!(ListenAddress::Wildcard(port).bind().is_err());
        listener.close();
        assert!(ListenAddress::Wildcard(port).bind().is_ok());
        serving.abort();
    }
}
