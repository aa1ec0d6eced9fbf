//! The chains that always exist, the jumps to them from the base chains, and their constant rules. Names, jumps and
//! rules are those of kube-proxy (pkg/proxy/iptables/proxier.go).

use std::{collections::BTreeSet, fmt::Write as _};

use super::{NodePortDestinations, Settings};
use crate::model::Family;

/// A table of netfilter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Accepts, drops and rejects packets.
    Filter,
    /// Translates addresses.
    Nat,
}

impl Table {
    /// Both, in the order in which they are written.
    pub const BOTH: [Self; 2] = [Self::Filter, Self::Nat];

    /// As iptables calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl AsRef<str> for Table {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

/// A user-defined chain that exists whatever Services there are. The order is that of the restore input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum StaticChain {
    FilterServices,
    FilterExternal,
    FilterForward,
    FilterNodePorts,
    FilterProxyFirewall,
    FilterKubeletFirewall,
    NatServices,
    NatNodePorts,
    NatPostrouting,
    NatMarkMasq,
}

impl StaticChain {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::FilterServices,
        Self::FilterExternal,
        Self::FilterForward,
        Self::FilterNodePorts,
        Self::FilterProxyFirewall,
        Self::FilterKubeletFirewall,
        Self::NatServices,
        Self::NatNodePorts,
        Self::NatPostrouting,
        Self::NatMarkMasq,
    ];

    /// The chain's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FilterServices | Self::NatServices => "KUBE-SERVICES",
            Self::FilterExternal => "KUBE-EXTERNAL-SERVICES",
            Self::FilterForward => "KUBE-FORWARD",
            Self::FilterNodePorts | Self::NatNodePorts => "KUBE-NODEPORTS",
            Self::FilterProxyFirewall => "KUBE-PROXY-FIREWALL",
            Self::FilterKubeletFirewall => "KUBE-FIREWALL",
            Self::NatPostrouting => "KUBE-POSTROUTING",
            Self::NatMarkMasq => "KUBE-MARK-MASQ",
        }
    }

    /// The table it lives in.
    #[must_use]
    pub const fn table(self) -> Table {
        match self {
            Self::NatServices | Self::NatNodePorts | Self::NatPostrouting | Self::NatMarkMasq => Table::Nat,
            _ => Table::Filter,
        }
    }

    /// The static chain of this name in a table.
    #[must_use]
    pub fn find(table: Table, name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.table() == table && f.name() == name)
    }
}

/// A static chain that dispatches packets to service ports: every service port adds rules to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DispatchChain {
    /// nat KUBE-SERVICES.
    Services = 0,
    /// nat KUBE-NODEPORTS.
    NodePorts = 1,
    /// filter KUBE-SERVICES: rejects cluster IPs without endpoints.
    Refused = 2,
    /// filter KUBE-EXTERNAL-SERVICES: rejects external addresses and node ports without endpoints.
    External = 3,
    /// filter KUBE-NODEPORTS: accepts health check node ports.
    HealthChecks = 4,
    /// filter KUBE-PROXY-FIREWALL: drops what load balancer source ranges do not allow.
    Firewall = 5,
}

impl DispatchChain {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// All of them, by index.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Services, Self::NodePorts, Self::Refused, Self::External, Self::HealthChecks, Self::Firewall];

    /// The static chain that it is.
    #[must_use]
    pub const fn static_chain(self) -> StaticChain {
        match self {
            Self::Services => StaticChain::NatServices,
            Self::NodePorts => StaticChain::NatNodePorts,
            Self::Refused => StaticChain::FilterServices,
            Self::External => StaticChain::FilterExternal,
            Self::HealthChecks => StaticChain::FilterNodePorts,
            Self::Firewall => StaticChain::FilterProxyFirewall,
        }
    }
}

/// A rule in a base chain that jumps to a static chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Jump {
    /// The base chain.
    pub from: &'static str,
    /// The jump target; its table is the table of the rule.
    pub to: StaticChain,
    /// Matches only packets of conntrack state NEW.
    pub new_only: bool,
    /// Comment; empty for none.
    pub comment: &'static str,
}

