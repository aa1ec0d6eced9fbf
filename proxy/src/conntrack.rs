//! Finds and deletes conntrack entries of UDP connections to removed endpoints, so that the next packet is sent to an
//! existing one. A pure function decides which are stale; only [`Conntrack`] accesses the kernel.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
};

use crate::{
    local_addresses::LocalAddresses,
    model::{Family, Model, UdpFrontend},
    netlink::{Attributes, NLM_F_ACK, Netlink, Request, address_family, nest, nested},
};

/// One conntrack entry of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Source of the original direction: the client.
    pub source: SocketAddr,
    /// Destination of the original direction.
    pub destination: SocketAddr,
    /// Source of the reply direction: the endpoint, when the destination is a service.
    pub reply_src: SocketAddr,
    /// Conntrack zone; 0 is the default zone.
    pub zone: u16,
    /// Zone of the original direction, where zones differ by direction.
    pub original_zone: Option<u16>,
}

/// UDP addresses of services and the endpoints that may answer there.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct UdpFrontends {
    addresses: HashMap<SocketAddr, HashSet<SocketAddr>>,
    node_ports: HashMap<u16, HashSet<SocketAddr>>,
}

impl UdpFrontends {
    /// All UDP frontends of a family, also those without endpoints. External IPs are left out where they are disabled:
    /// the proxy does not handle traffic to them.
    #[must_use]
    pub fn of(model: &Model, family: Family, external_ips: bool) -> Self {
        let mut out = Self::default();
        for (id, service) in model.udp_services() {
            let mut serving: HashMap<&str, HashSet<SocketAddr>> = HashMap::new();
            for (frontend, port) in service.udp_frontends(family) {
                let endpoints = serving.entry(&port.full_name).or_insert_with(|| {
                    let all = model.endpoints(id, port, family);
                    all.iter().filter(|e| e.serving).map(|e| SocketAddr::new(e.ip, e.port)).collect()
                });
                out.add(frontend, external_ips, endpoints);
            }
        }
        out
    }

    fn add(&mut self, frontend: UdpFrontend, external_ips: bool, endpoints: &HashSet<SocketAddr>) {
        match frontend {
            UdpFrontend::ExternalIp(_) if !external_ips => {}
            UdpFrontend::Address(at) | UdpFrontend::ExternalIp(at) => {
                self.addresses.entry(at).or_default().extend(endpoints);
            }
            UdpFrontend::NodePort(port) => self.node_ports.entry(port).or_default().extend(endpoints),
        }
    }

    /// Adds frontends that were removed from a Service. They have no endpoints, unless another Service has them now.
    pub fn add_removed(&mut self, removed: impl IntoIterator<Item = UdpFrontend>, external_ips: bool) {
        for frontend in removed {
            self.add(frontend, external_ips, &HashSet::new());
        }
    }

    /// Whether there are no frontends.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// Whether the service that an entry was opened to no longer has its endpoint. A node port counts only at an
    /// address of this node.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow, local: &LocalAddresses) -> bool {
        let here = |ip: IpAddr| local.contains(&ip);
        let at_node_port = || self.node_ports.get(&flow.destination.port()).filter(|_| here(flow.destination.ip()));
        let endpoints = self.addresses.get(&flow.destination).or_else(at_node_port);
        endpoints.is_some_and(|known| !known.contains(&flow.reply_src))
    }
}

// include/uapi/linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h
const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
/// net/netfilter/nf_internals.h: of the tuple in the request only the protocol is matched.
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const IPPROTO_UDP: u8 = 17;
/// Deletions in one datagram: their acknowledgements fit into the socket's receive queue.
const MAX_BATCH_DELETIONS: usize = 100;

/// The conntrack table of this thread's network namespace.
#[derive(Debug)]
pub struct Conntrack(Netlink);

impl Conntrack {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// Without permission, or without nf_conntrack_netlink in the kernel.
    pub fn open() -> io::Result<Self> {
        Netlink::netfilter().map(Self)
    }

