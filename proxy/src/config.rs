//! The configuration of the proxy, and its errors.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use windlass_kit::repairs::Repairs;

use crate::{
    apply::Variant,
    model::{Cidr, Family, NodeFacts},
    rules::{Layout, LocalTraffic, NodePortDestinations, Settings},
    sysctls::Conntrack,
};

/// How to detect traffic that originates from pods of this node (kube-proxy: `detectLocalMode`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// By source: [`Config::cluster_cidrs`].
    #[default]
    ClusterCidr,
    /// By source: the pod CIDRs of the node.
    NodeCidr,
    /// By the name of the bridge that it arrives on.
    BridgeInterface(String),
    /// By the name prefix of the interface that it arrives on.
    InterfaceNamePrefix(String),
}

/// At which addresses of the node the node ports answer (kube-proxy: `nodePortAddresses`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// At all addresses.
    #[default]
    All,
    /// At the addresses of the Node object.
    Primary,
    /// At local addresses inside these ranges; a family without a range answers at all addresses.
    Ranges(Vec<Cidr>),
}

/// A constant page of the metrics server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Starts with a slash.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// The text.
    pub body: String,
}

/// Configuration of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The name of this node; endpoints on it are local.
    pub node_name: String,
    /// Addresses of this node while its Node object is not known. iptables must work for the family of the first.
    pub node_ips: Vec<IpAddr>,
    /// An address of this node that wins over those of its Node object; iptables must work for its family.
    pub bind_address: Option<IpAddr>,
    /// The cluster's pod CIDRs; the first of each family counts. None means that no traffic is known to be of pods.
    pub cluster_cidrs: Vec<Cidr>,
    /// How to detect local traffic.
    pub detect_local: DetectLocal,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Bit of the packet mark that means "masquerade": 0 to 31.
    pub masquerade_bit: u8,
    /// Where node ports answer.
    pub node_port_addresses: NodePortAddresses,
    /// Node ports answer at 127.0.0.1 as well.
    pub localhost_node_ports: bool,
    /// How often rules are compared with the kernel on legacy. A change that is pending for twice as long makes
    /// `/healthz` fail.
    pub sync_period: Duration,
    /// How changes of our rules by other programs are noticed: on nf_tables the kernel notifies of them; a query of the
    /// generation and a comparison find them without notifications. Tests turn some of these off.
    pub repairs: Repairs,
    /// The minimum time between two writes under constant change.
    pub min_sync_period: Duration,
    /// `/healthz` and `/livez`; `None` for no server.
    pub healthz_bind: Option<SocketAddr>,
    /// `/metrics`, `/proxyMode`, `/healthz`; `None` for no server.
    pub metrics_bind: Option<SocketAddr>,
    /// Further pages of the metrics server.
    pub pages: Vec<Page>,
    /// Fail when an address above cannot be bound, instead of retrying every 5 s.
    pub bind_hard_fail: bool,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// `spec.externalIPs` of Services get rules; kube-proxy's feature gate `AllowServiceExternalIPs`.
    pub external_ips: bool,
    /// Cluster IPs reject ports that they do not serve, and addresses of ServiceCIDRs without a Service drop what is
    /// sent to them, as in kube-proxy's nftables mode. Its iptables mode lets such packets leave the machine.
    pub cluster_ips_check: bool,
    /// Whether rules use nfacct counters; `None`: if the kernel supports them.
    pub nfacct: Option<bool>,
    /// Whether long chains become trees.
    pub layout: Layout,
    /// Which iptables back end.
    pub variant: Variant,
    /// File with the snapshot of the tables before the first rule of ours, for clean-up.
    pub table_snapshot: PathBuf,
    /// Program and arguments put before every command, such as `ip netns exec NAME`; for tests and
    /// for nodes whose network lives in another namespace.
    pub command_prefix: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            node_ips: Vec::new(),
            bind_address: None,
            cluster_cidrs: Cidr::parse("10.244.0.0/16").into_iter().collect(),
            detect_local: DetectLocal::default(),
            masquerade_all: false,
            masquerade_bit: 14,
            node_port_addresses: NodePortAddresses::default(),
            localhost_node_ports: true,
            sync_period: Duration::from_secs(30),
            repairs: Repairs::of_process().clone(),
            min_sync_period: Duration::from_secs(1),
            healthz_bind: Some(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 10256)),
            metrics_bind: Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10249)),
            pages: Vec::new(),
            bind_hard_fail: false,
            conntrack: Conntrack::default(),
            external_ips: true,
            cluster_ips_check: false,
            nfacct: None,
            layout: Layout::Auto,
            variant: Variant::default(),
            table_snapshot: "/run/windlass/proxy-before.json".into(),
            command_prefix: Vec::new(),
        }
    }
}

