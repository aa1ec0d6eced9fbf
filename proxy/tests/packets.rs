//! The conformance tables on a real kernel: every flow is a packet between network namespaces, and its receiver replies
//! with its own address and the source that it saw. Both iptables back ends, both families, flat chains and trees.

#![allow(clippy::unwrap_used)]

#[path = "packets/client.rs"]
mod client;
#[path = "packets/net.rs"]
mod net;
mod netns;
#[path = "packets/sctp.rs"]
mod sctp;
#[path = "conformance/mod.rs"]
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use client::Client;
use net::{ENDPOINTS, HEALTH, INNER, Net, remote};
use serde_json::json;
use tables::{Case, Cluster, Flow, NODE, cases, twin};
use windlass_proxy::{
    model::Family,
    rules::{Layout, base_chain_jumps},
};

/// The number of tries after which an endpoint with a share of one in three was chosen, except once in 10^14.
const TRIES: usize = 80;
/// On one host a rejection arrives while the socket is still sending, and takes effect only with the retransmission
/// after a second: a shorter timeout would count it as dropped.
const SILENCE: Duration = Duration::from_millis(1900);

/// The result of one packet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// The endpoint that answered, and whether the source was translated.
    Answer(String, bool),
    Refused,
    Silence,
    Other(String),
}

fn once(client: &Client, protocol: &str, source: IpAddr, to: SocketAddr) -> Seen {
    match client.ask(protocol, source, to, SILENCE) {
        Ok(text) => {
            let (who, peer) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{text:?} is an answer"));
            Seen::Answer(who.to_owned(), peer != source.to_string())
        }
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Seen::Refused,
        Err(e)
            if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
                || e.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32) =>
        {
            Seen::Silence
        }
        Err(e) => Seen::Other(e.to_string()),
    }
}

/// The possible results of a flow; all of them must occur.
fn wanted(flow: &Flow) -> BTreeSet<Seen> {
    let end = |end: &String| match end.as_str() {
        "REJECT" => Seen::Refused,
        "DROP" => Seen::Silence,
        // Not translated: it arrives at the owner of the address.
        "pass" | "ACCEPT" => Seen::Answer(SocketAddr::new(flow.destination, flow.port).to_string(), false),
        _ => Seen::Answer(end.clone(), flow.masqueraded),
    };
    flow.ends.iter().map(end).collect()
}

/// The failure of a flow, if any.
fn check(client: &Client, flow: &Flow) -> Option<String> {
    let wanted = wanted(flow);
    let mut seen = BTreeSet::new();
    for _ in 0..TRIES {
        seen.insert(once(client, &flow.protocol, flow.source, (flow.destination, flow.port).into()));
        if seen == wanted || !seen.is_subset(&wanted) {
            break;
        }
    }
    (seen != wanted).then(|| format!("{}: {seen:?}", flow.line))
}

/// One variant of the rules.
#[derive(Clone, Copy)]
struct Setting {
    variant: &'static str,
    family: Family,
    layout: Layout,
}

impl Setting {
    /// A table without our chains, then the jumps, then the rules. Behind the jumps, a firewall
    /// drops packets to the health check port.
    fn write(self, net: &Net, cluster: &Cluster) {
        let program = match self.family {
            Family::V4 => format!("iptables-{}-restore", self.variant),
            Family::V6 => format!("ip6tables-{}-restore", self.variant),
        };
        net.restore(&program, &[], &base_chain_jumps());
        let firewall = format!("*filter\n-A INPUT -i ext -p tcp --dport {HEALTH} -j DROP\nCOMMIT\n");
        net.restore(&program, &["--noflush"], &firewall);
        let text = cluster.clone().set(|c| c.layout = self.layout).text(self.family);
        net.restore(&program, &["--noflush"], &text);
        net.place_endpoints(&remote(cluster));
    }

    fn ip(self, four: &str) -> IpAddr {
        twin(four, self.family).parse().unwrap()
    }

