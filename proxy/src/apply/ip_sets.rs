//! IP sets over netlink, so that no program `ipset` has to be installed. Everything here blocks, and acts on this thread's
//! network namespace.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use crate::{
    model::{Cidr, Family, Protocol},
    netlink::{Attributes, NLM_F_ACK, Netlink, Request, address_family, nest, nested},
    network_policy::{Entry, IpSet, SetKind, plan::ReadSets},
};

// include/uapi/linux/netfilter/ipset/ip_set.h
const NFNL_SUBSYS_IPSET: u16 = 6;
const IPSET_CMD_CREATE: u16 = 2;
const IPSET_CMD_DESTROY: u16 = 3;
const IPSET_CMD_SAVE: u16 = 8;
const IPSET_CMD_ADD: u16 = 9;
const IPSET_CMD_DEL: u16 = 10;
const IPSET_CMD_HEADER: u16 = 12;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_TYPENAME: u16 = 3;
const IPSET_ATTR_REVISION: u16 = 4;
const IPSET_ATTR_FAMILY: u16 = 5;
const IPSET_ATTR_DATA: u16 = 7;
const IPSET_ATTR_ADT: u16 = 8;
const IPSET_ATTR_LINENO: u16 = 9;
const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_CIDR: u16 = 3;
const IPSET_ATTR_PORT: u16 = 4;
const IPSET_ATTR_PROTO: u16 = 7;
const IPSET_ATTR_MAXELEM: u16 = 19;
const IPSET_ATTR_IFACE: u16 = 23;
const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
const IPSET_ATTR_IPADDR_IPV6: u16 = 2;
/// The oldest version, which every kernel accepts; version 7 (Linux 4.20) is only needed by other commands.
const IPSET_PROTOCOL_VERSION: u8 = 6;
/// The oldest revision of each type, which every kernel has; later ones have options that are not used here.
const TYPE_REVISION: u8 = 0;
/// The type is unknown: its module is not there.
const IPSET_ERR_FIND_TYPE: i32 = 4098;
/// The set is in use by a rule or by a list of sets.
const IPSET_ERR_BUSY: i32 = 4100;
/// The set has as many entries as it may have.
const IPSET_ERR_HASH_FULL: i32 = 4352;
// include/uapi/linux/netlink.h
const NLA_F_NET_BYTEORDER: u16 = 0x4000;

/// More addresses than a cluster has pods. It is a limit, and takes no memory.
const MAX_ENTRIES: u32 = 1 << 20;
/// Entries in one message, whose attribute is limited to 64 KB.
const MAX_MESSAGE_ENTRIES: usize = 500;

/// A request about one set.
fn request(message: u16, flags: u16, name: &str) -> Request {
    Request::new(NFNL_SUBSYS_IPSET, message, flags, [0; 4])
        .attribute(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL_VERSION])
        .text(IPSET_ATTR_SETNAME, name)
}

/// `ENOENT`.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Says what the codes of IP sets mean.
fn explained(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(IPSET_ERR_FIND_TYPE) => {
            io::Error::other("the kernel lacks this type of IP set (modules ip_set, ip_set_hash_*)")
        }
        Some(IPSET_ERR_BUSY) => {
            io::Error::new(io::ErrorKind::ResourceBusy, "it is in use by a rule of another program")
        }
        Some(IPSET_ERR_HASH_FULL) => io::Error::other("the IP set is full"),
        _ => error,
    }
}

