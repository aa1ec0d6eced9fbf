//! Two questions and one order to nf_tables over netlink, in this process's network namespace: the
//! generation of the rule set, a table's number of users, and "delete this table if nothing changed
//! since". iptables has no command for the last, and leaves empty tables behind.

use std::{io, os::fd::AsRawFd as _, os::fd::OwnedFd};

use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, setsockopt, socket,
        sockopt,
    },
    time::TimeVal,
};

use crate::model::Family;

// include/uapi/linux/netlink.h
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
// include/uapi/linux/netfilter/nfnetlink.h
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const BATCH_GENID: u16 = 1;
// include/uapi/linux/netfilter/nf_tables.h
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const GET_GENERATION: u16 = 16;
const GENERATION_ID: u16 = 1;
const TABLE_NAME: u16 = 1;
const TABLE_USE: u16 = 3;

/// An open conversation with nf_tables.
#[derive(Debug)]
pub(crate) struct NfTables {
    socket: OwnedFd,
    sequence: u32,
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn name_attribute(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    attribute(&mut out, TABLE_NAME, &[name.as_bytes(), &[0]].concat());
    out
}

const fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

impl NfTables {
    pub(crate) fn open() -> io::Result<Self> {
        let socket =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(2, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    fn message(&mut self, out: &mut Vec<u8>, kind: u16, flags: u16, head: [u8; 4], attributes: &[u8]) {
        self.sequence = self.sequence.wrapping_add(1);
        let len = u32::try_from(20 + attributes.len()).unwrap_or(u32::MAX);
        out.extend(len.to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend((REQUEST | flags).to_ne_bytes());
        out.extend(self.sequence.to_ne_bytes());
        out.extend([0; 4]);
        out.extend(head);
        out.extend(attributes);
    }

    /// Sends, and returns the attributes of the first answer; an acknowledgement has none.
    fn ask(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        sendto(self.socket.as_raw_fd(), request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut buffer = vec![0; 16 * 1024];
        let len = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let short = || io::Error::new(io::ErrorKind::InvalidData, "an answer of nf_tables is cut short");
        let bytes = buffer.get(..len).ok_or_else(short)?;
        let kind = u16::from_ne_bytes([*bytes.get(4).ok_or_else(short)?, *bytes.get(5).ok_or_else(short)?]);
        if kind == NLMSG_ERROR {
            let code: [u8; 4] = bytes.get(16..20).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
            return match i32::from_ne_bytes(code) {
                0 => Ok(Vec::new()),
                code => Err(io::Error::from_raw_os_error(-code)),
            };
        }
        Ok(bytes.get(20..).unwrap_or_default().to_vec())
    }

    /// Counts every committed change to any table of the namespace, wrapping.
    pub(crate) fn generation(&mut self) -> io::Result<u32> {
        let mut request = Vec::new();
        self.message(&mut request, SUBSYSTEM << 8 | GET_GENERATION, 0, [0; 4], &[]);
        number(&self.ask(&request)?, GENERATION_ID)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "nf_tables did not tell its generation"))
    }

    /// How many chains and sets a table holds; `None` when there is no such table.
    pub(crate) fn users(&mut self, family: Family, table: &str) -> io::Result<Option<u32>> {
        let mut request = Vec::new();
        let head = [family_number(family), 0, 0, 0];
        self.message(&mut request, SUBSYSTEM << 8 | GET_TABLE, 0, head, &name_attribute(table));
        match self.ask(&request) {
            Ok(attributes) => Ok(Some(number(&attributes, TABLE_USE).unwrap_or(0))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Deletes a table with all that is in it, if the rule set is still of this generation.
    pub(crate) fn delete_table(&mut self, family: Family, table: &str, generation: u32) -> io::Result<()> {
        let mut request = Vec::new();
        let mut genid = Vec::new();
        attribute(&mut genid, BATCH_GENID, &generation.to_be_bytes());
        let [high, low] = SUBSYSTEM.to_be_bytes();
        self.message(&mut request, BATCH_BEGIN, 0, [0, 0, high, low], &genid);
        let head = [family_number(family), 0, 0, 0];
        self.message(&mut request, SUBSYSTEM << 8 | DELETE_TABLE, ACK, head, &name_attribute(table));
        self.message(&mut request, BATCH_END, 0, [0, 0, high, low], &[]);
        self.ask(&request).map(drop)
    }
}

/// Finds a 32-bit attribute in network order.
fn number(mut attributes: &[u8], wanted: u16) -> Option<u32> {
    while let [a, b, c, d, ..] = *attributes {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let kind = u16::from_ne_bytes([c, d]) & 0x3fff;
        let value = attributes.get(4..len)?;
        if kind == wanted {
            return value.get(..4)?.try_into().ok().map(u32::from_be_bytes);
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}