    /// The UDP entries of a family for which `wanted` is true. Blocks.
    ///
    /// # Errors
    /// When the dump fails.
    pub fn udp(&mut self, family: Family, wanted: impl Fn(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        // Kernels before 5.8 ignore the filter and dump all protocols; others may refuse it (EINVAL, EOPNOTSUPP).
        match self.dump(family, true, &wanted) {
            Err(e) if matches!(e.raw_os_error(), Some(22 | 95)) => self.dump(family, false, &wanted),
            other => other,
        }
    }

    fn dump(&mut self, family: Family, filtered: bool, wanted: &impl Fn(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        let plain = Request::new(NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET, 0, [address_family(family), 0, 0, 0]);
        let request = if filtered {
            let protocol = nested(&[(CTA_PROTO_NUM, &[IPPROTO_UDP])]);
            plain.attribute(nest(CTA_TUPLE_ORIG), &nested(&[(nest(CTA_TUPLE_PROTO), &protocol)])).attribute(
                nest(CTA_FILTER),
                &nested(&[(CTA_FILTER_ORIG_FLAGS, &CTA_FILTER_F_CTA_PROTO_NUM.to_ne_bytes())]),
            )
        } else {
            plain
        };
        let mut flows = Vec::new();
        self.0.dump(request, |_, entry| flows.extend(parse_entry(entry).filter(wanted)))?;
        Ok(flows)
    }

    /// Deletes entries and returns how many existed. One that does not exist any more is no error. Blocks.
    ///
    /// # Errors
    /// The first one that the kernel reports.
    pub fn delete_entries<'a>(&mut self, flows: impl IntoIterator<Item = &'a Flow>) -> io::Result<usize> {
        let requests: Vec<Request> = flows.into_iter().map(deletion).collect();
        let mut deleted = 0;
        for batch in requests.chunks(MAX_BATCH_DELETIONS) {
            for result in self.0.execute_each(batch.to_vec())? {
                match result {
                    Ok(()) => deleted += 1,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(deleted)
    }
}

/// Deletes exactly one entry: without a tuple the kernel would flush the table.
fn deletion(flow: &Flow) -> Request {
    let family = Family::of(&flow.source.ip());
    let request =
        Request::new(NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE, NLM_F_ACK, [address_family(family), 0, 0, 0])
            .attribute(
                nest(CTA_TUPLE_ORIG),
                &zoned_tuple(flow.source, flow.destination, IPPROTO_UDP, flow.original_zone),
            );
    if flow.zone == 0 { request } else { request.attribute(CTA_ZONE, &flow.zone.to_be_bytes()) }
}

fn zoned_tuple(from: SocketAddr, to: SocketAddr, protocol: u8, zone: Option<u16>) -> Vec<u8> {
    let mut bytes = tuple(from, to, protocol);
    if let Some(zone) = zone {
        bytes.extend(nested(&[(CTA_TUPLE_ZONE, &zone.to_be_bytes())]));
    }
    bytes
}

fn tuple(from: SocketAddr, to: SocketAddr, protocol: u8) -> Vec<u8> {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let (source, destination) = match from.ip() {
        IpAddr::V4(_) => (CTA_IP_V4_SRC, CTA_IP_V4_DST),
        IpAddr::V6(_) => (CTA_IP_V6_SRC, CTA_IP_V6_DST),
    };
    let addresses = nested(&[(source, &bytes(from.ip())), (destination, &bytes(to.ip()))]);
    let ports = nested(&[
        (CTA_PROTO_NUM, &[protocol]),
        (CTA_PROTO_SRC_PORT, &from.port().to_be_bytes()),
        (CTA_PROTO_DST_PORT, &to.port().to_be_bytes()),
    ]);
    nested(&[(nest(CTA_TUPLE_IP), &addresses), (nest(CTA_TUPLE_PROTO), &ports)])
}

/// Parses a conntrack entry; `None` unless it is of UDP.
fn parse_entry(entry: &[u8]) -> Option<Flow> {
    let original = Attributes(entry).find(CTA_TUPLE_ORIG)?;
    let (source, destination) = addresses_of(original)?;
    let (reply_src, _) = addresses_of(Attributes(entry).find(CTA_TUPLE_REPLY)?)?;
    let zone =
        |bytes: &[u8], kind: u16| Attributes(bytes).find(kind).and_then(|v| v.try_into().ok()).map(u16::from_be_bytes);
    let (all, original_zone) = (zone(entry, CTA_ZONE).unwrap_or(0), zone(original, CTA_TUPLE_ZONE));
    Some(Flow { source, destination, reply_src, zone: all, original_zone })
}

fn addresses_of(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (addresses, protocol) = (Attributes(tuple).find(CTA_TUPLE_IP)?, Attributes(tuple).find(CTA_TUPLE_PROTO)?);
    if Attributes(protocol).find(CTA_PROTO_NUM)? != [IPPROTO_UDP] {
        return None;
    }
    let address = |v4: u16, v6: u16| {
        Attributes(addresses).find_map(|(kind, value)| {
            if kind == v4 {
                <[u8; 4]>::try_from(value).ok().map(IpAddr::from)
            } else if kind == v6 {
                <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
            } else {
                None
            }
        })
    };
    let port = |kind: u16| Some(u16::from_be_bytes(Attributes(protocol).find(kind)?.try_into().ok()?));
    let source = SocketAddr::new(address(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?, port(CTA_PROTO_SRC_PORT)?);
    let destination = SocketAddr::new(address(CTA_IP_V4_DST, CTA_IP_V6_DST)?, port(CTA_PROTO_DST_PORT)?);
    Some((source, destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_written_back() {
        for (source, destination, reply_src) in [
            ("10.0.0.2:4000", "172.30.0.41:53", "10.180.0.1:5353"),
            ("[fd00::2]:4000", "[fd00::41]:53", "[fd00:1::1]:5353"),
        ] {
            let [source, destination, reply_src] = [source, destination, reply_src].map(|a| a.parse().unwrap());
            let entry = |from, to, protocol| tuple(from, to, protocol);
            for (zone, original_zone) in [(7, None), (0, Some(9))] {
                let flow = Flow { source, destination, reply_src, zone, original_zone };
                let bytes = nested(&[
                    (nest(CTA_TUPLE_ORIG), &zoned_tuple(source, destination, IPPROTO_UDP, original_zone)),
                    (nest(CTA_TUPLE_REPLY), &entry(reply_src, source, IPPROTO_UDP)),
                    (CTA_ZONE, &zone.to_be_bytes()),
                ]);
                assert_eq!(parse_entry(&bytes), Some(flow));
            }
            let bytes = nested(&[
                (nest(CTA_TUPLE_ORIG), &entry(source, destination, 6)),
                (nest(CTA_TUPLE_REPLY), &entry(reply_src, source, 6)),
            ]);
            assert_eq!(parse_entry(&bytes), None, "TCP is left alone");
        }
        assert_eq!(parse_entry(&[]), None);
    }

    #[test]
    fn only_flows_of_known_frontends_to_other_endpoints_are_stale() {
        let addr = |s: &str| s.parse::<SocketAddr>().unwrap();
        let mut frontends = UdpFrontends::default();
        frontends.addresses.insert(addr("172.30.0.41:53"), HashSet::from([addr("10.180.0.1:53")]));
        frontends.addresses.insert(addr("172.30.0.42:53"), HashSet::new());
        frontends.node_ports.insert(3001, HashSet::from([addr("10.180.0.1:53")]));
        frontends.add_removed(
            [
                UdpFrontend::Address(addr("172.30.0.41:53")),
                UdpFrontend::Address(addr("172.30.0.49:53")),
                UdpFrontend::ExternalIp(addr("198.51.100.1:53")),
                UdpFrontend::NodePort(3009),
            ],
            false,
        );
        let flow = |to: &str, from: &str| Flow {
            source: addr("10.0.0.2:4000"),
            destination: addr(to),
            reply_src: addr(from),
            zone: 0,
            original_zone: None,
        };
        let mut local: LocalAddresses = ["192.168.0.2".parse().unwrap()].into_iter().collect();
        local.extend(crate::model::Cidr::parse("198.51.100.0/24"));
        for (to, from, stale) in [
            ("172.30.0.41:53", "10.180.0.1:53", false),
            ("172.30.0.41:53", "10.180.0.2:53", true),
            ("172.30.0.41:54", "10.180.0.2:53", false),
            ("172.30.0.42:53", "10.180.0.2:53", true),
            ("192.168.0.2:3001", "10.180.0.9:53", true),
            ("127.0.0.2:3001", "10.180.0.9:53", true),
            // An address of a local route alone.
            ("198.51.100.9:3001", "10.180.0.9:53", true),
            ("8.8.8.8:3001", "8.8.8.8:3001", false),
            // Frontends of deleted Services, and an address that does not count.
            ("172.30.0.49:53", "10.180.0.1:53", true),
            ("192.168.0.2:3009", "10.180.0.9:53", true),
            ("198.51.100.1:53", "10.180.0.9:53", false),
        ] {
            assert_eq!(frontends.is_stale(&flow(to, from), &local), stale, "{to} answered by {from}");
        }
    }
}
