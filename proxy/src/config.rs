//! What a caller can set, and what can go wrong at start.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use crate::{
    model::{Cidr, Family, Model, NodeFacts, objects},
    plan::{Ledger, Limit, Step},
    rules::{Layout, LocalTraffic, NodePortDestinations, Settings},
    sysctls::Conntrack,
};

/// How traffic that starts in this node's pods is told from other traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// By source: [`Config::cluster_cidrs`].
    #[default]
    ClusterCidr,
    /// By source: the node's own pod ranges.
    NodeCidr,
    /// By the name of the bridge it comes in on.
    BridgeInterface(String),
    /// By the start of the name of the interface it comes in on.
    InterfaceNamePrefix(String),
}

/// At which of the node's addresses node ports answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// At all.
    #[default]
    All,
    /// At the node's own addresses.
    Primary,
    /// At local addresses inside these ranges; a family without a range answers at all.
    Ranges(Vec<Cidr>),
}

/// Which of the two iptables programs to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Variant {
    /// The one that the host's other rules use; else the one called `iptables`.
    #[default]
    Auto,
    /// `iptables-nft`.
    Nft,
    /// `iptables-legacy`.
    Legacy,
}

/// A fixed text under a path of the metrics server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Starts with a slash.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// The text.
    pub body: String,
}

/// Settings of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This node's name; endpoints with it are local.
    pub node_name: String,
    /// Addresses of this node, for as long as its Node object is not known.
    pub node_ips: Vec<IpAddr>,
    /// The cluster's pod ranges; the first of each family counts.
    pub cluster_cidrs: Vec<Cidr>,
    /// How local traffic is told.
    pub detect_local: DetectLocal,
    /// Masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Bit of the packet mark that means "masquerade": 0 to 31.
    pub masquerade_bit: u8,
    /// Where node ports answer.
    pub node_port_addresses: NodePortAddresses,
    /// Node ports answer at 127.0.0.1 as well.
    pub localhost_node_ports: bool,
    /// How often rules are checked against the kernel on legacy; health is bad when a change waits
    /// for twice as long.
    pub sync_period: Duration,
    /// The least time between two writes when changes come without end.
    pub min_sync_period: Duration,
    /// `/healthz` and `/livez`; `None` for no server.
    pub healthz_bind: Option<SocketAddr>,
    /// `/metrics`, `/proxyMode`, `/healthz`; `None` for no server.
    pub metrics_bind: Option<SocketAddr>,
    /// What is told beside the metrics.
    pub pages: Vec<Page>,
    /// Fail when an address above cannot be bound, instead of trying again each 5 s.
    pub bind_hard_fail: bool,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// Services' external IPs count; upstream's gate `AllowServiceExternalIPs`.
    pub external_ips: bool,
    /// Whether rules feed the kernel's named packet counters; `None`: if it has them.
    pub nfacct: Option<bool>,
    /// Whether long chains become trees.
    pub layout: Layout,
    /// Which iptables.
    pub variant: Variant,
    /// Where it is written down what the tables were before the first rule of ours, for clean-up.
    pub record: PathBuf,
    /// Program and arguments put before every command, such as `ip netns exec NAME`; for tests and
    /// for nodes whose network lives in another namespace.
    pub command_prefix: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            node_ips: Vec::new(),
            cluster_cidrs: Cidr::parse("10.244.0.0/16").into_iter().collect(),
            detect_local: DetectLocal::default(),
            masquerade_all: false,
            masquerade_bit: 14,
            node_port_addresses: NodePortAddresses::default(),
            localhost_node_ports: true,
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
            healthz_bind: Some(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 10256)),
            metrics_bind: Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10249)),
            pages: Vec::new(),
            bind_hard_fail: false,
            conntrack: Conntrack::default(),
            external_ips: true,
            nfacct: None,
            layout: Layout::Auto,
            variant: Variant::default(),
            record: "/run/windlass/proxy-before.json".into(),
            command_prefix: Vec::new(),
        }
    }
}

