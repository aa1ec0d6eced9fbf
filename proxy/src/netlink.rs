//! Conversations with the kernel over netlink, in this thread's network namespace: requests, dumps and
//! attributes. What they mean is left to those who talk: [`apply::nftables`](crate::apply),
//! [`conntrack`](crate::conntrack), [`nfacct`](crate::nfacct), [`ipvs`](crate::ipvs), [`local`](crate::local).

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

use crate::model::Family;

// include/uapi/linux/netlink.h
const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// What is dumped changed meanwhile: entries may be missing.
const DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NESTED: u16 = 0x8000;
/// Of the netlink header; behind it stands the one of whoever is talked to, such as netfilter's of four bytes.
const HEAD: usize = 16;

/// Length of netfilter's own header: family, version, resource.
const NETFILTER_HEAD: usize = 4;

/// A family's number in messages (`AF_INET`, `AF_INET6`).
pub(crate) const fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// One message under construction.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    /// Length of the header behind netlink's own. Answers have the same.
    head: usize,
}

impl Request {
    /// A message of a subsystem of netfilter; `head` is netfilter's own header: family, version, resource.
    pub(crate) fn new(subsystem: u16, message: u16, flags: u16, head: [u8; 4]) -> Self {
        Self::raw(subsystem << 8 | message, flags, &head)
    }

    /// A message of any kind, such as the bounds of a batch; `head` is the header behind netlink's own.
    pub(crate) fn raw(kind: u16, flags: u16, head: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(head);
        Self { bytes, head: head.len() }
    }

    /// Appends an attribute.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        put(&mut self.bytes, kind, value);
        self
    }

    /// Appends an attribute that is a text with a zero at its end.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Attributes inside an attribute.
pub(crate) fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    parts.iter().for_each(|(kind, value)| put(&mut out, *kind, value));
    out
}

/// The number of an attribute that holds others.
pub(crate) const fn nest(kind: u16) -> u16 {
    kind | NESTED
}

/// Attributes one after the other; what is cut short ends them.
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

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
    /// The value of the first attribute of a kind.
    pub(crate) fn find(mut self, kind: u16) -> Option<&'a [u8]> {
        self.by_ref().find(|(k, _)| *k == kind).map(|(_, value)| value)
    }
}

/// An open conversation.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel is cut short")
}

impl Netlink {
    /// With netfilter: nf_tables, connection tracking, IP sets, counters.
    pub(crate) fn netfilter() -> io::Result<Self> {
        Self::bound(SockProtocol::NetlinkNetFilter, 0)
    }

    /// With the keeper of interfaces, addresses and routes.
    pub(crate) fn routing() -> io::Result<Self> {
        Self::bound(SockProtocol::NetlinkRoute, 0)
    }

    /// With the families that have a name instead of a number.
    pub(crate) fn generic() -> io::Result<Self> {
        Self::bound(SockProtocol::NetlinkGeneric, 0)
    }

    /// With netfilter; it also hears what is told to multicast groups, as a bit mask.
    pub(crate) fn listen(groups: u32) -> io::Result<Self> {
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

    /// Sends messages as one, and gives the range of their sequence numbers.
    fn send(&mut self, requests: &mut [Request]) -> io::Result<Sequences> {
        let mut bytes = Vec::new();
        let first = self.sequence.wrapping_add(1);
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend(request.finish(self.sequence));
        }
        sendto(self.socket.as_raw_fd(), &bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(Sequences { first, last: self.sequence })
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Sends messages as one, and returns the attributes of the first answer; an acknowledgement has none. What
    /// answers an earlier question, whose answer came too late, is passed over.
    pub(crate) fn ask(&mut self, mut requests: Vec<Request>) -> io::Result<Vec<u8>> {
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

    /// Sends messages that each ask for an acknowledgement; what became of each, in order.
    pub(crate) fn tell(&mut self, mut requests: Vec<Request>) -> io::Result<Vec<io::Result<()>>> {
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

    /// Asks for all there is; `each` gets the header behind netlink's own and the attributes of one answer.
    /// `Interrupted` when what was asked for changed meanwhile, so that some of it may be missing.
    pub(crate) fn dump(&mut self, mut request: Request, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        let flags = u16::from_ne_bytes([request.bytes[6], request.bytes[7]]) | DUMP;
        request.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        let head = request.head;
        let sent = self.send(std::slice::from_mut(&mut request))?;
        let mut buffer = vec![0; 64 * 1024];
        let mut torn = false;
        loop {
            let len = self.receive(&mut buffer)?;
            for message in Messages(&buffer[..len]).filter(|m| sent.contains(m.sequence)) {
                torn |= message.flags & DUMP_INTR != 0;
                if message.kind == NLMSG_DONE {
                    return if torn { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) };
                }
                match message.error() {
                    Some(result) => return result,
                    None => each(message.head(head), message.attributes(head)),
                }
            }
        }
    }

    /// Takes all that was heard, without waiting: number, family and attributes of each message. Whether all of it
    /// could be read: a full queue loses some.
    pub(crate) fn heard(&self, mut each: impl FnMut(u16, u8, &[u8])) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        let mut whole = true;
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC) {
                Ok(len) => {
                    whole &= len <= buffer.len();
                    for message in Messages(&buffer[..len.min(buffer.len())]) {
                        let family = message.bytes.get(HEAD).copied().unwrap_or_default();
                        each(message.kind, family, message.attributes(NETFILTER_HEAD));
                    }
                }
                Err(Errno::ENOBUFS) => whole = false,
                Err(Errno::EINTR) => {}
                Err(_) => return whole,
            }
        }
    }

    /// Throws away what else was answered.
    pub(crate) fn drain(&self) {
        self.heard(|_, _, _| {});
    }
}

/// The sequence numbers of messages that were sent as one; they wrap.
#[derive(Debug, Clone, Copy)]
struct Sequences {
    first: u32,
    last: u32,
}

impl Sequences {
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
    /// The outcome, when this is an acknowledgement or a refusal.
    fn error(&self) -> Option<io::Result<()>> {
        if self.kind != NLMSG_ERROR {
            return None;
        }
        let code = self.bytes.get(HEAD..HEAD + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
        Some(match code {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(short()),
        })
    }

    /// The header behind netlink's own.
    fn head(&self, len: usize) -> &'a [u8] {
        self.bytes.get(HEAD..HEAD + len).unwrap_or_default()
    }

    fn attributes(&self, head: usize) -> &'a [u8] {
        self.bytes.get(HEAD + head..).unwrap_or_default()
    }
}

struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let head: [u8; 4] = self.0.get(..4)?.try_into().ok()?;
        let len = usize::try_from(u32::from_ne_bytes(head)).ok()?;
        let bytes = self.0.get(..len).filter(|b| b.len() >= HEAD)?;
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

    /// An answer that came too late for its question is not taken for the answer to the next one.
    #[test]
    fn an_answer_belongs_to_its_question() {
        let mut netlink = Netlink::netfilter().unwrap();
        // NFT_MSG_GETGEN; nobody reads its answer.
        let question = || Request::new(10, 16, 0, [0; 4]);
        netlink.send(&mut [question()]).unwrap();
        // NFT_MSG_GETTABLE of a table that is not there.
        let missing = Request::new(10, 1, 0, [2, 0, 0, 0]).text(1, "no-such-table");
        let answer = netlink.ask(vec![missing]);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Attributes(&netlink.ask(vec![question()]).unwrap()).find(1).is_some());
    }

    #[test]
    fn sequence_numbers_wrap() {
        let sent = Sequences { first: u32::MAX, last: 1 };
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
