//! Explains the chains of NetworkPolicies: whom each group of pods hears, and whom it may reach.

use serde::Serialize;

use super::RuleOptions;
use crate::{
    iptables_save::{Rule, SavedRuleset},
    model::Family,
    network_policy::{DIRECTIONS, Direction, IpSets, TABLE, set_suffix},
};

/// Entries of a set that are shown.
const MAX_SHOWN_ENTRIES: usize = 4;

/// Pods that the same policies isolate in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyRow {
    /// `ingress` or `egress`.
    pub direction: &'static str,
    /// Their chain.
    pub chain: String,
    /// Their addresses.
    pub pods: Vec<String>,
    /// What is allowed, in order.
    pub allowed: Vec<AllowedRow>,
    /// What is said of all other packets, with the names of the policies.
    pub dropped: String,
    /// First packets of connections that were dropped.
    pub dropped_packets: u64,
}

/// What one rule of a policy allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllowedRow {
    /// `namespace/name`.
    pub policy: String,
    /// Peers and ports, in words.
    pub what: String,
    /// First packets of connections.
    pub packets: u64,
}

/// All chains of policies, by direction and name.
pub(super) fn rows(kernel: &SavedRuleset<'_>, sets: &IpSets) -> Vec<PolicyRow> {
    let mut rows = Vec::new();
    for direction in DIRECTIONS {
        for (name, chain) in kernel.chains(TABLE).filter(|(name, _)| name.starts_with(direction.chain_prefix())) {
            let mut row = PolicyRow {
                direction: direction.name(),
                chain: name.to_owned(),
                pods: pods(name, sets),
                allowed: Vec::new(),
                dropped: String::new(),
                dropped_packets: 0,
            };
            for rule in &chain.rules {
                let options = RuleOptions::of(rule.text);
                let comment = options.get("--comment").unwrap_or_default().to_owned();
                if options.target() == "DROP" {
                    (row.dropped, row.dropped_packets) = (comment, rule.packets);
                } else {
                    let what = words(direction, rule, &options, sets);
                    row.allowed.push(AllowedRow { policy: comment, what, packets: rule.packets });
                }
            }
            rows.push(row);
        }
    }
    rows
}

fn pods(chain: &str, sets: &IpSets) -> Vec<String> {
    let sets = Family::BOTH.iter().filter_map(|family| sets.0.get(&format!("{chain}{}", set_suffix(*family))));
    sets.flat_map(|set| set.entries.keys()).map(ToString::to_string).collect()
}

/// What a rule allows, in words.
fn words(direction: Direction, rule: &Rule<'_>, options: &RuleOptions, sets: &IpSets) -> String {
    let side = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let (mut peer, mut ports) = (options.get("-s").or_else(|| options.get("-d")).unwrap_or("anybody").to_owned(), None);
    for (is_negated, name, sides) in super::trace::set_matches(rule.text) {
        let shown = entries(&name, sets);
        if is_negated {
            peer.push_str(&format!(" except {shown}"));
        } else if sides.contains(',') {
            ports = Some(format!("ports {shown}"));
        } else {
            peer = shown;
        }
    }
    let protocol = options.get("-p").unwrap_or("any protocol");
    let number = options.get("--dport").or_else(|| options.get("--dports")).map(|port| format!("port {port}"));
    let ports = ports.or(number).map(|ports| format!(" {ports}")).unwrap_or_default();
    format!("{side} {peer}, {protocol}{ports}")
}

fn entries(name: &str, sets: &IpSets) -> String {
    let Some(set) = sets.0.get(name) else { return format!("set {name}") };
    let mut shown: Vec<String> = set.entries.keys().take(MAX_SHOWN_ENTRIES).map(ToString::to_string).collect();
    if set.entries.len() > MAX_SHOWN_ENTRIES {
        shown.push(format!("{} more", set.entries.len() - MAX_SHOWN_ENTRIES));
    }
    if shown.is_empty() { "nobody".to_owned() } else { shown.join(" ") }
}
