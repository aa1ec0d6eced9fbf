//! UDP connections that are tracked towards endpoints that are gone: found and forgotten, so that
//! the next packet is sent to one that exists. Which ones is decided by a pure function; only
//! [`Conntrack`] touches the kernel.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
};

use crate::{
    local::LocalAddresses,
    model::{Family, Model, UdpFrontend},
    netlink::{ACK, Attributes, Netlink, Request, family_number, nest, nested},
};

/// One tracked UDP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Who opened it.
    pub source: SocketAddr,
    /// Whom it was sent to.
    pub destination: SocketAddr,
    /// Who answers: the endpoint, when the destination is a service.
    pub answers: SocketAddr,
    /// Zone of connection tracking; 0 unless somebody uses zones.
    pub zone: u16,
    /// Zone of the original direction, where zones differ by direction.
    pub original_zone: Option<u16>,
}

/// UDP addresses of services and the endpoints that may answer there.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Frontends {
    addresses: HashMap<SocketAddr, HashSet<SocketAddr>>,
    node_ports: HashMap<u16, HashSet<SocketAddr>>,
}

impl Frontends {
    /// All UDP frontends of a family, also those without any endpoint. External IPs are left out where they are
    /// switched off: traffic to them is somebody else's.
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

    /// Adds frontends that no Service has any more: nobody answers there, unless another Service took them over.
    pub fn add_removed(&mut self, removed: impl IntoIterator<Item = UdpFrontend>, external_ips: bool) {
        for frontend in removed {
            self.add(frontend, external_ips, &HashSet::new());
        }
    }

    /// Whether there is anything to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// Whether a flow's service no longer has the endpoint that answers it. A node port counts only at an address of
    /// this machine.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow, local: &LocalAddresses) -> bool {
        let here = |ip: IpAddr| local.contains(&ip);
        let at_node_port = || self.node_ports.get(&flow.destination.port()).filter(|_| here(flow.destination.ip()));
        let endpoints = self.addresses.get(&flow.destination).or_else(at_node_port);
        endpoints.is_some_and(|known| !known.contains(&flow.answers))
    }
}

// include/uapi/linux/netfilter/nfnetlink_conntrack.h
const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
/// `CTA_FILTER_F_CTA_PROTO_NUM` of net/netfilter/nf_internals.h: of the tuple that is sent along the protocol counts.
const FILTER_BY_PROTOCOL: u32 = 1 << 3;
const IP_V4_SOURCE: u16 = 1;
const IP_V4_DESTINATION: u16 = 2;
const IP_V6_SOURCE: u16 = 3;
const IP_V6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
const UDP: u8 = 17;
/// Deletions in one message: their answers fit the socket's queue.
const BATCH: usize = 100;

/// The kernel's table of tracked connections, of this thread's network namespace.
#[derive(Debug)]
pub struct Conntrack(Netlink);

impl Conntrack {
    /// Opens a conversation.
    ///
    /// # Errors
    /// Without the right to, or without connection tracking in the kernel.
    pub fn open() -> io::Result<Self> {
        Netlink::netfilter().map(Self)
    }

