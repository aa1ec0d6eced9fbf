//! Decides which conntrack entries of UDP services are stale: those of connections to removed endpoints. Pure; the
//! kernel's table is [`windlass_kit::conntrack`]'s.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

pub use windlass_kit::conntrack::{Conntrack, Destination, Flow, delete_stale};

use crate::{
    local_addresses::LocalAddresses,
    model::{Family, Model, ServiceId, UdpFrontend},
};

/// Which frontends are searched for: those of some Services, or of all, and those that Services have lost.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct UdpScope {
    /// `None` for all.
    pub services: Option<BTreeSet<ServiceId>>,
    /// Frontends that were removed.
    pub removed: BTreeSet<UdpFrontend>,
}

impl UdpScope {
    /// All frontends.
    #[must_use]
    pub const fn all() -> Self {
        Self { services: None, removed: BTreeSet::new() }
    }

    /// Nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self { services: Some(BTreeSet::new()), removed: BTreeSet::new() }
    }

    /// Adds another scope.
    pub fn extend(&mut self, other: Self) {
        self.services = match (self.services.take(), other.services) {
            (Some(mut some), Some(more)) => {
                some.extend(more);
                Some(some)
            }
            _ => None,
        };
        self.removed.extend(other.removed);
    }

    /// Whether a change of the one may concern what is searched for the other.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        match (&self.services, &other.services) {
            (Some(some), Some(others)) => {
                // A removed frontend may be another Service's now.
                !self.removed.is_empty() || !other.removed.is_empty() || !some.is_disjoint(others)
            }
            _ => true,
        }
    }
}

/// UDP addresses of services and the endpoints that may answer there.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct UdpFrontends {
    addresses: HashMap<SocketAddr, HashSet<SocketAddr>>,
    node_ports: HashMap<u16, HashSet<SocketAddr>>,
}

impl UdpFrontends {
    /// The UDP frontends of a family, also those without endpoints. External IPs are left out where they are disabled:
    /// the proxy does not handle traffic to them.
    #[must_use]
    pub fn of(model: &Model, family: Family, external_ips: bool, scope: &UdpScope) -> Self {
        // Several Services may have one external IP: all of their endpoints may answer there.
        let wanted: Option<HashSet<UdpFrontend>> = scope.services.as_ref().map(|services| {
            let changed = services.iter().filter_map(|id| model.service(id));
            let frontends = changed.flat_map(|service| service.udp_frontends(family).map(|(frontend, _)| frontend));
            frontends.chain(scope.removed.iter().copied()).collect()
        });
        let mut out = Self::default();
        for (id, service) in model.udp_services() {
            let mut serving: HashMap<&str, HashSet<SocketAddr>> = HashMap::new();
            let of_scope = |frontend: &UdpFrontend| wanted.as_ref().is_none_or(|wanted| wanted.contains(frontend));
            for (frontend, port) in service.udp_frontends(family).filter(|(frontend, _)| of_scope(frontend)) {
                let endpoints = serving.entry(&port.full_name).or_insert_with(|| {
                    let all = model.endpoints(id, port, family);
                    all.iter().filter(|e| e.serving).map(|e| SocketAddr::new(e.ip, e.port)).collect()
                });
                out.add(frontend, external_ips, endpoints);
            }
        }
        out.add_removed(scope.removed.iter().copied(), external_ips);
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
    fn add_removed(&mut self, removed: impl IntoIterator<Item = UdpFrontend>, external_ips: bool) {
        for frontend in removed {
            self.add(frontend, external_ips, &HashSet::new());
        }
    }

    /// Whether there are no frontends.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// Where the entries go to that may be stale.
    #[must_use]
    pub fn destinations(&self) -> Vec<Destination> {
        let ports = self.node_ports.keys().map(|port| Destination::Port(*port));
        self.addresses.keys().map(|at| Destination::Address(*at)).chain(ports).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

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
