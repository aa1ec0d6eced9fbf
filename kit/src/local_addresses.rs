//! The local addresses of this network namespace, as iptables' `--dst-type LOCAL` matches them: those of interfaces,
//! and the destinations of other local routes (`ip route add local 192.0.2.0/24 dev lo`).

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    net::{Cidr, Family, interface_addresses},
    netlink::{Attributes, Netlink, Request, address_family},
};

// include/uapi/linux/rtnetlink.h
const RTM_GETROUTE: u16 = 26;
/// Route type: packets are delivered locally.
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
/// Length of `struct rtmsg`.
const RTMSG_LEN: usize = 12;

/// Local addresses and ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    hosts: HashSet<IpAddr>,
    ranges: Vec<Cidr>,
}

impl LocalAddresses {
    /// Those of this thread's network namespace; only those of interfaces where the routes cannot be read. Blocks.
    #[must_use]
    pub fn of_kernel() -> Self {
        let mut all: Self = interface_addresses().unwrap_or_default().into_iter().collect();
        for family in Family::BOTH {
            match local_routes(family) {
                Ok(routes) => all.extend(routes),
                Err(error) => tracing::warn!(
                    %error, family = family.name(),
                    "failed to read local routes; only addresses of interfaces count as local"
                ),
            }
        }
        all
    }

    /// Whether an address is local; every loopback address is.
    #[must_use]
    pub fn contains(&self, ip: &IpAddr) -> bool {
        ip.is_loopback() || self.hosts.contains(ip) || self.ranges.iter().any(|range| range.contains(ip))
    }
}

impl FromIterator<IpAddr> for LocalAddresses {
    fn from_iter<T: IntoIterator<Item = IpAddr>>(addresses: T) -> Self {
        Self { hosts: addresses.into_iter().collect(), ranges: Vec::new() }
    }
}

impl Extend<Cidr> for LocalAddresses {
    fn extend<T: IntoIterator<Item = Cidr>>(&mut self, routes: T) {
        for route in routes {
            if route.length() == Family::of(&route.base()).bits() {
                self.hosts.insert(route.base());
            } else {
                self.ranges.push(route);
            }
        }
    }
}

/// The number of attempts of a dump that concurrent changes made inconsistent (`NLM_F_DUMP_INTR`).
const MAX_DUMP_ATTEMPTS: u32 = 3;

fn local_routes(family: Family) -> io::Result<Vec<Cidr>> {
    let mut netlink = Netlink::routing()?;
    let mut attempts = 0;
    loop {
        let mut head = [0; RTMSG_LEN];
        head[0] = address_family(family);
        let mut routes = Vec::new();
        match netlink.dump(Request::raw(RTM_GETROUTE, 0, &head), |head, attributes| {
            routes.extend(local_route(head, attributes));
        }) {
            Ok(()) => return Ok(routes),
            Err(e) if e.kind() == io::ErrorKind::Interrupted && attempts < MAX_DUMP_ATTEMPTS => attempts += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Parses one route; `None` unless it is a local one. Pure.
fn local_route(head: &[u8], attributes: &[u8]) -> Option<Cidr> {
    let [family, length, _, _, _, _, _, kind, ..] = *head else { return None };
    if kind != RTN_LOCAL {
        return None;
    }
    // A default route has no destination.
    let destination = Attributes(attributes).find(RTA_DST);
    let base: IpAddr = if family == address_family(Family::V4) {
        destination.map_or(Some([0; 4]), |bytes| bytes.try_into().ok()).map(Ipv4Addr::from)?.into()
    } else {
        destination.map_or(Some([0; 16]), |bytes| bytes.try_into().ok()).map(Ipv6Addr::from)?.into()
    };
    Some(Cidr::new(base, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nested;

    fn head(family: u8, length: u8, kind: u8) -> [u8; RTMSG_LEN] {
        [family, length, 0, 0, 255, 0, 254, kind, 0, 0, 0, 0]
    }

    #[test]
    fn only_local_routes_count_and_ranges_as_a_whole() {
        let v4 = |length, kind, to: [u8; 4]| local_route(&head(2, length, kind), &nested(&[(RTA_DST, &to)]));
        let six: Ipv6Addr = "fd00:5::".parse().unwrap();
        let mut all: LocalAddresses = ["192.168.0.2".parse().unwrap()].into_iter().collect();
        all.extend(v4(32, RTN_LOCAL, [192, 0, 2, 7]));
        all.extend(v4(24, RTN_LOCAL, [198, 51, 100, 0]));
        all.extend(local_route(&head(10, 64, RTN_LOCAL), &nested(&[(RTA_DST, &six.octets())])));
        assert_eq!(v4(24, 1, [203, 0, 113, 0]), None, "a route to others");
        for (address, local) in [
            ("192.168.0.2", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("198.51.100.200", true),
            ("203.0.113.1", false),
            ("127.0.0.2", true),
            ("::1", true),
            ("fd00:5::99", true),
            ("fd00:6::1", false),
        ] {
            assert_eq!(all.contains(&address.parse().unwrap()), local, "{address}");
        }
        assert_eq!(local_route(&head(2, 0, RTN_LOCAL), &[]), Cidr::parse("0.0.0.0/0"));
        assert_eq!(local_route(&head(2, 32, RTN_LOCAL), &nested(&[(RTA_DST, &[1, 2])])), None);
        assert_eq!(local_route(&[2, 32], &[]), None);
    }

    /// The loopback range is a local route of every namespace whose loopback interface is up.
    #[test]
    fn the_kernel_lists_its_local_routes() {
        let routes = local_routes(Family::V4).unwrap();
        assert!(routes.contains(&Cidr::parse("127.0.0.0/8").unwrap()), "{routes:?}");
        assert!(interface_addresses().unwrap().iter().all(|ip| LocalAddresses::of_kernel().contains(ip)));
    }
}
