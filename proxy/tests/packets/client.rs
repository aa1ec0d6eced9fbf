//! Sends from a namespace, with any source address.

use std::{
    io::{self, Read as _},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use nix::sys::{
    socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt},
    time::TimeVal,
};

use crate::{netns::enter, sctp};

static SCTP_PORT: AtomicU16 = AtomicU16::new(32768);

pub(crate) struct Client {
    namespace: String,
}

impl Client {
    pub(crate) fn new(namespace: String) -> Self {
        Self { namespace }
    }

    /// Sends a request, and returns the text of the response.
    pub(crate) fn ask(&self, protocol: &str, source: IpAddr, to: SocketAddr, limit: Duration) -> io::Result<String> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&self.namespace);
                match protocol {
                    "udp" => udp(source, to, limit),
                    "sctp" => sctp::ask(source, to, SCTP_PORT.fetch_add(1, Ordering::Relaxed), limit),
                    _ => tcp(source, to, limit),
                }
            });
            thread.join().expect("the thread ends")
        })
    }
}

fn tcp(source: IpAddr, to: SocketAddr, limit: Duration) -> io::Result<String> {
    let family = if source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let wait = TimeVal::new(limit.as_secs().cast_signed(), limit.subsec_micros().into());
    // Both apply to the handshake, too.
    setsockopt(&socket, sockopt::SendTimeout, &wait)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &wait)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    let mut text = String::new();
    TcpStream::from(socket).read_to_string(&mut text)?;
    Ok(text)
}

fn udp(source: IpAddr, to: SocketAddr, limit: Duration) -> io::Result<String> {
    let socket = UdpSocket::bind((source, 0))?;
    socket.set_read_timeout(Some(limit))?;
    socket.connect(to)?;
    socket.send(b"?")?;
    let mut buffer = [0; 200];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