    /// Sends all flows of a case; returns the failures.
    fn try_case(self, net: &Net, case: &Case) -> Vec<String> {
        self.write(net, &case.cluster);
        let remote = remote(&case.cluster);
        let flows = case.flows(self.family);
        let (placed, balanced): (Vec<&Flow>, Vec<&Flow>) =
            flows.iter().partition(|f| net.client(f.source, &remote).is_some());
        // Concurrently: most of the time is spent waiting.
        let mut wrong: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = placed
                .into_iter()
                .map(|flow| (flow, net.client(flow.source, &remote).unwrap()))
                .map(|(flow, client)| scope.spawn(move || check(&client, flow)))
                .collect();
            threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
        });
        // The others are from an address that the node has only temporarily.
        let check = |flow: &&Flow| net.with_address(flow.source, || check(&net.client_of_node(), flow));
        wrong.extend(balanced.iter().filter_map(check));
        wrong.into_iter().map(|found| format!("{}: {found}", case.name)).collect()
    }

    /// Without a service that needs it, the health check port stays behind the firewall. The loopback addresses of the
    /// node are unreachable from outside, though route_localnet is set for node ports.
    fn try_the_firewall(self, net: &Net) {
        let cluster = Cluster::new().with("a", json!({"clusterIP": "172.30.0.41"}), &[], &["1l"]);
        let outside = net.client_outside();
        let health = (self.ip(NODE[0]), HEALTH).into();
        self.write(net, &cluster);
        assert_eq!(once(&outside, "tcp", self.ip("203.0.113.2"), health), Seen::Silence);
        if self.family == Family::V4 {
            let loopback = || once(&outside, "tcp", self.ip("203.0.113.2"), ([127, 0, 0, 5], INNER).into());
            assert_eq!(loopback(), Seen::Silence);
            self.write(net, &cluster.set(|c| c.localhost_node_ports = false));
            assert_eq!(loopback(), Seen::Answer(format!("127.0.0.5:{INNER}"), false), "it is our rule that dropped it");
        }
    }

    /// Each endpoint gets its share of connections: Pearson's test, wrong once in a million times.
    fn try_the_spread(self, net: &Net) {
        const CONNECTIONS: usize = 700;
        for (n, critical) in [(2, 23.9), (3, 27.6), (ENDPOINTS, 38.3)] {
            let names: Vec<String> = (1..=n).map(|o| format!("{o}l")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let cluster = Cluster::new().with("a", json!({"clusterIP": "172.30.0.41"}), &[], &names);
            self.write(net, &cluster);
            let client = net.client(self.ip("10.0.0.2"), &BTreeSet::new()).unwrap();
            let mut counts: BTreeMap<Seen, f64> = BTreeMap::new();
            for _ in 0..CONNECTIONS {
                let seen = once(&client, "tcp", self.ip("10.0.0.2"), (self.ip("172.30.0.41"), 80).into());
                *counts.entry(seen).or_default() += 1.0;
            }
            assert_eq!(counts.len(), usize::from(n), "{counts:?}");
            let even = CONNECTIONS as f64 / f64::from(n);
            let chi_square: f64 = counts.values().map(|count| (count - even).powi(2) / even).sum();
            assert!(chi_square < critical, "{chi_square}: {counts:?}");
        }
    }
}

fn on_a_kernel(variant: &'static str, family: Family, layout: Layout) {
    let net = Net::new();
    let setting = Setting { variant, family, layout };
    let list = cases::all().list;
    let wrong: Vec<String> = list.iter().flat_map(|case| setting.try_case(&net, case)).collect();
    assert!(wrong.is_empty(), "{variant} {}:\n{}", family.name(), wrong.join("\n"));
    let count: usize = list.iter().map(|case| case.flows(family).len()).sum();
    assert!(count > 150, "{count} flows were sent");
    setting.try_the_firewall(&net);
    setting.try_the_spread(&net);
}

#[test]
fn ipv4_on_nf_tables() {
    on_a_kernel("nft", Family::V4, Layout::Flat);
}

#[test]
fn ipv6_on_nf_tables() {
    on_a_kernel("nft", Family::V6, Layout::Flat);
}

#[test]
fn ipv4_on_legacy() {
    on_a_kernel("legacy", Family::V4, Layout::Flat);
}

#[test]
fn ipv6_on_legacy() {
    on_a_kernel("legacy", Family::V6, Layout::Flat);
}

#[test]
fn ipv4_in_trees_on_nf_tables() {
    on_a_kernel("nft", Family::V4, Layout::Tree);
}

#[test]
fn ipv6_in_trees_on_nf_tables() {
    on_a_kernel("nft", Family::V6, Layout::Tree);
}

#[test]
fn ipv4_in_trees_on_legacy() {
    on_a_kernel("legacy", Family::V4, Layout::Tree);
}

#[test]
fn ipv6_in_trees_on_legacy() {
    on_a_kernel("legacy", Family::V6, Layout::Tree);
}
