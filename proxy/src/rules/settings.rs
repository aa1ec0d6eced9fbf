//! What the rules of one family depend on beside Services and endpoints.

use std::net::IpAddr;

use crate::model::Family;

/// How a rule tells traffic that starts in this node's pods, as iptables matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalTraffic {
    /// By source address: a range.
    Source(String),
    /// By interface name; a trailing `+` makes it a prefix.
    Interface(String),
}

impl LocalTraffic {
    /// The match for local traffic.
    #[must_use]
    pub fn matching(&self) -> String {
        match self {
            Self::Source(cidr) => format!("-s {cidr}"),
            Self::Interface(name) => format!("-i {name}"),
        }
    }

    /// The match for all other traffic.
    #[must_use]
    pub fn not_matching(&self) -> String {
        format!("! {}", self.matching())
    }
}

/// Whether long chains become trees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// Above 64 lines of a dispatching chain and 16 endpoints of a service port; up to there as upstream writes.
    #[default]
    Auto,
    /// Never: as upstream writes.
    Flat,
    /// Always.
    Tree,
}

impl Layout {
    /// Whether a chain of `lines`, of which `most` are few, becomes a tree.
    #[must_use]
    pub const fn is_tree(self, lines: usize, most: usize) -> bool {
        match self {
            Self::Auto => lines > most,
            Self::Flat => false,
            Self::Tree => lines > 1,
        }
    }
}

/// At which addresses node ports answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortDestinations {
    /// At every local address.
    All,
    /// At these only.
    Addresses(Vec<IpAddr>),
}

/// Settings of one family's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Settings {
    /// Which family.
    pub family: Family,
    /// The bit that marks packets to masquerade.
    pub masquerade_mark: u32,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// The iptables program knows `--random-fully`.
    pub random_fully: bool,
    /// Node ports answer at 127.0.0.1 too (IPv4 only).
    pub localhost_node_ports: bool,
    /// Drop packets that connection tracking finds invalid.
    pub drop_invalid: bool,
    /// The kernel has counters for dropped and localhost packets.
    pub counters: bool,
    /// The kernel has the match `recent`, without which there is no session affinity.
    pub recent: bool,
    /// The kernel has the match `sctp`, without which SCTP ports get no rules.
    pub sctp: bool,
    /// Services' external IPs count.
    pub external_ips: bool,
    /// How local traffic is told; `None` when it cannot be.
    pub local_traffic: Option<LocalTraffic>,
    /// Where node ports answer.
    pub node_ports: NodePortDestinations,
    /// This node's address of the family.
    pub node_ip: Option<IpAddr>,
    /// Our node's zone.
    pub zone: String,
    /// Whether long chains become trees.
    pub layout: Layout,
    /// More than 1,000 endpoints, and not fewer than 900 since: comments in endpoint rules are left out, as upstream does.
    pub large: bool,
}

impl Settings {
    /// Plain settings of a family: mark bit 14, nothing known about pods.
    #[must_use]
    pub const fn new(family: Family) -> Self {
        Self {
            family,
            masquerade_mark: 1 << 14,
            masquerade_all: false,
            random_fully: true,
            localhost_node_ports: matches!(family, Family::V4),
            drop_invalid: true,
            counters: false,
            recent: true,
            sctp: true,
            external_ips: true,
            local_traffic: None,
            node_ports: NodePortDestinations::All,
            node_ip: None,
            zone: String::new(),
            layout: Layout::Auto,
            large: false,
        }
    }
}
