//! What kube-proxy's IPVS mode leaves in the kernel besides iptables rules: the device with the addresses of services,
//! virtual services of IPVS, and the IP sets that its rules match. Each is removed over netlink, so that neither
//! `ipset` nor `ipvsadm` has to be installed. Everything here blocks, and acts on this thread's network namespace.

use std::{fmt, io, path::Path};

use crate::{
    apply::ip_sets,
    netlink::{Attributes, NLM_F_ACK, Netlink, Request},
};

/// The device with the addresses of all services.
const DEVICE: &str = "kube-ipvs0";
/// The kind of that device.
const DEVICE_KIND: &str = "dummy";

// include/uapi/linux/rtnetlink.h, if_link.h
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// Length of `struct ifinfomsg`.
const IFINFOMSG_LEN: usize = 16;

/// `IPSET_MAXNAMELEN` without the terminating NUL.
const MAX_SET_NAME_LEN: usize = 31;

// include/uapi/linux/genetlink.h, ip_vs.h
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const IPVS_GENL_NAME: &str = "IPVS";
const IPVS_CMD_FLUSH: u8 = 17;
const GENL_VERSION: u8 = 1;

/// The sets of kube-proxy (pkg/proxy/ipvs/ipset.go), for IPv4.
const SET_NAMES: [&str; 17] = [
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

/// The sets of both address families. The names of IPv6 have a `6` and are cut to the maximal length; kube-proxy's
/// clean-up misses them.
fn set_names() -> impl Iterator<Item = String> {
    let six = SET_NAMES.iter().map(|name| {
        let mut name = name.replacen("KUBE-", "KUBE-6-", 1);
        name.truncate(MAX_SET_NAME_LEN);
        name
    });
    SET_NAMES.iter().map(|name| (*name).to_owned()).chain(six)
}

/// Something that IPVS mode left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// The device.
    Device,
    /// A set of this name.
    Set(String),
    /// The virtual services. They have no owner, so they count only together with one of the others.
    VirtualServices,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => write!(f, "the device {DEVICE} of kube-proxy's IPVS mode"),
            Self::Set(name) => write!(f, "the IP set {name} of kube-proxy's IPVS mode"),
            Self::VirtualServices => f.write_str("the virtual services of kube-proxy's IPVS mode"),
        }
    }
}

impl Leftover {
    /// The command that removes it by hand, for messages.
    pub(crate) fn command(&self) -> String {
        match self {
            Self::Device => format!("ip link delete {DEVICE}"),
            Self::Set(name) => format!("ipset destroy {name}"),
            Self::VirtualServices => "ipvsadm --clear".to_owned(),
        }
    }

    /// Removes it; one that does not exist any more is no error.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let done = match self {
            Self::Device => Netlink::routing().and_then(|mut n| n.query(vec![link(RTM_DELLINK, NLM_F_ACK)])).map(drop),
            Self::Set(name) => Netlink::netfilter().and_then(|mut netlink| ip_sets::destroy(&mut netlink, name)),
            Self::VirtualServices => flush_virtual_services(),
        };
        match done {
            Err(e) if is_absent(&e) => Ok(()),
            other => other,
        }
    }
}

/// Finds what IPVS mode left, in the order of removal: sets come last, since rules use them. Virtual services without
/// any other leftover of kube-proxy belong to another program, such as `keepalived`.
pub(crate) fn find_leftovers() -> io::Result<Vec<Leftover>> {
    let sets = sets()?;
    let device = has_device()?;
    let mut leftovers = Vec::new();
    if (device || !sets.is_empty()) && has_virtual_services() {
        leftovers.push(Leftover::VirtualServices);
    }
    leftovers.extend(device.then_some(Leftover::Device));
    leftovers.extend(sets.into_iter().map(Leftover::Set));
    Ok(leftovers)
}

/// Whether the device exists: then the kernel treats all addresses on it as local.
pub(crate) fn has_device() -> io::Result<bool> {
    let answer = match Netlink::routing()?.query(vec![link(RTM_GETLINK, 0)]) {
        Ok(answer) => answer,
        Err(e) if is_absent(&e) => return Ok(false),
        Err(e) => return Err(e),
    };
    let kind = kind(&answer);
    if kind == Some(DEVICE_KIND) {
        return Ok(true);
    }
    tracing::warn!(
        kind = kind.unwrap_or("unknown"),
        "device {DEVICE} is not of kind {DEVICE_KIND}, so it is not kube-proxy's; keeping it"
    );
    Ok(false)
}

/// The kind of device, from the attributes of a link.
fn kind(attributes: &[u8]) -> Option<&str> {
    let kind = Attributes(Attributes(attributes).find(IFLA_LINKINFO)?).find(IFLA_INFO_KIND)?;
    std::str::from_utf8(kind).ok().map(|kind| kind.trim_end_matches('\0'))
}

fn link(message: u16, flags: u16) -> Request {
    Request::raw(message, flags, &[0; IFINFOMSG_LEN]).text(IFLA_IFNAME, DEVICE)
}

fn sets() -> io::Result<Vec<String>> {
    // A query would load the kernel module.
    if !Path::new("/sys/module/ip_set").exists() {
        return Ok(Vec::new());
    }
    let mut netlink = Netlink::netfilter()?;
    let mut existing = Vec::new();
    for name in set_names() {
        if ip_sets::exists(&mut netlink, &name)? {
            existing.push(name);
        }
    }
    Ok(existing)
}

/// Whether IPVS has a virtual service. A query over netlink would load the kernel module.
fn has_virtual_services() -> bool {
    std::fs::read_to_string("/proc/thread-self/net/ip_vs").is_ok_and(|table| has_virtual_service_line(&table))
}

/// Whether `/proc/net/ip_vs` lists a virtual service: its line starts with the protocol, or with `FWM` for a firewall
/// mark.
fn has_virtual_service_line(table: &str) -> bool {
    table.lines().any(|line| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|start| line.starts_with(start)))
}

fn flush_virtual_services() -> io::Result<()> {
    let mut netlink = Netlink::generic()?;
    let family = family_id(&mut netlink, IPVS_GENL_NAME)?;
    netlink.query(vec![Request::raw(family, NLM_F_ACK, &[IPVS_CMD_FLUSH, GENL_VERSION, 0, 0])]).map(drop)
}

/// The id of a generic netlink family.
fn family_id(netlink: &mut Netlink, name: &str) -> io::Result<u16> {
    let request =
        Request::raw(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, GENL_VERSION, 0, 0]).text(CTRL_ATTR_FAMILY_NAME, name);
    let answer = netlink.query(vec![request])?;
    let id = Attributes(&answer).find(CTRL_ATTR_FAMILY_ID).and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
    id.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("the reply of generic netlink has no id of family {name}"))
    })
}

/// `ENOENT` of sets and families, `ENODEV` of devices.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(2 | 19))
}

#[cfg(test)]
mod tests;
