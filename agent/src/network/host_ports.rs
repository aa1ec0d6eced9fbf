//! UDP host ports and the conntrack entries that no longer lead where they should: UDP has no connections that end, so
//! a client with a steady source port keeps its entry, and with it the address of a pod that is gone, for as long as it
//! sends. The CNI plugin portmap deletes such entries too. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use windlass_kit::{conntrack::Flow, local_addresses::LocalAddresses};

use super::{HostPort, Protocol};

/// A UDP port of the host, at one of its addresses or, with `None`, at all.
pub(super) type UdpPort = (u16, Option<IpAddr>);

/// UDP host ports, and where each leads; nowhere where its pod is gone.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct UdpHostPorts(BTreeMap<UdpPort, BTreeSet<SocketAddr>>);

fn key(port: &HostPort) -> UdpPort {
    (port.host_port, port.host_ip.filter(|ip| !ip.is_unspecified()))
}

impl UdpHostPorts {
    /// The UDP ports among all host ports, given by their target address.
    pub(super) fn of(host_ports: &BTreeMap<IpAddr, Vec<HostPort>>) -> Self {
        let mut all = BTreeMap::<UdpPort, BTreeSet<SocketAddr>>::new();
        for (address, ports) in host_ports {
            for port in ports.iter().filter(|port| port.protocol == Protocol::Udp) {
                all.entry(key(port)).or_default().insert(SocketAddr::new(*address, port.container_port));
            }
        }
        Self(all)
    }

    /// All ports.
    pub(super) fn ports(&self) -> BTreeSet<UdpPort> {
        self.0.keys().copied().collect()
    }

    /// The ports that lead elsewhere than `before`.
    pub(super) fn changed_since(&self, before: &Self) -> BTreeSet<UdpPort> {
        let all = self.0.keys().chain(before.0.keys());
        all.filter(|port| self.0.get(port) != before.0.get(port)).copied().collect()
    }

    /// What is known of these ports alone.
    pub(super) fn only(&self, ports: &BTreeSet<UdpPort>) -> Self {
        Self(ports.iter().map(|port| (*port, self.0.get(port).cloned().unwrap_or_default())).collect())
    }

    /// Whether a connection to one of these ports is answered by something else than the pod that has the port now.
    pub(super) fn is_stale(&self, flow: &Flow, local: &LocalAddresses) -> bool {
        let (port, ip) = (flow.destination.port(), flow.destination.ip());
        let mut ends = [None, Some(ip)].into_iter().filter_map(|at| self.0.get(&(port, at))).peekable();
        ends.peek().is_some() && local.contains(&ip) && !ends.any(|ends| ends.contains(&flow.reply_src))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(host_port: u16, host_ip: Option<&str>, protocol: Protocol) -> HostPort {
        HostPort { host_ip: host_ip.map(|ip| ip.parse().unwrap()), host_port, container_port: 5353, protocol }
    }

    fn of(pods: &[(&str, Vec<HostPort>)]) -> UdpHostPorts {
        UdpHostPorts::of(&pods.iter().map(|(address, ports)| (address.parse().unwrap(), ports.clone())).collect())
    }

    #[test]
    fn only_what_a_port_of_the_host_answers_wrongly_is_stale() {
        let pods = of(&[
            ("10.244.0.2", vec![port(53, None, Protocol::Udp), port(80, None, Protocol::Tcp)]),
            ("10.244.0.3", vec![port(54, Some("192.0.2.1"), Protocol::Udp), port(55, Some("0.0.0.0"), Protocol::Udp)]),
        ]);
        let mut ports = pods.ports();
        ports.insert((56, None));
        let wanted = pods.only(&ports);
        let local: LocalAddresses = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap()).into_iter().collect();
        for (to, from, stale) in [
            ("192.0.2.1:53", "10.244.0.2:5353", false),
            // The pod before it; a client that was there before any pod; a pod's other port.
            ("192.0.2.1:53", "10.244.0.9:5353", true),
            ("192.0.2.2:53", "192.0.2.2:53", true),
            ("127.0.0.1:53", "10.244.0.2:53", true),
            // Somebody's name server, whose replies are translated back by this very entry.
            ("8.8.8.8:53", "8.8.8.8:53", false),
            ("192.0.2.1:54", "10.244.0.3:5353", false),
            ("192.0.2.1:54", "192.0.2.1:54", true),
            ("192.0.2.2:54", "192.0.2.2:54", false),
            ("192.0.2.2:55", "10.244.0.2:5353", true),
            // Of a pod that is gone.
            ("192.0.2.1:56", "10.244.0.2:5353", true),
            ("192.0.2.1:80", "10.244.0.9:80", false),
        ] {
            let flow = Flow {
                source: "192.0.2.7:4000".parse().unwrap(),
                destination: to.parse().unwrap(),
                reply_src: from.parse().unwrap(),
                zone: 0,
                original_zone: None,
            };
            assert_eq!(wanted.is_stale(&flow, &local), stale, "{to} answered by {from}");
        }
    }

    #[test]
    fn a_port_that_comes_goes_or_moves_is_looked_at() {
        let udp = |number| vec![port(number, None, Protocol::Udp)];
        let before = of(&[("10.244.0.2", udp(53)), ("10.244.0.3", udp(54)), ("10.244.0.4", udp(55))]);
        let after = of(&[("10.244.0.2", udp(53)), ("10.244.0.5", udp(54)), ("10.244.0.6", udp(56))]);
        assert_eq!(after.changed_since(&before), BTreeSet::from([(54, None), (55, None), (56, None)]));
        assert!(after.changed_since(&after).is_empty());
        assert_eq!(after.changed_since(&UdpHostPorts::default()), after.ports());
    }
}
