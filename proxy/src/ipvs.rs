//! What kube-proxy's IPVS mode leaves in the kernel beside iptables rules: the device that holds the addresses of
//! services, virtual services of IPVS, and the IP sets that its rules ask. Each is removed over netlink, so that
//! neither `ipset` nor `ipvsadm` has to be installed. Everything here blocks, and means this thread's network namespace.

use std::{fmt, io, path::Path};

use crate::netlink::{ACK, Attributes, Netlink, Request};

/// The device that holds the addresses of all services.
const DEVICE: &str = "kube-ipvs0";
/// The kind of device that kube-proxy makes for it.
const KIND: &str = "dummy";

// include/uapi/linux/rtnetlink.h, if_link.h
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
/// Length of `struct ifinfomsg`.
const LINK_HEAD: usize = 16;

// include/uapi/linux/netfilter/ipset/ip_set.h
const SETS: u16 = 6;
const DESTROY: u16 = 3;
const HEADER: u16 = 12;
const SET_PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
/// Taken by every kernel: the later one, 7, came with Linux 4.20, and only orders that are not given here need it.
const PROTOCOL: u8 = 6;
/// `IPSET_ERR_BUSY`: a rule asks the set, or a list of sets holds it.
const BUSY: i32 = 4100;
/// `IPSET_MAXNAMELEN` without the zero at its end.
const LONGEST_NAME: usize = 31;

// include/uapi/linux/genetlink.h, ip_vs.h
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const IPVS: &str = "IPVS";
const IPVS_FLUSH: u8 = 17;
const VERSION: u8 = 1;

/// The sets of kube-proxy (pkg/proxy/ipvs/ipset.go), for IPv4.
const NAMES: [&str; 17] = [
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
];

/// The sets of both families. Those of IPv6 have a `6` in their name, which is cut to what the kernel takes; upstream's
/// clean-up forgets them.
fn set_names() -> impl Iterator<Item = String> {
    let six = NAMES.iter().map(|name| {
        let mut name = name.replacen("KUBE-", "KUBE-6-", 1);
        name.truncate(LONGEST_NAME);
        name
    });
    NAMES.iter().map(|name| (*name).to_owned()).chain(six)
}

/// Something of the IPVS mode that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Left {
    /// The device.
    Device,
    /// A set of this name.
    Set(String),
    /// The virtual services. Whose they are they do not tell: they count only beside one of the others.
    VirtualServices,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => write!(f, "the device {DEVICE} of kube-proxy's IPVS mode"),
            Self::Set(name) => write!(f, "the IP set {name} of kube-proxy's IPVS mode"),
            Self::VirtualServices => f.write_str("the virtual services of kube-proxy's IPVS mode"),
        }
    }
}

impl Left {
    /// The command that does it by hand.
    pub(crate) fn command(&self) -> String {
        match self {
            Self::Device => format!("ip link delete {DEVICE}"),
            Self::Set(name) => format!("ipset destroy {name}"),
            Self::VirtualServices => "ipvsadm --clear".to_owned(),
        }
    }

    /// Removes it; what is gone already is no error.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let done = match self {
            Self::Device => Netlink::routing().and_then(|mut n| n.ask(vec![link(DELETE_LINK, ACK)])).map(drop),
            Self::Set(name) => Netlink::netfilter().and_then(|mut n| n.ask(vec![set(DESTROY, name)])).map(drop),
            Self::VirtualServices => flush_virtual_services(),
        };
        match done {
            Err(e) if is_absent(&e) => Ok(()),
            Err(e) if e.raw_os_error() == Some(BUSY) => Err(io::Error::other("a rule of somebody else still asks it")),
            other => other,
        }
    }
}

/// What is there, in the order in which it is to be removed. The sets come last: no rule may ask them any more.
/// Virtual services of a machine without any other trace of kube-proxy are somebody else's (`keepalived` makes some).
pub(crate) fn left_behind() -> io::Result<Vec<Left>> {
    let sets = sets()?;
    let device = has_device()?;
    let mut left = Vec::new();
    if (device || !sets.is_empty()) && has_virtual_services() {
        left.push(Left::VirtualServices);
    }
    left.extend(device.then_some(Left::Device));
    left.extend(sets.into_iter().map(Left::Set));
    Ok(left)
}

/// Whether the device is there: the kernel takes all addresses of services for its own then.
pub(crate) fn has_device() -> io::Result<bool> {
    let answer = match Netlink::routing()?.ask(vec![link(GET_LINK, 0)]) {
        Ok(answer) => answer,
        Err(e) if is_absent(&e) => return Ok(false),
        Err(e) => return Err(e),
    };
    let kind = kind(&answer);
    if kind == Some(KIND) {
        return Ok(true);
    }
    tracing::warn!(
        kind = kind.unwrap_or("unknown"),
        "a device has the name {DEVICE} and is not of the kind {KIND} that kube-proxy makes: it stays"
    );
    Ok(false)
}

/// Of a link's attributes: the kind of device.
fn kind(attributes: &[u8]) -> Option<&str> {
    let kind = Attributes(Attributes(attributes).find(LINK_INFO)?).find(INFO_KIND)?;
    std::str::from_utf8(kind).ok().map(|kind| kind.trim_end_matches('\0'))
}

fn link(message: u16, flags: u16) -> Request {
    Request::raw(message, flags, &[0; LINK_HEAD]).text(LINK_NAME, DEVICE)
}

fn sets() -> io::Result<Vec<String>> {
    // Asking would load the kernel's module.
    if !Path::new("/sys/module/ip_set").exists() {
        return Ok(Vec::new());
    }
    let mut netlink = Netlink::netfilter()?;
    let mut there = Vec::new();
    for name in set_names() {
        match netlink.ask(vec![set(HEADER, &name)]) {
            Ok(_) => there.push(name),
            Err(e) if is_absent(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(there)
}

fn set(message: u16, name: &str) -> Request {
    let flags = if message == HEADER { 0 } else { ACK };
    Request::new(SETS, message, flags, [0; 4]).attribute(SET_PROTOCOL, &[PROTOCOL]).text(SET_NAME, name)
}

/// Whether IPVS has a virtual service. Asking over netlink would load the kernel's module.
fn has_virtual_services() -> bool {
    std::fs::read_to_string("/proc/thread-self/net/ip_vs").is_ok_and(|table| names_virtual_service(&table))
}

/// Whether the kernel's table has more than its head: a line for each virtual service begins with its protocol, or with
/// `FWM` for one that is told by a mark.
fn names_virtual_service(table: &str) -> bool {
    table.lines().any(|line| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|start| line.starts_with(start)))
}

fn flush_virtual_services() -> io::Result<()> {
    let mut netlink = Netlink::generic()?;
    let family = family_id(&mut netlink, IPVS)?;
    netlink.ask(vec![Request::raw(family, ACK, &[IPVS_FLUSH, VERSION, 0, 0])]).map(drop)
}

/// The number of a family of generic netlink.
fn family_id(netlink: &mut Netlink, name: &str) -> io::Result<u16> {
    let request = Request::raw(CONTROLLER, 0, &[GET_FAMILY, VERSION, 0, 0]).text(FAMILY_NAME, name);
    let answer = netlink.ask(vec![request])?;
    let id = Attributes(&answer).find(FAMILY_ID).and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
    id.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("the kernel gave no number for {name}")))
}

/// `ENOENT` of sets and families, `ENODEV` of devices.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(2 | 19))
}

#[cfg(test)]
mod tests;