/// Whether there is a set of this name.
pub(crate) fn exists(netlink: &mut Netlink, name: &str) -> io::Result<bool> {
    match netlink.query(vec![request(IPSET_CMD_HEADER, 0, name)]) {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a set; one of the same type that exists is kept.
pub(crate) fn create(netlink: &mut Netlink, name: &str, kind: SetKind, family: Family) -> io::Result<()> {
    let data = nested(&[(IPSET_ATTR_MAXELEM | NLA_F_NET_BYTEORDER, &MAX_ENTRIES.to_be_bytes())]);
    let create = request(IPSET_CMD_CREATE, NLM_F_ACK, name)
        .text(IPSET_ATTR_TYPENAME, kind.name())
        .attribute(IPSET_ATTR_REVISION, &[TYPE_REVISION])
        .attribute(IPSET_ATTR_FAMILY, &[address_family(family)])
        .attribute(nest(IPSET_ATTR_DATA), &data);
    netlink.query(vec![create]).map(drop).map_err(explained)
}

/// Destroys a set; one that does not exist is no error.
pub(crate) fn destroy(netlink: &mut Netlink, name: &str) -> io::Result<()> {
    match netlink.query(vec![request(IPSET_CMD_DESTROY, NLM_F_ACK, name)]) {
        Err(error) if !is_absent(&error) => Err(explained(error)),
        _ => Ok(()),
    }
}

/// Adds entries; those that exist are no error.
pub(crate) fn add(netlink: &mut Netlink, name: &str, entries: &[Entry]) -> io::Result<()> {
    change(netlink, IPSET_CMD_ADD, name, entries)
}

/// Deletes entries; those that do not exist are no error.
pub(crate) fn delete(netlink: &mut Netlink, name: &str, entries: &[Entry]) -> io::Result<()> {
    change(netlink, IPSET_CMD_DEL, name, entries)
}

fn change(netlink: &mut Netlink, message: u16, name: &str, entries: &[Entry]) -> io::Result<()> {
    for part in entries.chunks(MAX_MESSAGE_ENTRIES) {
        let encoded: Vec<Vec<u8>> = part.iter().map(encode).collect();
        let all: Vec<(u16, &[u8])> = encoded.iter().map(|bytes| (nest(IPSET_ATTR_DATA), bytes.as_slice())).collect();
        let change = request(message, NLM_F_ACK, name)
            .attribute(IPSET_ATTR_LINENO | NLA_F_NET_BYTEORDER, &1u32.to_be_bytes())
            .attribute(nest(IPSET_ATTR_ADT), &nested(&all));
        netlink.query(vec![change]).map_err(explained)?;
    }
    Ok(())
}

fn address(ip: &IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => nested(&[(IPSET_ATTR_IPADDR_IPV4 | NLA_F_NET_BYTEORDER, &v4.octets())]),
        IpAddr::V6(v6) => nested(&[(IPSET_ATTR_IPADDR_IPV6 | NLA_F_NET_BYTEORDER, &v6.octets())]),
    }
}

/// The number of a protocol (`IPPROTO_…`).
const fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn encode(entry: &Entry) -> Vec<u8> {
    match entry {
        Entry::Address(ip) => nested(&[(nest(IPSET_ATTR_IP), &address(ip))]),
        Entry::Port(ip, protocol, port) => nested(&[
            (nest(IPSET_ATTR_IP), &address(ip)),
            (IPSET_ATTR_PORT | NLA_F_NET_BYTEORDER, &port.to_be_bytes()),
            (IPSET_ATTR_PROTO, &[protocol_number(*protocol)]),
        ]),
        Entry::Range(range) => {
            nested(&[(nest(IPSET_ATTR_IP), &address(&range.base())), (IPSET_ATTR_CIDR, &[range.length()])])
        }
        Entry::Interface(ip, name) => {
            let name = [name.as_bytes(), &[0]].concat();
            nested(&[(nest(IPSET_ATTR_IP), &address(ip)), (IPSET_ATTR_IFACE, &name)])
        }
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().map(|text| text.trim_end_matches('\0'))
}

fn decode(kind: SetKind, attributes: Attributes<'_>) -> Option<Entry> {
    let ip = Attributes(attributes.find(IPSET_ATTR_IP)?);
    let ip = match (ip.find(IPSET_ATTR_IPADDR_IPV4), ip.find(IPSET_ATTR_IPADDR_IPV6)) {
        (Some(v4), _) => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(v4).ok()?)),
        (_, Some(v6)) => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(v6).ok()?)),
        _ => return None,
    };
    let length = attributes.find(IPSET_ATTR_CIDR).and_then(|length| length.first().copied());
    Some(match kind {
        SetKind::HashIp => Entry::Address(ip),
        SetKind::HashIpPort => {
            let number = *attributes.find(IPSET_ATTR_PROTO)?.first()?;
            let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
            let protocol = all.into_iter().find(|protocol| protocol_number(*protocol) == number)?;
            let port = attributes.find(IPSET_ATTR_PORT)?.get(..2)?.try_into().ok()?;
            Entry::Port(ip, protocol, u16::from_be_bytes(port))
        }
        SetKind::HashNet => Entry::Range(length.map_or_else(|| Cidr::host(ip), |length| Cidr::new(ip, length))),
        SetKind::HashNetIface => Entry::Interface(ip, text(attributes.find(IPSET_ATTR_IFACE)?)?.to_owned()),
    })
}

/// A set whose entries are being read.
type Reading = (SetKind, BTreeMap<Entry, usize>);

/// The sets whose names are `ours`, of both families; one with an entry that cannot be read is `None`, as one of another
/// type is.
pub(crate) fn read(netlink: &mut Netlink, ours: impl Fn(&str) -> bool) -> io::Result<ReadSets> {
    let all = Request::new(NFNL_SUBSYS_IPSET, IPSET_CMD_SAVE, 0, [0; 4])
        .attribute(IPSET_ATTR_PROTOCOL, &[IPSET_PROTOCOL_VERSION]);
    let mut sets: BTreeMap<String, Option<Reading>> = BTreeMap::new();
    let dumped = netlink.dump(all, |_, bytes| {
        let attributes = Attributes(bytes);
        let Some(name) = attributes.find(IPSET_ATTR_SETNAME).and_then(text).filter(|name| ours(name)) else { return };
        // Only the first message of a set has its type.
        if let Some(kind) = attributes.find(IPSET_ATTR_TYPENAME).and_then(text) {
            sets.insert(name.to_owned(), SetKind::parse(kind).map(|kind| (kind, BTreeMap::new())));
        }
        let Some(set) = sets.get_mut(name) else { return };
        let entries = attributes.find(IPSET_ATTR_ADT).map(Attributes).into_iter().flatten();
        for (_, bytes) in entries.filter(|(kind, _)| *kind == IPSET_ATTR_DATA) {
            let Some((kind, entries)) = set else { return };
            match decode(*kind, Attributes(bytes)) {
                Some(entry) => drop(entries.insert(entry, 1)),
                None => *set = None,
            }
        }
    });
    match dumped {
        // A kernel without IP sets has none.
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EINVAL as i32) => return Ok(ReadSets::new()),
        other => other.map_err(explained)?,
    }
    let made = |(kind, entries): Reading| IpSet { kind, entries: Arc::new(entries) };
    Ok(sets.into_iter().map(|(name, set)| (name, set.map(made))).collect())
}