/// Why the proxy could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// iptables is missing or does not work.
    #[error(transparent)]
    Iptables(#[from] crate::apply::Error),
    /// A part of the proxy ended unexpectedly.
    #[error("{part} ended: {problem}")]
    Ended {
        /// Which part.
        part: &'static str,
        /// Why.
        problem: String,
    },
    /// An address that cannot be bound.
    #[error("the proxy cannot listen on {address} for {what}: {source}; free the port or set another address")]
    Listen {
        /// Health or metrics.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

/// A configuration that was validated: the only one that a proxy runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidConfig(Config);

impl std::ops::Deref for ValidConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.0
    }
}

impl ValidConfig {
    /// The same with further pages of the metrics server, which need no validation.
    #[must_use]
    pub fn with_pages(self, pages: Vec<Page>) -> Self {
        Self(Config { pages, ..self.0 })
    }
}

impl Config {
    /// Validates the configuration.
    ///
    /// # Errors
    /// All problems, as `field: reason`, with kube-proxy's names.
    pub fn validated(self) -> Result<ValidConfig, Vec<String>> {
        let named = |name: &str| {
            (1..=15).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'/')
        };
        let has_port = |at: Option<SocketAddr>| at.is_none_or(|at| at.port() != 0);
        let checks = [
            (self.masquerade_bit <= 31, "iptables.masqueradeBit", "must be from 0 to 31"),
            (!self.sync_period.is_zero(), "iptables.syncPeriod", "must be more than 0"),
            (
                self.min_sync_period <= self.sync_period,
                "iptables.minSyncPeriod",
                "must not be more than iptables.syncPeriod",
            ),
            (has_port(self.healthz_bind), "healthzBindAddress", "must have a port"),
            (has_port(self.metrics_bind), "metricsBindAddress", "must have a port"),
            (
                !matches!(&self.detect_local, DetectLocal::BridgeInterface(name) if !named(name)),
                "detectLocal.bridgeInterface",
                "must be the name of an interface (1 to 15 characters), which detectLocalMode needs",
            ),
            (
                !matches!(&self.detect_local, DetectLocal::InterfaceNamePrefix(name) if !named(name)),
                "detectLocal.interfaceNamePrefix",
                "must be the beginning of the names of interfaces (1 to 15 characters), which detectLocalMode needs",
            ),
        ];
        let problems: Vec<String> =
            checks.into_iter().filter(|(good, ..)| !good).map(|(_, field, why)| format!("{field}: {why}")).collect();
        if problems.is_empty() { Ok(ValidConfig(self)) } else { Err(problems) }
    }

    /// The family of the node's first address, for which iptables must work.
    pub(crate) fn primary_family(&self) -> Family {
        self.bind_address.or(self.node_ips.first().copied()).as_ref().map_or(Family::V4, Family::of)
    }

    /// Whether node ports answer at 127.0.0.1: enabled, and loopback is among the node port addresses.
    #[must_use]
    pub fn localhost_effective(&self) -> bool {
        self.localhost_node_ports
            && match &self.node_port_addresses {
                NodePortAddresses::All => true,
                NodePortAddresses::Primary => false,
                NodePortAddresses::Ranges(ranges) => {
                    let mut v4 = ranges.iter().filter(|r| r.family() == Family::V4).peekable();
                    v4.peek().is_none() || v4.any(Cidr::covers_loopback)
                }
            }
    }

    /// The settings of the rules of one family. `local` are the addresses of this node's interfaces, used only with
    /// ranges of node port addresses.
    #[must_use]
    pub fn settings(&self, family: Family, node: &NodeFacts, local: &[IpAddr]) -> Settings {
        let first_of = |list: &[Cidr]| list.iter().find(|c| c.family() == family).map(ToString::to_string);
        let local_traffic = match &self.detect_local {
            DetectLocal::ClusterCidr => first_of(&self.cluster_cidrs).map(LocalTraffic::Source),
            DetectLocal::NodeCidr => first_of(&node.pod_cidrs).map(LocalTraffic::Source),
            DetectLocal::BridgeInterface(name) => Some(LocalTraffic::Interface(name.clone())),
            DetectLocal::InterfaceNamePrefix(prefix) => Some(LocalTraffic::Interface(format!("{prefix}+"))),
        };
        let known = if node.addresses.is_empty() { &self.node_ips } else { &node.addresses };
        let of_family = |ip: &IpAddr| Family::of(ip) == family;
        let node_ip = self.bind_address.filter(of_family).or_else(|| known.iter().copied().find(of_family));
        let node_ports = match &self.node_port_addresses {
            NodePortAddresses::All => NodePortDestinations::All,
            NodePortAddresses::Primary => {
                node_ip.map_or(NodePortDestinations::All, |ip| NodePortDestinations::Addresses(vec![ip]))
            }
            NodePortAddresses::Ranges(ranges) => {
                let ranges: Vec<&Cidr> = ranges.iter().filter(|r| r.family() == family).collect();
                if ranges.is_empty() || ranges.iter().any(|r| r.is_all()) {
                    NodePortDestinations::All
                } else {
                    let mut hits: Vec<IpAddr> =
                        local.iter().copied().filter(|ip| ranges.iter().any(|r| r.contains(ip))).collect();
                    hits.sort_unstable();
                    hits.dedup();
                    NodePortDestinations::Addresses(hits)
                }
            }
        };
        Settings {
            masquerade_mark: 1u32.checked_shl(self.masquerade_bit.into()).unwrap_or(1 << 14),
            masquerade_all: self.masquerade_all,
            localhost_node_ports: family == Family::V4 && self.localhost_effective(),
            local_traffic,
            node_ports,
            node_ip,
            zone: node.zone.clone(),
            counters: self.nfacct.unwrap_or(false),
            external_ips: self.external_ips,
            cluster_ips_check: self.cluster_ips_check,
            layout: self.layout,
            ..Settings::new(family)
        }
    }
}

