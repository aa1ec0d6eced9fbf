//! Finds and deletes conntrack entries of UDP, so that the next packet of a connection to an endpoint that is gone is
//! sent to an existing one. The caller decides which are stale; only [`Conntrack`] accesses the kernel.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use crate::{
    net::Family,
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
// net/netfilter/nf_internals.h: what of the tuple in the request is matched.
const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;
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

/// Up to this number of destinations is dumped one by one. Each dump visits the whole table, but copies only matching
/// entries, and copying is most of the cost.
const MAX_FILTERED_DUMPS: usize = 4;

/// Where flows of a dump go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// One address and port.
    Address(SocketAddr),
    /// A port at any address.
    Port(u16),
}

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

    /// The UDP entries of a family for which `wanted` is true, each at least once. With few `destinations`, only
    /// entries to these are requested from the kernel; `wanted` still decides. Blocks.
    ///
    /// # Errors
    /// When the dump fails.
    pub fn udp(
        &mut self,
        family: Family,
        destinations: &[Destination],
        wanted: impl Fn(&Flow) -> bool,
    ) -> io::Result<Vec<Flow>> {
        let mut filters: Vec<Filter> = match destinations.len() {
            1..=MAX_FILTERED_DUMPS => destinations.iter().map(|to| Filter::UdpTo(*to)).collect(),
            _ => vec![Filter::Udp],
        };
        let mut flows = Vec::new();
        while let Some(filter) = filters.pop() {
            // Kernels before 5.8 ignore the filter and dump all protocols; others may refuse it (EINVAL, EOPNOTSUPP).
            match self.dump(family, filter, &wanted) {
                Err(e) if matches!(e.raw_os_error(), Some(22 | 95)) && filter != Filter::None => {
                    flows.clear();
                    filters = vec![Filter::None];
                }
                found => flows.extend(found?),
            }
        }
        Ok(flows)
    }

    fn dump(&mut self, family: Family, filter: Filter, wanted: &impl Fn(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        let mut request = Request::new(NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET, 0, [address_family(family), 0, 0, 0]);
        if let Some((tuple, flags)) = filter.tuple() {
            let flags = nested(&[(CTA_FILTER_ORIG_FLAGS, &flags.to_ne_bytes())]);
            request = request.attribute(nest(CTA_TUPLE_ORIG), &tuple).attribute(nest(CTA_FILTER), &flags);
        }
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

/// What the kernel is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filter {
    None,
    Udp,
    UdpTo(Destination),
}

impl Filter {
    /// The tuple of the original direction, and what of it is matched.
    fn tuple(self) -> Option<(Vec<u8>, u32)> {
        let number: (u16, &[u8]) = (CTA_PROTO_NUM, &[IPPROTO_UDP]);
        let to = match self {
            Self::None => return None,
            Self::Udp => {
                let tuple = nested(&[(nest(CTA_TUPLE_PROTO), &nested(&[number]))]);
                return Some((tuple, CTA_FILTER_F_CTA_PROTO_NUM));
            }
            Self::UdpTo(to) => to,
        };
        // Kernels compare addresses of IPv6 the wrong way round (`ctnetlink_filter_match_tuple`): those are searched by
        // their ports.
        let (ip, port) = match to {
            Destination::Address(SocketAddr::V4(at)) => (Some(*at.ip()), at.port()),
            Destination::Address(at) => (None, at.port()),
            Destination::Port(port) => (None, port),
        };
        let protocol = nested(&[number, (CTA_PROTO_DST_PORT, &port.to_be_bytes())]);
        let of_ip = ip.map(|ip| nested(&[(CTA_IP_V4_DST, &ip.octets())]));
        let parts = of_ip.iter().map(|ip| (nest(CTA_TUPLE_IP), &ip[..]));
        let parts: Vec<(u16, &[u8])> = parts.chain([(nest(CTA_TUPLE_PROTO), &protocol[..])]).collect();
        let ports = CTA_FILTER_F_CTA_PROTO_NUM | CTA_FILTER_F_CTA_PROTO_DST_PORT;
        Some((nested(&parts), if ip.is_some() { ports | CTA_FILTER_F_CTA_IP_DST } else { ports }))
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
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
    let (source, destination) = match from.ip() {
        IpAddr::V4(_) => (CTA_IP_V4_SRC, CTA_IP_V4_DST),
        IpAddr::V6(_) => (CTA_IP_V6_SRC, CTA_IP_V6_DST),
    };
    let addresses = nested(&[(source, &octets(from.ip())), (destination, &octets(to.ip()))]);
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

/// The number of attempts of a dump that concurrent changes made inconsistent (`NLM_F_DUMP_INTR`).
const MAX_DUMP_ATTEMPTS: u32 = 3;

/// Deletes the UDP entries of a family for which `is_stale` is true, in this thread's network namespace; returns how
/// many existed. `destinations` are all to which stale ones go, or empty. Blocks.
///
/// # Errors
/// When the table cannot be read, or the kernel refuses a deletion.
pub fn delete_stale(
    family: Family,
    destinations: &[Destination],
    is_stale: impl Fn(&Flow) -> bool,
) -> io::Result<usize> {
    let mut conntrack = Conntrack::open()?;
    let mut attempts = 0;
    let stale = loop {
        match conntrack.udp(family, destinations, &is_stale) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted && attempts < MAX_DUMP_ATTEMPTS => attempts += 1,
            other => break other?,
        }
    };
    conntrack.delete_entries(&stale)
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
}
