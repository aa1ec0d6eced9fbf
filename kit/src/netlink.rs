//! Netlink sockets in this thread's network namespace: requests, dumps, notifications and attributes. The protocols
//! above it are those of [`conntrack`](crate::conntrack), [`local_addresses`](crate::local_addresses), and of the
//! proxy: nf_tables, nfacct, IPVS.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, setsockopt,
            socket, sockopt,
        },
        time::TimeVal,
    },
};

use crate::net::Family;

// include/uapi/linux/netlink.h
const NLM_F_REQUEST: u16 = 1;
/// The message requests an acknowledgement.
pub const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// The dump is inconsistent because of a concurrent change: entries may be missing.
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
/// Length of `struct nlmsghdr`; the header of the protocol follows, such as `struct nfgenmsg`.
const NLMSG_HDRLEN: usize = 16;

/// Length of `struct nfgenmsg`: family, version, resource id.
const NFGENMSG_LEN: usize = 4;

/// `AF_INET` or `AF_INET6`.
#[must_use]
pub const fn address_family(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// One message under construction.
#[derive(Debug, Clone)]
pub struct Request {
    bytes: Vec<u8>,
    /// Length of the protocol's header. Replies have the same.
    head: usize,
}

impl Request {
    /// A message to a netfilter subsystem; `head` is its `struct nfgenmsg`.
    #[must_use]
    pub fn new(subsystem: u16, message: u16, flags: u16, head: [u8; 4]) -> Self {
        Self::raw(subsystem << 8 | message, flags, &head)
    }

    /// A message of any type, such as the begin of a batch; `head` is the protocol's header.
    #[must_use]
    pub fn raw(kind: u16, flags: u16, head: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(head);
        Self { bytes, head: head.len() }
    }

    /// Appends an attribute.
    #[must_use]
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        put_attribute(&mut self.bytes, kind, value);
        self
    }

    /// Appends an attribute that is a NUL-terminated string.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }
}

fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The payload of a nested attribute.
#[must_use]
pub fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    parts.iter().for_each(|(kind, value)| put_attribute(&mut out, *kind, value));
    out
}

/// The type of a nested attribute.
#[must_use]
pub const fn nest(kind: u16) -> u16 {
    kind | NLA_F_NESTED
}

/// Iterates over attributes; a truncated one ends the iteration.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(
    /// Their bytes.
    pub &'a [u8],
);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let [a, b, c, d, ..] = *self.0 else { return None };
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let kind = u16::from_ne_bytes([c, d]) & 0x3fff;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

impl<'a> Attributes<'a> {
    /// The payload of the first attribute of a type.
    #[must_use]
    pub fn find(mut self, kind: u16) -> Option<&'a [u8]> {
        self.by_ref().find(|(k, _)| *k == kind).map(|(_, value)| value)
    }

    /// A 32-bit attribute in network byte order.
    #[must_use]
    pub fn be32(self, kind: u16) -> Option<u32> {
        self.find(kind)?.get(..4)?.try_into().ok().map(u32::from_be_bytes)
    }
}

/// An open netlink socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a netlink reply of the kernel is truncated")
}

impl Netlink {
    /// To netfilter: nf_tables, conntrack, IP sets, nfacct.
    ///
    /// # Errors
    /// Without permission.
    pub fn netfilter() -> io::Result<Self> {
        Self::bound(SockProtocol::NetlinkNetFilter, 0)
    }