impl Jump {
    /// The rule behind the chain's name.
    #[must_use]
    pub fn rule(&self) -> String {
        let state = if self.new_only { "-m conntrack --ctstate NEW " } else { "" };
        let comment = match self.comment {
            "" => String::new(),
            text => format!("-m comment --comment \"{text}\" "),
        };
        format!("{state}{comment}-j {}", self.to.name())
    }
}

const EXTERNAL: &str = "kubernetes externally-visible service portals";
const PORTALS: &str = "kubernetes service portals";
const BALANCER: &str = "kubernetes load balancer firewall";

const fn jump(from: &'static str, to: StaticChain, new_only: bool, comment: &'static str) -> Jump {
    Jump { from, to, new_only, comment }
}

/// The end of the comments of the rules that check cluster IPs: of other ports, and of addresses without a Service.
pub const CLUSTER_IPS_CHECK: [&str; 2] = ["and no other port of the cluster IP", "unallocated cluster IPs"];

/// All jumps in the order in which they are inserted (`-I`), each at the top of its base chain.
pub const JUMPS: [Jump; 14] = [
    jump("INPUT", StaticChain::FilterExternal, true, EXTERNAL),
    jump("FORWARD", StaticChain::FilterExternal, true, EXTERNAL),
    jump("INPUT", StaticChain::FilterNodePorts, false, "kubernetes health check service ports"),
    jump("FORWARD", StaticChain::FilterServices, true, PORTALS),
    jump("OUTPUT", StaticChain::FilterServices, true, PORTALS),
    jump("FORWARD", StaticChain::FilterForward, false, "kubernetes forwarding rules"),
    jump("INPUT", StaticChain::FilterProxyFirewall, true, BALANCER),
    jump("OUTPUT", StaticChain::FilterProxyFirewall, true, BALANCER),
    jump("FORWARD", StaticChain::FilterProxyFirewall, true, BALANCER),
    jump("OUTPUT", StaticChain::NatServices, false, PORTALS),
    jump("PREROUTING", StaticChain::NatServices, false, PORTALS),
    jump("POSTROUTING", StaticChain::NatPostrouting, false, "kubernetes postrouting rules"),
    jump("INPUT", StaticChain::FilterKubeletFirewall, false, ""),
    jump("OUTPUT", StaticChain::FilterKubeletFirewall, false, ""),
];

/// The base chains with all jumps, as restore input: what rendered rules lack of a complete ruleset.
#[must_use]
pub fn base_chain_jumps() -> String {
    let mut text = String::new();
    for table in Table::BOTH {
        // Each was inserted at the top, so the last comes first.
        let jumps = || JUMPS.iter().rev().filter(|j| j.to.table() == table);
        let base_chains: BTreeSet<&str> = jumps().map(|j| j.from).collect();
        let ours: BTreeSet<&str> = jumps().map(|j| j.to.name()).collect();
        let _ = writeln!(text, "*{}", table.name());
        base_chains.iter().for_each(|chain| text.push_str(&format!(":{chain} ACCEPT [0:0]\n")));
        ours.iter().for_each(|chain| text.push_str(&format!(":{chain} - [0:0]\n")));
        jumps().for_each(|jump| text.push_str(&format!("-A {} {}\n", jump.from, jump.rule())));
        text.push_str("COMMIT\n");
    }
    text
}

