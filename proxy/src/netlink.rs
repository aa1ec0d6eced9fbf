//! Conversations with netfilter over netlink, in this thread's network namespace: requests, dumps and
//! attributes. What they mean is left to those who talk: [`apply::nftables`](crate::apply),
//! [`conntrack`](crate::conntrack), [`nfacct`](crate::nfacct).

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
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NESTED: u16 = 0x8000;
/// Of the netlink header and the four bytes of netfilter's own.
const HEAD: usize = 20;

/// A family's number in messages (`AF_INET`, `AF_INET6`).
pub(crate) const fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// One message under construction.
#[derive(Debug, Clone)]
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// A message of a subsystem; `head` is netfilter's own header: family, version, resource.
    pub(crate) fn new(subsystem: u16, message: u16, flags: u16, head: [u8; 4]) -> Self {
        Self::raw(subsystem << 8 | message, flags, head)
    }

    /// A message of netfilter itself, such as the bounds of a batch.
    pub(crate) fn raw(kind: u16, flags: u16, head: [u8; 4]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(head);
        Self(bytes)
    }

    /// Appends an attribute.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        put(&mut self.0, kind, value);
        self
    }

    /// Appends an attribute that is a text with a zero at its end.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.0
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
pub(crate) struct Netfilter {
    socket: OwnedFd,
    sequence: u32,
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel is cut short")
}

impl Netfilter {
    pub(crate) fn open() -> io::Result<Self> {
        Self::bound(0)
    }

    /// A conversation that also hears what is told to multicast groups, as a bit mask.
    pub(crate) fn listen(groups: u32) -> io::Result<Self> {
        let this = Self::bound(groups)?;
        nix::fcntl::fcntl(&this.socket, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        Ok(this)
    }

    fn bound(groups: u32) -> io::Result<Self> {
        let socket =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(2, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    fn send(&mut self, requests: &mut [Request]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            bytes.extend(request.finish(self.sequence));
        }
        sendto(self.socket.as_raw_fd(), &bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Sends messages as one, and returns the attributes of the first answer; an acknowledgement has none.
    pub(crate) fn ask(&mut self, mut requests: Vec<Request>) -> io::Result<Vec<u8>> {
        self.send(&mut requests)?;
        let mut buffer = vec![0; 16 * 1024];
        let len = self.receive(&mut buffer)?;
        let message = Messages(&buffer[..len]).next().ok_or_else(short)?;
        message.error().map_or_else(|| Ok(message.attributes().to_vec()), |e| e.map(|()| Vec::new()))
    }

    /// Sends messages that each ask for an acknowledgement; what became of each, in order.
    pub(crate) fn tell(&mut self, mut requests: Vec<Request>) -> io::Result<Vec<io::Result<()>>> {
        self.send(&mut requests)?;
        let mut out = Vec::with_capacity(requests.len());
        let mut buffer = vec![0; 64 * 1024];
        while out.len() < requests.len() {
            let len = self.receive(&mut buffer)?;
            out.extend(Messages(&buffer[..len]).filter_map(|m| m.error()));
        }
        Ok(out)
    }

    /// Asks for all there is; `each` gets the attributes of one answer.
    pub(crate) fn dump(&mut self, mut request: Request, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let flags = u16::from_ne_bytes([request.0[6], request.0[7]]) | DUMP;
        request.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.send(std::slice::from_mut(&mut request))?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let len = self.receive(&mut buffer)?;
            for message in Messages(&buffer[..len]) {
                if message.kind == NLMSG_DONE {
                    return Ok(());
                }
                match message.error() {
                    Some(result) => return result,
                    None => each(message.attributes()),
                }
            }
        }
    }

    /// Throws away all that was heard; whether there was anything. A full queue counts.
    pub(crate) fn drain(&self) -> bool {
        let mut buffer = [0; 4096];
        let mut heard = false;
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(_) | Err(Errno::ENOBUFS) => heard = true,
                Err(Errno::EINTR) => {}
                Err(_) => return heard,
            }
        }
    }
}

impl AsFd for Netfilter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::os::fd::AsRawFd for Netfilter {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

struct Message<'a> {
    kind: u16,
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// The outcome, when this is an acknowledgement or a refusal.
    fn error(&self) -> Option<io::Result<()>> {
        if self.kind != NLMSG_ERROR {
            return None;
        }
        let code = self.bytes.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
        Some(match code {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(short()),
        })
    }

    fn attributes(&self) -> &'a [u8] {
        self.bytes.get(HEAD..).unwrap_or_default()
    }
}

struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let head: [u8; 4] = self.0.get(..4)?.try_into().ok()?;
        let len = usize::try_from(u32::from_ne_bytes(head)).ok()?;
        let bytes = self.0.get(..len).filter(|b| b.len() >= 16)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind: u16::from_ne_bytes([bytes[4], bytes[5]]), bytes })
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

    #[test]
    fn messages_with_impossible_lengths_end_the_list() {
        assert_eq!(Messages(&[0; 64]).count(), 0);
        assert_eq!(Messages(&[255; 64]).count(), 0);
        assert_eq!(Messages(&[16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]).count(), 1);
    }
}