    /// To rtnetlink: interfaces, addresses and routes.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn routing() -> io::Result<Self> {
        Self::bound(SockProtocol::NetlinkRoute, 0)
    }

    /// To generic netlink, whose families have names.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn generic() -> io::Result<Self> {
        Self::bound(SockProtocol::NetlinkGeneric, 0)
    }

    /// To netfilter, subscribed to multicast groups, given as a bit mask; does not block.
    ///
    /// # Errors
    /// Without permission.
    pub fn subscribe(groups: u32) -> io::Result<Self> {
        let this = Self::bound(SockProtocol::NetlinkNetFilter, groups)?;
        nix::fcntl::fcntl(&this.socket, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        Ok(this)
    }

    fn bound(protocol: SockProtocol, groups: u32) -> io::Result<Self> {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(2, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends messages in one datagram, and returns the range of their sequence numbers.
    fn send(&mut self, requests: &mut [Request]) -> io::Result<SequenceRange> {
        let mut bytes = Vec::new();
        let first = self.sequence.wrapping_add(1);
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend(request.finish(self.sequence));
        }
        sendto(self.socket.as_raw_fd(), &bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(SequenceRange { first, last: self.sequence })
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Sends messages in one datagram, and returns the attributes of the first reply; an acknowledgement has none.
    /// Late replies to earlier requests are skipped.
    ///
    /// # Errors
    /// What the kernel answers, or that it does not within two seconds.
    pub fn query(&mut self, mut requests: Vec<Request>) -> io::Result<Vec<u8>> {
        let sent = self.send(&mut requests)?;
        let head = requests.first().map_or(0, |request| request.head);
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let len = self.receive(&mut buffer)?;
            if let Some(message) = Messages(&buffer[..len]).find(|m| sent.contains(m.sequence)) {
                return message
                    .error()
                    .map_or_else(|| Ok(message.attributes(head).to_vec()), |e| e.map(|()| Vec::new()));
            }
        }
    }

    /// Sends messages that each request an acknowledgement; returns the result of each, in order.
    ///
    /// # Errors
    /// When they cannot be sent, or the kernel does not answer within two seconds.
    pub fn execute_each(&mut self, mut requests: Vec<Request>) -> io::Result<Vec<io::Result<()>>> {
        let sent = self.send(&mut requests)?;
        let mut out = Vec::with_capacity(requests.len());
        let mut buffer = vec![0; 64 * 1024];
        while out.len() < requests.len() {
            let len = self.receive(&mut buffer)?;
            let answers = Messages(&buffer[..len]).filter(|m| sent.contains(m.sequence));
            out.extend(answers.filter_map(|m| m.error()));
        }
        Ok(out)
    }

    /// Dumps a table of the kernel; `each` gets the protocol's header and the attributes of one entry. `Interrupted`
    /// when the table changed meanwhile, so that entries may be missing.
    ///
    /// # Errors
    /// What the kernel answers, or that it does not within two seconds.
    pub fn dump(&mut self, mut request: Request, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        let flags = u16::from_ne_bytes([request.bytes[6], request.bytes[7]]) | NLM_F_DUMP;
        request.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        let head = request.head;
        let sent = self.send(std::slice::from_mut(&mut request))?;
        let mut buffer = vec![0; 64 * 1024];
        let mut inconsistent = false;
        loop {
            let len = self.receive(&mut buffer)?;
            for message in Messages(&buffer[..len]).filter(|m| sent.contains(m.sequence)) {
                inconsistent |= message.flags & NLM_F_DUMP_INTR != 0;
                if message.kind == NLMSG_DONE {
                    return if inconsistent { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) };
                }
                match message.error() {
                    Some(result) => return result,
                    None => each(message.head(head), message.attributes(head)),
                }
            }
        }
    }

    /// Reads all queued notifications without waiting: type, family and attributes of each. Returns whether it is all
    /// of them: a full queue loses some.
    pub fn read_notifications(&self, mut each: impl FnMut(u16, u8, &[u8])) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        let mut complete = true;
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC) {
                Ok(len) => {
                    complete &= len <= buffer.len();
                    for message in Messages(&buffer[..len.min(buffer.len())]) {
                        let family = message.bytes.get(NLMSG_HDRLEN).copied().unwrap_or_default();
                        each(message.kind, family, message.attributes(NFGENMSG_LEN));
                    }
                }
                Err(Errno::ENOBUFS) => complete = false,
                Err(Errno::EINTR) => {}
                Err(_) => return complete,
            }
        }
    }

    /// Discards all queued replies.
    pub fn discard_replies(&self) {
        self.read_notifications(|_, _, _| {});
    }
}

/// The sequence numbers of the messages of one datagram; they wrap.
#[derive(Debug, Clone, Copy)]
struct SequenceRange {
    first: u32,
    last: u32,
}

impl SequenceRange {
    const fn contains(self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first) <= self.last.wrapping_sub(self.first)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::os::fd::AsRawFd for Netlink {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// The result, when this is an acknowledgement or an error.
    fn error(&self) -> Option<io::Result<()>> {
        if self.kind != NLMSG_ERROR {
            return None;
        }
        let code =
            self.bytes.get(NLMSG_HDRLEN..NLMSG_HDRLEN + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
        Some(match code {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(truncated()),
        })
    }

    /// The protocol's header.
    fn head(&self, len: usize) -> &'a [u8] {
        self.bytes.get(NLMSG_HDRLEN..NLMSG_HDRLEN + len).unwrap_or_default()
    }

    fn attributes(&self, head: usize) -> &'a [u8] {
        self.bytes.get(NLMSG_HDRLEN + head..).unwrap_or_default()
    }
}

struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let head: [u8; 4] = self.0.get(..4)?.try_into().ok()?;
        let len = usize::try_from(u32::from_ne_bytes(head)).ok()?;
        let bytes = self.0.get(..len).filter(|b| b.len() >= NLMSG_HDRLEN)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let sequence = u32::from_ne_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        Some(Message { kind: half(4), flags: half(6), sequence, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_read_back() {
        let bytes = nested(&[(1, b"abc"), (nest(2), &nested(&[(7, &[1, 2, 3, 4])]))]);
        assert_eq!(Attributes(&bytes).find(1), Some(&b"abc"[..]));
        let inner = Attributes(&bytes).find(2).unwrap();
        assert_eq!(Attributes(inner).find(7), Some(&[1, 2, 3, 4][..]));
        assert_eq!(Attributes(&bytes).find(3), None);
        // Cut anywhere, they end and nothing breaks.
        for end in 0..bytes.len() {
            assert!(Attributes(&bytes[..end]).count() <= 2);
        }
    }

    /// A late reply is not taken for the reply to the next request.
    #[test]
    fn a_late_reply_is_skipped() {
        let mut netlink = Netlink::netfilter().unwrap();
        // NFT_MSG_GETGEN; its answer is not read.
        let question = || Request::new(10, 16, 0, [0; 4]);
        netlink.send(&mut [question()]).unwrap();
        // NFT_MSG_GETTABLE of a table that does not exist.
        let missing = Request::new(10, 1, 0, [2, 0, 0, 0]).text(1, "no-such-table");
        let answer = netlink.query(vec![missing]);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Attributes(&netlink.query(vec![question()]).unwrap()).find(1).is_some());
    }

    #[test]
    fn sequence_numbers_wrap() {
        let sent = SequenceRange { first: u32::MAX, last: 1 };
        assert!([u32::MAX, 0, 1].iter().all(|s| sent.contains(*s)));
        assert!(!sent.contains(2) && !sent.contains(u32::MAX - 1));
    }

    #[test]
    fn messages_with_impossible_lengths_end_the_list() {
        assert_eq!(Messages(&[0; 64]).count(), 0);
        assert_eq!(Messages(&[255; 64]).count(), 0);
        assert_eq!(Messages(&[16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]).count(), 1);
    }
}
