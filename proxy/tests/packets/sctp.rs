//! The first two packets of an SCTP association over raw sockets: netfilter translates them without SCTP support in
//! the kernel. The answer's text travels in a parameter of the INIT ACK.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, recvfrom, send,
        sendto, setsockopt, socket, sockopt,
    },
    time::TimeVal,
};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
/// The parameter that contains our text: of a type that receivers must skip when they do not know it.
const TEXT: u16 = 0x8001;
/// Common header, chunk header and the fixed part of INIT.
const FIXED: usize = 12 + 4 + 16;

/// RFC 3309's checksum.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

struct Packet {
    from: u16,
    to: u16,
    /// The other side's tag, zero in an INIT.
    verification: u32,
    chunk: u8,
    tag: u32,
    text: String,
}

impl Packet {
    fn encode(&self) -> Vec<u8> {
        let mut parameter = Vec::new();
        if !self.text.is_empty() {
            parameter.extend(TEXT.to_be_bytes());
            parameter.extend(u16::try_from(4 + self.text.len()).unwrap().to_be_bytes());
            parameter.extend(self.text.as_bytes());
        }
        let length = u16::try_from(20 + parameter.len()).unwrap();
        parameter.resize(parameter.len().next_multiple_of(4), 0);
        let mut out = Vec::new();
        out.extend(self.from.to_be_bytes());
        out.extend(self.to.to_be_bytes());
        out.extend(self.verification.to_be_bytes());
        out.extend([0; 4]);
        out.extend([self.chunk, 0]);
        out.extend(length.to_be_bytes());
        out.extend(self.tag.to_be_bytes());
        out.extend(65536_u32.to_be_bytes());
        out.extend([0, 1, 0, 1]);
        out.extend(1_u32.to_be_bytes());
        out.extend(parameter);
        let sum = crc32c(&out).to_le_bytes();
        out[8..12].copy_from_slice(&sum);
        out
    }

    /// `None` for other packets, and for a wrong checksum.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let mut plain = bytes.to_vec();
        plain.get_mut(8..12)?.fill(0);
        if bytes.len() < FIXED || crc32c(&plain).to_le_bytes() != bytes[8..12] {
            return None;
        }
        let text = match short(FIXED) {
            Some(TEXT) => {
                String::from_utf8(bytes.get(FIXED + 4..FIXED + usize::from(short(FIXED + 2)?))?.to_vec()).ok()?
            }
            _ => String::new(),
        };
        Some(Self { from: short(0)?, to: short(2)?, verification: long(4)?, chunk: bytes[12], tag: long(16)?, text })
    }
}

fn open(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(ip, 0)))?;
    Ok(socket)
}

/// Waits for a packet; IPv4's raw sockets give the IP header too.
fn receive(socket: &OwnedFd, family: IpAddr) -> io::Result<Option<(Packet, IpAddr)>> {
    let mut buffer = [0; 2048];
    let (length, from) = recvfrom::<SockaddrStorage>(socket.as_raw_fd(), &mut buffer)?;
    let header = if family.is_ipv4() { usize::from(buffer[0] & 15) * 4 } else { 0 };
    let four = from.as_ref().and_then(|f| f.as_sockaddr_in()).map(|a| IpAddr::V4(a.ip()));
    let source = four.or_else(|| from.as_ref().and_then(|f| f.as_sockaddr_in6()).map(|a| IpAddr::V6(a.ip())));
    Ok(Packet::decode(&buffer[header..length]).zip(source))
}

/// Answers each INIT with an INIT ACK that contains its own address and the source. Runs in the server's namespace.
pub(crate) fn serve(ip: IpAddr, ready: impl FnOnce()) {
    let socket = open(ip).expect("root may open raw sockets");
    ready();
    loop {
        let Ok(Some((init, source))) = receive(&socket, ip) else { continue };
        if init.chunk != INIT {
            continue;
        }
        let text = format!("{} {source}", SocketAddr::new(ip, init.to));
        let answer =
            Packet { from: init.to, to: init.from, verification: init.tag, chunk: INIT_ACK, tag: 0x5e1f, text };
        let to = SockaddrStorage::from(SocketAddr::new(source, 0));
        let _ = sendto(socket.as_raw_fd(), &answer.encode(), &to, MsgFlags::empty());
    }
}

/// Sends an INIT and waits for the answer's text. Runs in the client's namespace.
pub(crate) fn ask(source: IpAddr, to: SocketAddr, port: u16, limit: Duration) -> io::Result<String> {
    let socket = open(source)?;
    // Only connected sockets get ICMP errors.
    connect(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(to.ip(), 0)))?;
    let wait = TimeVal::new(limit.as_secs().cast_signed(), limit.subsec_micros().into());
    setsockopt(&socket, sockopt::ReceiveTimeout, &wait)?;
    let tag = 0x1000_0000 + u32::from(port);
    let init = Packet { from: port, to: to.port(), verification: 0, chunk: INIT, tag, text: String::new() };
    send(socket.as_raw_fd(), &init.encode(), MsgFlags::empty())?;
    let start = Instant::now();
    while start.elapsed() < limit {
        match receive(&socket, source)? {
            Some((answer, _)) if answer.chunk == INIT_ACK && answer.to == port && answer.verification == tag => {
                assert_eq!(answer.from, to.port(), "the answer comes from where it was asked");
                return Ok(answer.text);
            }
            _ => {}
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
