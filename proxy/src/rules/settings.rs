//! What the rules of one address family depend on besides Services and endpoints.

use std::net::IpAddr;

use crate::model::{Cidr, Family};

/// How rules match traffic that originates from pods of this node (kube-proxy: `LocalTrafficDetector`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalTraffic {
    /// By source address: a CIDR.
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
    /// Above 64 rules of a dispatch chain and above 16 endpoints of a service port; up to there as kube-proxy writes.
    #[default]
    Auto,
    /// Never: as kube-proxy writes.
    Flat,
    /// Always.
    Tree,
}

impl Layout {
    /// Whether a chain of `lines` rules becomes a tree, where `max_flat` is the most that a flat chain has.
    #[must_use]
    pub const fn is_tree(self, lines: usize, max_flat: usize) -> bool {
        match self {
            Self::Auto => lines > max_flat,
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

/// Settings of the rules of one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Settings {
    /// Which family.
    pub family: Family,
    /// The packet mark, a single bit, that requests masquerading.
    pub masquerade_mark: u32,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// The iptables program knows `--random-fully`.
    pub random_fully: bool,
    /// Node ports answer at 127.0.0.1 too (IPv4 only).
    pub localhost_node_ports: bool,
    /// Drop packets of conntrack state INVALID; off where `nf_conntrack_tcp_be_liberal` is set.
    pub drop_invalid: bool,
    /// The kernel supports nfacct counters, for dropped packets and for node ports at 127.0.0.1.
    pub counters: bool,
    /// The kernel has the match `recent` (xt_recent), without which there is no session affinity.
    pub recent: bool,
    /// The kernel has the match `sctp` (xt_sctp), without which SCTP ports get no rules.
    pub sctp: bool,
    /// `spec.externalIPs` of Services get rules.
    pub external_ips: bool,
    /// Cluster IPs reject what they do not serve, as in kube-proxy's nftables mode.
    pub cluster_ips_check: bool,
    /// The ranges of cluster IPs, as far as known: with the check, addresses of no Service drop what is sent to them.
    pub service_cidrs: Vec<Cidr>,
    /// How to detect local traffic; `None` when that is not possible.
    pub local_traffic: Option<LocalTraffic>,
    /// Where node ports answer.
    pub node_ports: NodePortDestinations,
    /// This node's address of the family.
    pub node_ip: Option<IpAddr>,
    /// Our node's zone.
    pub zone: String,
    /// Whether long chains become trees.
    pub layout: Layout,
    /// A large cluster: comments in endpoint rules are left out. kube-proxy does so above 1,000 endpoints
    /// (`largeClusterEndpointsThreshold`); here they come back at 900. Rules that are written already follow with the
    /// next change of their Service, or within the hour.
    pub large: bool,
}

impl Settings {
    /// The defaults of a family: mark bit 14 (kube-proxy's `masqueradeBit`), no detection of local traffic.
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
            cluster_ips_check: false,
            service_cidrs: Vec::new(),
            local_traffic: None,
            node_ports: NodePortDestinations::All,
            node_ip: None,
            zone: String::new(),
            layout: Layout::Auto,
            large: false,
        }
    }
}