/// Rendered rules together with the base chains and all jumps, table by table. Unlike [`base_chain_jumps`] followed by
/// the rules, no table comes twice, so that a restore without `--noflush` takes it as well.
#[must_use]
pub fn with_base_chains(rendered: &str) -> String {
    let base_chain_jumps = base_chain_jumps();
    let mut out = String::with_capacity(rendered.len() + base_chain_jumps.len());
    for table in Table::BOTH {
        let (mut heads, mut rules): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        let mut known = BTreeSet::new();
        for text in [rendered, base_chain_jumps.as_str()] {
            let mut inside = false;
            for line in text.lines() {
                if let Some(name) = line.strip_prefix('*') {
                    inside = name == table.name();
                } else if inside && line.starts_with(':') {
                    if known.insert(line.split(' ').next()) {
                        heads.push(line);
                    }
                } else if inside && line != "COMMIT" {
                    rules.push(line);
                }
            }
        }
        let lines = heads.iter().chain(&rules);
        out.extend([format!("*{}\n", table.name())]);
        lines.for_each(|line| out.extend([*line, "\n"]));
        out.push_str("COMMIT\n");
    }
    out
}

/// Whether KUBE-FIREWALL, the chain that kube-proxy shares with the kubelet, gets a rule; otherwise its content is left
/// alone.
#[must_use]
pub fn writes_kubelet_firewall(settings: &Settings) -> bool {
    settings.family == Family::V4 && settings.localhost_node_ports
}

/// The rules of a static chain that do not depend on Services; they follow those of the service ports.
#[must_use]
pub fn constant_rules(settings: &Settings, chain: StaticChain) -> String {
    let mark = format!("{:#010x}", settings.masquerade_mark);
    let mut text = String::new();
    match chain {
        StaticChain::NatPostrouting => {
            let random = if settings.random_fully { " --random-fully" } else { "" };
            let _ = write!(
                text,
                "-A KUBE-POSTROUTING -m mark ! --mark {mark}/{mark} -j RETURN\n\
                 -A KUBE-POSTROUTING -j MARK --xor-mark {mark}\n\
                 -A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" \
                 -j MASQUERADE{random}\n"
            );
        }
        StaticChain::NatMarkMasq => {
            let _ = writeln!(text, "-A KUBE-MARK-MASQ -j MARK --or-mark {mark}");
        }
        StaticChain::NatServices => node_port_jump(settings, &mut text),
        // Behind all cluster IPs (pkg/proxy/nftables/proxier.go, `cluster-ips-check`).
        StaticChain::FilterServices => {
            for range in settings.service_cidrs.iter().filter(|_| settings.cluster_ips_check) {
                let _ = writeln!(
                    text,
                    "-A KUBE-SERVICES -m comment --comment \"{}\" -d {range} -j DROP",
                    CLUSTER_IPS_CHECK[1]
                );
            }
        }
        StaticChain::FilterKubeletFirewall if writes_kubelet_firewall(settings) => text.push_str(
            "-A KUBE-FIREWALL -m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 \
             ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n",
        ),
        StaticChain::FilterForward => {
            if settings.drop_invalid {
                let counter =
                    if settings.counters { " -m nfacct --nfacct-name ct_state_invalid_dropped_pkts" } else { "" };
                let _ = writeln!(text, "-A KUBE-FORWARD -m conntrack --ctstate INVALID{counter} -j DROP");
            }
            let _ = write!(
                text,
                "-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark}/{mark} -j ACCEPT\n\
                 -A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" \
                 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
            );
        }
        _ => {}
    }
    text
}

fn node_port_jump(settings: &Settings, text: &mut String) {
    const NOTE: &str = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let start = format!("-A KUBE-SERVICES -m comment --comment \"{NOTE}\"");
    match &settings.node_ports {
        NodePortDestinations::All => {
            let except = match settings.family {
                Family::V6 => " ! -d ::1/128",
                Family::V4 if !settings.localhost_node_ports => " ! -d 127.0.0.0/8",
                Family::V4 => "",
            };
            let _ = writeln!(text, "{start} -m addrtype --dst-type LOCAL{except} -j KUBE-NODEPORTS");
        }
        NodePortDestinations::Addresses(list) => {
            for ip in list.iter().filter(|ip| Family::of(ip) == settings.family) {
                if ip.is_loopback() && !(settings.family == Family::V4 && settings.localhost_node_ports) {
                    continue;
                }
                let _ = writeln!(text, "{start} -d {ip} -j KUBE-NODEPORTS");
            }
        }
    }
}
