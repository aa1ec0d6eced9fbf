//! Which chains and jumps of a saved ruleset belong to a service proxy: this one, or kube-proxy in its iptables or IPVS
//! mode. Pure.

use crate::{
    iptables_save::{SavedRuleset, is_like_jump},
    rules::{JUMPS, StaticChain, Table, is_service_chain, is_tree_chain},
};

/// The chain by which kube-proxy detects that its rules were flushed; the mangle table has one, too.
pub(super) const CANARY: &str = "KUBE-PROXY-CANARY";
pub(super) const MANGLE: &str = "mangle";

/// Chains that only kube-proxy's IPVS mode has (pkg/proxy/ipvs/proxier.go); its other chains have the names of iptables
/// mode.
const IPVS_CHAINS: [(Table, &str); 6] = [
    (Table::Nat, "KUBE-NODE-PORT"),
    (Table::Nat, "KUBE-LOAD-BALANCER"),
    (Table::Filter, "KUBE-NODE-PORT"),
    (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL"),
    (Table::Filter, "KUBE-IPVS-FILTER"),
    (Table::Filter, "KUBE-IPVS-OUT-FILTER"),
];

/// A jump that only kube-proxy's IPVS mode has.
struct IpvsJump {
    from: &'static str,
    to: &'static str,
    comment: &'static str,
}

impl IpvsJump {
    fn is(&self, table: Table, from: &str, rule: &str) -> bool {
        let before = rule.strip_suffix(self.to).and_then(|rule| rule.strip_suffix("-j "));
        table == Table::Filter && self.from == from && before.is_some_and(|before| before.contains(self.comment))
    }
}

const IPVS_JUMPS: [IpvsJump; 5] = [
    IpvsJump { from: "INPUT", to: "KUBE-NODE-PORT", comment: "kubernetes health check rules" },
    IpvsJump { from: "INPUT", to: "KUBE-PROXY-FIREWALL", comment: "kube-proxy firewall rules" },
    IpvsJump { from: "FORWARD", to: "KUBE-PROXY-FIREWALL", comment: "kube-proxy firewall rules" },
    IpvsJump { from: "INPUT", to: "KUBE-IPVS-FILTER", comment: "kubernetes ipvs access filter" },
    IpvsJump { from: "OUTPUT", to: "KUBE-IPVS-OUT-FILTER", comment: "kubernetes ipvs access filter" },
];

/// Whether a chain belongs to a service proxy alone.
pub(super) fn is_ours(table: Table, name: &str) -> bool {
    match StaticChain::find(table, name) {
        Some(fixed) => fixed != StaticChain::FilterKubeletFirewall,
        None => {
            (table == Table::Nat && is_service_chain(name))
                || is_tree_chain(name)
                || name == CANARY
                || IPVS_CHAINS.contains(&(table, name))
        }
    }
}

/// Whether a kubelet manages KUBE-FIREWALL, too, as its own chains show.
pub(super) fn shares_firewall(text: &str) -> bool {
    ["KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"].iter().any(|n| text.contains(n))
}

/// What to remove: first the jumps from other chains, then the chains, in the order in which a packet traverses them,
/// so that none meets half a service.
pub(super) struct Removal<'a> {
    pub(super) jumps: Vec<(Table, String)>,
    pub(super) chains: Vec<(Table, Vec<&'a str>)>,
}

impl<'a> Removal<'a> {
    pub(super) fn of(saved: &SavedRuleset<'a>, keep_firewall: bool) -> Self {
        let mut out = Self { jumps: Vec::new(), chains: Vec::new() };
        for table in Table::BOTH {
            let ours = |name: &str| {
                is_ours(table, name)
                    || (StaticChain::find(table, name) == Some(StaticChain::FilterKubeletFirewall) && !keep_firewall)
            };
            let mut jumps = String::new();
            for (from, chain) in saved.chains(table).filter(|(name, _)| !ours(name)) {
                for rule in &chain.rules {
                    let jump = JUMPS.iter().any(|j| {
                        j.to.table() == table
                            && j.from == from
                            && (j.to != StaticChain::FilterKubeletFirewall || !keep_firewall)
                            && is_like_jump(rule.text, j)
                    }) || IPVS_JUMPS.iter().any(|j| j.is(table, from, rule.text));
                    if jump {
                        jumps.push_str(&format!("-D {from} {}\n", rule.text));
                    }
                }
            }
            out.jumps.push((table, jumps));
            let chains = saved.chains(table).map(|(name, _)| name).filter(|n| ours(n));
            let (mut dispatch, rest): (Vec<&str>, Vec<&str>) =
                chains.partition(|n| StaticChain::find(table, n).is_some());
            dispatch.extend(rest);
            out.chains.push((table, dispatch));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kube-proxy writes it in IPVS mode, with rules of others around it.
    const IPVS_MODE: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:SOMEBODY - [0:0]
-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
-A INPUT -s 203.0.113.77/32 -j DROP
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -j SOMEBODY
-A OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
";

    #[test]
    fn everything_of_ipvs_mode_is_removed_and_nothing_else() {
        let saved = SavedRuleset::parse(IPVS_MODE).unwrap();
        let removal = Removal::of(&saved, true);
        let [(_, filter), (_, nat)] = &removal.jumps[..] else { panic!("two tables") };
        assert_eq!(filter.lines().count(), 6, "{filter}");
        assert!(filter.lines().all(|rule| rule.contains("comment")), "{filter}");
        assert_eq!(nat.lines().count(), 3, "{nat}");
        let chains: Vec<&str> = removal.chains.iter().flat_map(|(_, chains)| chains.iter().copied()).collect();
        assert_eq!(chains.len(), 11, "{chains:?}");
        assert!(!chains.contains(&"SOMEBODY") && !chains.contains(&"KUBE-FIREWALL"), "{chains:?}");
    }
}
