//! The chains that always exist, the jumps that lead to them, and their constant rules.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{NodePortDestinations, Settings};
use crate::model::Family;

/// A table of netfilter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Accepts and refuses.
    Filter,
    /// Rewrites addresses.
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

/// A chain with a fixed name. The order is that of the restore text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Fixed {
    FilterServices,
    FilterExternal,
    FilterForward,
    FilterNodePorts,
    FilterProxyFirewall,
    FilterFirewall,
    NatServices,
    NatNodePorts,
    NatPostrouting,
    NatMarkMasq,
}

impl Fixed {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::FilterServices,
        Self::FilterExternal,
        Self::FilterForward,
        Self::FilterNodePorts,
        Self::FilterProxyFirewall,
        Self::FilterFirewall,
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
            Self::FilterFirewall => "KUBE-FIREWALL",
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

    /// The fixed chain of a name in a table.
    #[must_use]
    pub fn find(table: Table, name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.table() == table && f.name() == name)
    }
}

/// Which fixed chains service ports add lines to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Top {
    /// nat KUBE-SERVICES.
    Services = 0,
    /// nat KUBE-NODEPORTS.
    NodePorts = 1,
    /// filter KUBE-SERVICES: cluster IPs without endpoints.
    Refused = 2,
    /// filter KUBE-EXTERNAL-SERVICES: other addresses without endpoints.
    External = 3,
    /// filter KUBE-NODEPORTS: health check node ports.
    HealthChecks = 4,
    /// filter KUBE-PROXY-FIREWALL: load balancer source ranges.
    Firewall = 5,
}

impl Top {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// All of them, by index.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Services, Self::NodePorts, Self::Refused, Self::External, Self::HealthChecks, Self::Firewall];

    /// The chain that takes the lines.
    #[must_use]
    pub const fn fixed(self) -> Fixed {
        match self {
            Self::Services => Fixed::NatServices,
            Self::NodePorts => Fixed::NatNodePorts,
            Self::Refused => Fixed::FilterServices,
            Self::External => Fixed::FilterExternal,
            Self::HealthChecks => Fixed::FilterNodePorts,
            Self::Firewall => Fixed::FilterProxyFirewall,
        }
    }
}

/// A rule in a built-in chain that leads to one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Jump {
    /// The built-in chain.
    pub from: &'static str,
    /// Where it leads; its table is the jump's table.
    pub to: Fixed,
    /// Only for new connections.
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

const fn jump(from: &'static str, to: Fixed, new_only: bool, comment: &'static str) -> Jump {
    Jump { from, to, new_only, comment }
}

/// All jumps in the order in which they are inserted, each at the top of its chain.
pub const JUMPS: [Jump; 14] = [
    jump("INPUT", Fixed::FilterExternal, true, EXTERNAL),
    jump("FORWARD", Fixed::FilterExternal, true, EXTERNAL),
    jump("INPUT", Fixed::FilterNodePorts, false, "kubernetes health check service ports"),
    jump("FORWARD", Fixed::FilterServices, true, PORTALS),
    jump("OUTPUT", Fixed::FilterServices, true, PORTALS),
    jump("FORWARD", Fixed::FilterForward, false, "kubernetes forwarding rules"),
    jump("INPUT", Fixed::FilterProxyFirewall, true, BALANCER),
    jump("OUTPUT", Fixed::FilterProxyFirewall, true, BALANCER),
    jump("FORWARD", Fixed::FilterProxyFirewall, true, BALANCER),
    jump("OUTPUT", Fixed::NatServices, false, PORTALS),
    jump("PREROUTING", Fixed::NatServices, false, PORTALS),
    jump("POSTROUTING", Fixed::NatPostrouting, false, "kubernetes postrouting rules"),
    jump("INPUT", Fixed::FilterFirewall, false, ""),
    jump("OUTPUT", Fixed::FilterFirewall, false, ""),
];

/// The built-in chains with all jumps, as text: what rendered rules lack of a whole rule set.
#[must_use]
pub fn entrances() -> String {
    let mut text = String::new();
    for table in Table::BOTH {
        // Each was inserted at the top, so the last comes first.
        let jumps = || JUMPS.iter().rev().filter(|j| j.to.table() == table);
        let built_in: BTreeSet<&str> = jumps().map(|j| j.from).collect();
        let ours: BTreeSet<&str> = jumps().map(|j| j.to.name()).collect();
        let _ = writeln!(text, "*{}", table.name());
        built_in.iter().for_each(|chain| text.push_str(&format!(":{chain} ACCEPT [0:0]\n")));
        ours.iter().for_each(|chain| text.push_str(&format!(":{chain} - [0:0]\n")));
        jumps().for_each(|jump| text.push_str(&format!("-A {} {}\n", jump.from, jump.rule())));
        text.push_str("COMMIT\n");
    }
    text
}

/// Rendered rules with what they lack of a whole rule set, table by table: the built-in chains with all jumps. Unlike
/// with [`entrances`] before them, no table comes twice, so that a restore that flushes first reads it as well.
#[must_use]
pub fn with_base_chains(rendered: &str) -> String {
    let entrances = entrances();
    let mut out = String::with_capacity(rendered.len() + entrances.len());
    for table in Table::BOTH {
        let (mut heads, mut rules): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        let mut known = BTreeSet::new();
        for text in [rendered, entrances.as_str()] {
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

/// Whether KUBE-FIREWALL gets our rule; otherwise its content is not touched.
#[must_use]
pub fn writes_firewall(settings: &Settings) -> bool {
    settings.family == Family::V4 && settings.localhost_node_ports
}

/// The rules that a fixed chain holds beside (after) the lines of service ports.
#[must_use]
pub fn constant_rules(settings: &Settings, chain: Fixed) -> String {
    let mark = format!("{:#010x}", settings.masquerade_mark);
    let mut text = String::new();
    match chain {
        Fixed::NatPostrouting => {
            let random = if settings.random_fully { " --random-fully" } else { "" };
            let _ = write!(
                text,
                "-A KUBE-POSTROUTING -m mark ! --mark {mark}/{mark} -j RETURN\n\
                 -A KUBE-POSTROUTING -j MARK --xor-mark {mark}\n\
                 -A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" \
                 -j MASQUERADE{random}\n"
            );
        }
        Fixed::NatMarkMasq => {
            let _ = writeln!(text, "-A KUBE-MARK-MASQ -j MARK --or-mark {mark}");
        }
        Fixed::NatServices => node_port_entry(settings, &mut text),
        Fixed::FilterFirewall if writes_firewall(settings) => text.push_str(
            "-A KUBE-FIREWALL -m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 \
             ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n",
        ),
        Fixed::FilterForward => {
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

fn node_port_entry(settings: &Settings, text: &mut String) {
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
