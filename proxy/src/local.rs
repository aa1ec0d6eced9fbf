//! The addresses that the kernel takes for its own, as iptables' `--dst-type LOCAL` does: those of interfaces, and
//! what local routes hold beside them (`ip route add local 192.0.2.0/24 dev lo`).

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    inspect::node_addresses,
    model::{Cidr, Family},
    netlink::{Attributes, Netlink, Request, family_number},
};

// include/uapi/linux/rtnetlink.h
const GET_ROUTE: u16 = 26;
/// `RTN_LOCAL`: what is sent there is taken in.
const LOCAL: u8 = 2;
const DESTINATION: u16 = 1;
/// Length of `struct rtmsg`.
const ROUTE_HEAD: usize = 12;

/// Addresses and ranges that are of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    hosts: HashSet<IpAddr>,
    ranges: Vec<Cidr>,
}

impl LocalAddresses {
    /// Those of this thread's network namespace. Where the routes cannot be read it is the interfaces' addresses
    /// alone. Blocks.
    #[must_use]
    pub fn of_kernel() -> Self {
        let mut all: Self = node_addresses().into_iter().collect();
        for family in Family::BOTH {
            match local_routes(family) {
                Ok(routes) => all.extend(routes),
                Err(error) => tracing::warn!(
                    %error, family = family.name(),
                    "the local routes cannot be read: of this machine's addresses only those of interfaces count"
                ),
            }
        }
        all
    }

    /// Whether an address is of this machine; each one of loopback's is.
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

/// Changes of routes while they are being read: it is tried again so many times.
const TRIES: u32 = 3;

fn local_routes(family: Family) -> io::Result<Vec<Cidr>> {
    let mut netlink = Netlink::routing()?;
    let mut tries = 0;
    loop {
        let mut head = [0; ROUTE_HEAD];
        head[0] = family_number(family);
        let mut routes = Vec::new();
        match netlink.dump(Request::raw(GET_ROUTE, 0, &head), |head, attributes| {
            routes.extend(local_route(head, attributes));
        }) {
            Ok(()) => return Ok(routes),
            Err(e) if e.kind() == io::ErrorKind::Interrupted && tries < TRIES => tries += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Reads one route, if it is a local one. Pure.
fn local_route(head: &[u8], attributes: &[u8]) -> Option<Cidr> {
    let [family, length, _, _, _, _, _, kind, ..] = *head else { return None };
    if kind != LOCAL {
        return None;
    }
    // A route to everything names no destination.
    let destination = Attributes(attributes).find(DESTINATION);
    let base: IpAddr = if family == family_number(Family::V4) {
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

    fn head(family: u8, length: u8, kind: u8) -> [u8; ROUTE_HEAD] {
        [family, length, 0, 0, 255, 0, 254, kind, 0, 0, 0, 0]
    }

    #[test]
    fn only_local_routes_count_and_ranges_as_a_whole() {
        let v4 = |length, kind, to: [u8; 4]| local_route(&head(2, length, kind), &nested(&[(DESTINATION, &to)]));
        let six: Ipv6Addr = "fd00:5::".parse().unwrap();
        let mut all: LocalAddresses = ["192.168.0.2".parse().unwrap()].into_iter().collect();
        all.extend(v4(32, LOCAL, [192, 0, 2, 7]));
        all.extend(v4(24, LOCAL, [198, 51, 100, 0]));
        all.extend(local_route(&head(10, 64, LOCAL), &nested(&[(DESTINATION, &six.octets())])));
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
        assert_eq!(local_route(&head(2, 0, LOCAL), &[]), Cidr::parse("0.0.0.0/0"));
        assert_eq!(local_route(&head(2, 32, LOCAL), &nested(&[(DESTINATION, &[1, 2])])), None);
        assert_eq!(local_route(&[2, 32], &[]), None);
    }

    /// What the kernel tells of itself: loopback's range is a local route of every namespace that has it up.
    #[test]
    fn the_kernel_tells_its_routes() {
        let routes = local_routes(Family::V4).unwrap();
        assert!(routes.contains(&Cidr::parse("127.0.0.0/8").unwrap()), "{routes:?}");
        assert!(node_addresses().iter().all(|ip| LocalAddresses::of_kernel().contains(ip)));
    }
}
