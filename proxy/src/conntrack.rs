//! UDP connections that are tracked towards endpoints that are gone: found and forgotten, so that
//! the next packet is sent to one that exists. Which ones is decided by a pure function; only
//! [`Conntrack`] touches the kernel.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
};

use crate::{
    model::{Family, Model, Protocol},
    netlink::{ACK, Attributes, Netfilter, Request, family_number, nest, nested},
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
}

/// UDP addresses of services and the endpoints that may answer there.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Frontends {
    addresses: HashMap<SocketAddr, HashSet<SocketAddr>>,
    node_ports: HashMap<u16, HashSet<SocketAddr>>,
}

impl Frontends {
    /// All UDP frontends of a family, also those without any endpoint.
    #[must_use]
    pub fn of(model: &Model, family: Family) -> Self {
        let mut out = Self::default();
        for (id, service) in model.services() {
            let Some(cluster_ip) = service.cluster_ip(family) else { continue };
            for port in service.ports.iter().filter(|p| p.protocol == Protocol::Udp) {
                let serving: HashSet<SocketAddr> = model
                    .endpoints(id, port, family)
                    .iter()
                    .filter(|e| e.serving)
                    .map(|e| SocketAddr::new(e.ip, e.port))
                    .collect();
                let others = service.external_ips.iter().chain(&service.lb_ips).copied();
                for ip in others.filter(|ip| Family::of(ip) == family).chain([cluster_ip]) {
                    out.addresses.entry(SocketAddr::new(ip, port.port)).or_default().extend(&serving);
                }
                if port.node_port != 0 {
                    out.node_ports.entry(port.node_port).or_default().extend(&serving);
                }
            }
        }
        out
    }

    /// Whether there is anything to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// The flows whose service no longer has the endpoint that answers them. A node port counts
    /// only at an address of this machine.
    #[must_use]
    pub fn stale<'a>(&self, flows: &'a [Flow], local: &HashSet<IpAddr>) -> Vec<&'a Flow> {
        let is_stale = |flow: &&Flow| {
            let endpoints = self.addresses.get(&flow.destination).or_else(|| {
                self.node_ports.get(&flow.destination.port()).filter(|_| local.contains(&flow.destination.ip()))
            });
            endpoints.is_some_and(|known| !known.contains(&flow.answers))
        };
        flows.iter().filter(is_stale).collect()
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
pub struct Conntrack(Netfilter);

impl Conntrack {
    /// Opens a conversation.
    ///
    /// # Errors
    /// Without the right to, or without connection tracking in the kernel.
    pub fn open() -> io::Result<Self> {
        Netfilter::open().map(Self)
    }

    /// All UDP connections of a family. Blocks.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn udp(&mut self, family: Family) -> io::Result<Vec<Flow>> {
        let mut flows = Vec::new();
        let request = Request::new(SUBSYSTEM, GET, 0, [family_number(family), 0, 0, 0]);
        self.0.dump(request, |entry| flows.extend(read(entry)))?;
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
        .attribute(nest(TUPLE_ORIGINAL), &tuple(flow.source, flow.destination, UDP));
    if flow.zone == 0 { request } else { request.attribute(ZONE, &flow.zone.to_be_bytes()) }
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
    let (source, destination) = ends(Attributes(entry).find(TUPLE_ORIGINAL)?)?;
    let (answers, _) = ends(Attributes(entry).find(TUPLE_REPLY)?)?;
    let zone = Attributes(entry).find(ZONE).and_then(|v| v.try_into().ok()).map_or(0, u16::from_be_bytes);
    Some(Flow { source, destination, answers, zone })
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
            let flow = Flow { source, destination, answers, zone: 7 };
            let entry = |from, to, protocol| tuple(from, to, protocol);
            let mut bytes = nested(&[
                (nest(TUPLE_ORIGINAL), &entry(source, destination, UDP)),
                (nest(TUPLE_REPLY), &entry(answers, source, UDP)),
                (ZONE, &7u16.to_be_bytes()),
            ]);
            assert_eq!(read(&bytes), Some(flow));
            bytes = nested(&[
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
        let flow = |to: &str, from: &str| Flow {
            source: addr("10.0.0.2:4000"),
            destination: addr(to),
            answers: addr(from),
            zone: 0,
        };
        let flows = [
            flow("172.30.0.41:53", "10.180.0.1:53"),
            flow("172.30.0.41:53", "10.180.0.2:53"),
            flow("172.30.0.41:54", "10.180.0.2:53"),
            flow("172.30.0.42:53", "10.180.0.2:53"),
            flow("192.168.0.2:3001", "10.180.0.9:53"),
            flow("8.8.8.8:3001", "8.8.8.8:3001"),
        ];
        let local = HashSet::from(["192.168.0.2".parse().unwrap()]);
        let stale = frontends.stale(&flows, &local);
        assert_eq!(stale, [&flows[1], &flows[3], &flows[4]]);
    }
}