impl Config {
    /// Where the servers of health check node ports listen for a family: at all addresses, at those of the Node, or at
    /// the local ones inside the ranges for node ports.
    pub(crate) fn health_check_addresses(&self, family: Family, node: &NodeFacts, local: &[IpAddr]) -> Vec<IpAddr> {
        let any = match family {
            Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        match self.settings(family, node, local).node_ports {
            NodePortDestinations::All => vec![any],
            NodePortDestinations::Addresses(list) => list,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Health check node ports are where node ports are, also when the node gets an address later.
    #[test]
    fn health_checks_follow_the_addresses_of_node_ports() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let range = NodePortAddresses::Ranges(Cidr::parse("192.0.2.0/24").into_iter().collect());
        let config = |node_port_addresses| Config { node_port_addresses, ..Config::default() };
        let at = |config: &Config, node: &[&str], local: &[&str]| {
            let node = NodeFacts { addresses: node.iter().map(|text| ip(text)).collect(), ..NodeFacts::default() };
            let local: Vec<IpAddr> = local.iter().map(|text| ip(text)).collect();
            config.health_check_addresses(Family::V4, &node, &local)
        };
        let by_range = config(range);
        assert_eq!(at(&by_range, &[], &["127.0.0.1"]), [] as [IpAddr; 0]);
        assert_eq!(at(&by_range, &[], &["127.0.0.1", "192.0.2.7", "198.51.100.7"]), [ip("192.0.2.7")]);
        assert_eq!(at(&by_range, &[], &["192.0.2.8", "192.0.2.7"]), [ip("192.0.2.7"), ip("192.0.2.8")]);
        let primary = config(NodePortAddresses::Primary);
        assert_eq!(at(&primary, &[], &["192.0.2.7"]), [ip("0.0.0.0")]);
        assert_eq!(at(&primary, &["192.0.2.9"], &["192.0.2.7"]), [ip("192.0.2.9")]);
        assert_eq!(at(&config(NodePortAddresses::All), &["192.0.2.9"], &["192.0.2.7"]), [ip("0.0.0.0")]);
    }
}