/// Why the proxy could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be.
    #[error("the proxy cannot start: {field} {problem}")]
    Config {
        /// The setting.
        field: &'static str,
        /// What is wrong and what is right.
        problem: String,
    },
    /// iptables is missing or does not work.
    #[error(transparent)]
    Iptables(#[from] crate::apply::Error),
    /// A part of the proxy ended.
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

impl Config {
    /// Refuses settings that contradict themselves.
    ///
    /// # Errors
    /// Names the first bad field.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |field, problem: &str| Err(Error::Config { field, problem: problem.to_owned() });
        if self.masquerade_bit > 31 {
            return bad("masqueradeBit", "must be from 0 to 31");
        }
        if self.sync_period.is_zero() {
            return bad("syncPeriod", "must be more than 0");
        }
        if self.min_sync_period > self.sync_period {
            return bad("minSyncPeriod", "must not be more than syncPeriod");
        }
        match &self.detect_local {
            DetectLocal::BridgeInterface(name) | DetectLocal::InterfaceNamePrefix(name)
                if name.is_empty()
                    || name.len() > 15
                    || !name.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'/') =>
            {
                bad("detectLocal", "needs the name of an interface (1 to 15 characters)")
            }
            _ => Ok(()),
        }
    }

    /// Whether node ports answer at 127.0.0.1: asked for, and loopback is among the addresses.
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

    /// The rules' settings for one family. `local` are the addresses of this machine's interfaces,
    /// used only with ranges of node port addresses.
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
        let node_ip = known.iter().copied().find(|ip| Family::of(ip) == family);
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
            layout: self.layout,
            ..Settings::new(family)
        }
    }
}

impl Config {
    /// Where the servers of health check node ports listen for a family: at all of its addresses, at the node's own,
    /// or at the local ones inside the ranges for node ports.
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

/// More endpoints than this, and comments in endpoint rules are left out, as upstream does.
pub(crate) const LARGE_CLUSTER: usize = 1000;
/// No more than this, and they come back.
pub(crate) const NO_LONGER_LARGE: usize = 900;

/// Renders the rules for objects, as text for `iptables-restore`, without touching the kernel. The
/// Node with the configured name, if it is among `nodes`, tells zone, addresses and pod ranges.
#[must_use]
pub fn rules_from_objects(
    services: &[objects::Service],
    slices: &[objects::EndpointSlice],
    nodes: &[objects::Node],
    config: &Config,
    family: Family,
) -> String {
    rules_of_objects(services, slices, nodes, config, family, false)
}

/// The same for a cluster that may have been a large one until now.
pub(crate) fn rules_of_objects(
    services: &[objects::Service],
    slices: &[objects::EndpointSlice],
    nodes: &[objects::Node],
    config: &Config,
    family: Family,
    large: bool,
) -> String {
    let node = nodes
        .iter()
        .find(|n| n.metadata.name.as_deref() == Some(&config.node_name))
        .map(NodeFacts::of)
        .unwrap_or_default();
    let mut model = Model::default();
    for service in services {
        model.put_service(service);
    }
    for slice in slices {
        model.put_slice(slice, &config.node_name);
    }
    // Every machine has these beside its own.
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let local: Vec<IpAddr> = loopback.into_iter().chain(config.node_ips.iter().copied()).collect();
    model.take_changes();
    let settings = Settings { large: is_large(&model, family, large), ..config.settings(family, &node, &local) };
    let mut out = String::new();
    each_step(&model, Ledger::new(settings), Limit::None, |step| out.push_str(&step.text));
    out
}

/// Whether comments are left out, as they `were` until now: an autoscaler that works around the number does not have
/// all rules written again each time.
pub(crate) fn is_large(model: &Model, family: Family, was: bool) -> bool {
    model.endpoint_count(family) > if was { NO_LONGER_LARGE } else { LARGE_CLUSTER }
}

/// The rules of a model, whatever the kernel holds, in pieces as large as `limit` says.
pub(crate) fn each_step(model: &Model, mut ledger: Ledger, limit: Limit, mut then: impl FnMut(&Step)) {
    model.services().for_each(|(id, _)| ledger.touch(id));
    while let Some(step) = ledger.next_step(model, limit) {
        then(&step);
        ledger.commit(&step);
    }
}