    /// The UDP connections of a family that `wanted` picks; the others are not kept. Blocks.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn udp(&mut self, family: Family, wanted: impl Fn(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        // Kernels before 5.8 do not know the filter and tell of all protocols; others may refuse it.
        match self.dump(family, true, &wanted) {
            Err(e) if matches!(e.raw_os_error(), Some(22 | 95)) => self.dump(family, false, &wanted),
            other => other,
        }
    }

    fn dump(&mut self, family: Family, filtered: bool, wanted: &impl Fn(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        let plain = Request::new(SUBSYSTEM, GET, 0, [family_number(family), 0, 0, 0]);
        let request = if filtered {
            let protocol = nested(&[(PROTOCOL_NUMBER, &[UDP])]);
            plain
                .attribute(nest(TUPLE_ORIGINAL), &nested(&[(nest(TUPLE_PROTOCOL), &protocol)]))
                .attribute(nest(FILTER), &nested(&[(FILTER_ORIGINAL, &FILTER_BY_PROTOCOL.to_ne_bytes())]))
        } else {
            plain
        };
        let mut flows = Vec::new();
        self.0.dump(request, |_, entry| flows.extend(read(entry).filter(wanted)))?;
        Ok(flows)
    }

    /// Forgets connections; one that is gone already is no error. How many were there. Blocks.
    ///
    /// # Errors
    /// The first refusal.
    pub fn forget<'a>(&mut self, flows: impl IntoIterator<Item = &'a Flow>) -> io::Result<usize> {
        let requests: Vec<Request> = flows.into_iter().map(deletion).collect();
        let mut forgotten = 0;
        for batch in requests.chunks(BATCH) {
            for result in self.0.tell(batch.to_vec())? {
                match result {
                    Ok(()) => forgotten += 1,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(forgotten)
    }
}

/// Deletes exactly one connection: without a tuple the kernel would forget all of them.
fn deletion(flow: &Flow) -> Request {
    let family = Family::of(&flow.source.ip());
    let request = Request::new(SUBSYSTEM, DELETE, ACK, [family_number(family), 0, 0, 0])
        .attribute(nest(TUPLE_ORIGINAL), &zoned_tuple(flow.source, flow.destination, UDP, flow.original_zone));
    if flow.zone == 0 { request } else { request.attribute(ZONE, &flow.zone.to_be_bytes()) }
}

fn zoned_tuple(from: SocketAddr, to: SocketAddr, protocol: u8, zone: Option<u16>) -> Vec<u8> {
    let mut bytes = tuple(from, to, protocol);
    if let Some(zone) = zone {
        bytes.extend(nested(&[(TUPLE_ZONE, &zone.to_be_bytes())]));
    }
    bytes
}

fn tuple(from: SocketAddr, to: SocketAddr, protocol: u8) -> Vec<u8> {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let (source, destination) = match from.ip() {
        IpAddr::V4(_) => (IP_V4_SOURCE, IP_V4_DESTINATION),
        IpAddr::V6(_) => (IP_V6_SOURCE, IP_V6_DESTINATION),
    };
    let addresses = nested(&[(source, &bytes(from.ip())), (destination, &bytes(to.ip()))]);
    let ports = nested(&[
        (PROTOCOL_NUMBER, &[protocol]),
        (SOURCE_PORT, &from.port().to_be_bytes()),
        (DESTINATION_PORT, &to.port().to_be_bytes()),
    ]);
    nested(&[(nest(TUPLE_IP), &addresses), (nest(TUPLE_PROTOCOL), &ports)])
}

/// Reads an entry of the table, if it is UDP.
fn read(entry: &[u8]) -> Option<Flow> {
    let original = Attributes(entry).find(TUPLE_ORIGINAL)?;
    let (source, destination) = ends(original)?;
    let (answers, _) = ends(Attributes(entry).find(TUPLE_REPLY)?)?;
    let zone =
        |bytes: &[u8], kind: u16| Attributes(bytes).find(kind).and_then(|v| v.try_into().ok()).map(u16::from_be_bytes);
    let (all, original_zone) = (zone(entry, ZONE).unwrap_or(0), zone(original, TUPLE_ZONE));
    Some(Flow { source, destination, answers, zone: all, original_zone })
}

fn ends(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (addresses, protocol) = (Attributes(tuple).find(TUPLE_IP)?, Attributes(tuple).find(TUPLE_PROTOCOL)?);
    if Attributes(protocol).find(PROTOCOL_NUMBER)? != [UDP] {
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
    let source = SocketAddr::new(address(IP_V4_SOURCE, IP_V6_SOURCE)?, port(SOURCE_PORT)?);
    let destination = SocketAddr::new(address(IP_V4_DESTINATION, IP_V6_DESTINATION)?, port(DESTINATION_PORT)?);
    Some((source, destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_written_back() {
        for (source, destination, answers) in [
            ("10.0.0.2:4000", "172.30.0.41:53", "10.180.0.1:5353"),
            ("[fd00::2]:4000", "[fd00::41]:53", "[fd00:1::1]:5353"),
        ] {
            let [source, destination, answers] = [source, destination, answers].map(|a| a.parse().unwrap());
            let entry = |from, to, protocol| tuple(from, to, protocol);
            for (zone, original_zone) in [(7, None), (0, Some(9))] {
                let flow = Flow { source, destination, answers, zone, original_zone };
                let bytes = nested(&[
                    (nest(TUPLE_ORIGINAL), &zoned_tuple(source, destination, UDP, original_zone)),
                    (nest(TUPLE_REPLY), &entry(answers, source, UDP)),
                    (ZONE, &zone.to_be_bytes()),
                ]);
                assert_eq!(read(&bytes), Some(flow));
            }
            let bytes = nested(&[
                (nest(TUPLE_ORIGINAL), &entry(source, destination, 6)),
                (nest(TUPLE_REPLY), &entry(answers, source, 6)),
            ]);
            assert_eq!(read(&bytes), None, "TCP is left alone");
        }
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn only_flows_of_known_frontends_to_other_endpoints_are_stale() {
        let addr = |s: &str| s.parse::<SocketAddr>().unwrap();
        let mut frontends = Frontends::default();
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
            answers: addr(from),
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
            // Frontends of Services that are gone, and an address that does not count.
            ("172.30.0.49:53", "10.180.0.1:53", true),
            ("192.168.0.2:3009", "10.180.0.9:53", true),
            ("198.51.100.1:53", "10.180.0.9:53", false),
        ] {
            assert_eq!(frontends.is_stale(&flow(to, from), &local), stale, "{to} answered by {from}");
        }
    }
}
