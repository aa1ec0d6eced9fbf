//! Follows the chains of a service from an entry to its endpoints.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{EndpointRow, Entry, RuleOptions};
use crate::{
    iptables_save::SavedRuleset,
    rules::{Table, is_tree_chain},
};

/// Deeper than any jump of this proxy's rules; ends a loop in foreign rules.
const MAX_JUMP_DEPTH: usize = 16;

/// One rule and the chain that it jumps to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Branch {
    /// What the rule does, in words.
    pub what: String,
    /// The chain that it jumps to; empty for a terminal target.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chain: String,
    /// The endpoint of a DNAT, `IP:port`; empty for others.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// The rule's own probability, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Its share of the packets that enter the load-balancing chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Its packet counter: one for each connection.
    pub packets: u64,
    /// The rules of that chain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Branch>,
}

impl Branch {
    pub(super) fn leaf(what: String, packets: u64) -> Self {
        Self { what, packets, ..Self::default() }
    }

    /// Draws branches as a tree, a line each. Each chain is drawn once: `drawn` has those that were.
    #[must_use]
    pub fn draw(branches: &[Self], drawn: &mut BTreeSet<String>) -> String {
        let mut text = String::new();
        Self::draw_into(branches, "", drawn, &mut text);
        text
    }

    fn draw_into(branches: &[Self], indent: &str, drawn: &mut BTreeSet<String>, out: &mut String) {
        for (i, branch) in branches.iter().enumerate() {
            let (corner, bar) = if i + 1 == branches.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let again = !branch.then.is_empty() && !branch.chain.is_empty() && !drawn.insert(branch.chain.clone());
            let above = if again { " (as above)" } else { "" };
            out.push_str(&format!("{indent}{corner}{} [{}]{above}\n", branch.what, branch.packets));
            if !again {
                Self::draw_into(&branch.then, &format!("{indent}{bar}"), drawn, out);
            }
        }
    }
}

fn is_balancer(chain: &str) -> bool {
    chain.starts_with("KUBE-SVC-") || chain.starts_with("KUBE-SVL-")
}

/// Rules visited for one entry: more than any service has; ends foreign rules that jump to each other in ever more
/// ways.
const MAX_RULES: usize = 100_000;

/// The rules of a chain and all that follows them.
pub(super) fn branches(kernel: &SavedRuleset<'_>, chain: &str) -> Vec<Branch> {
    let mut budget = MAX_RULES;
    branches_of(kernel, chain, 1.0, 0, &mut budget)
}

/// Whether a chain belongs to the tree of a load-balancing chain: its name has a suffix.
fn is_subchain(chain: &str) -> bool {
    is_balancer(chain) && chain.len() > "KUBE-SVC-".len() + 16 && !is_tree_chain(chain)
}

fn branches_of(kernel: &SavedRuleset<'_>, chain: &str, share: f64, depth: usize, budget: &mut usize) -> Vec<Branch> {
    let Some(rules) = kernel.chain(Table::Nat, chain).filter(|_| depth < MAX_JUMP_DEPTH) else { return Vec::new() };
    if *budget < rules.rules.len() {
        *budget = 0;
        return Vec::new();
    }
    *budget -= rules.rules.len();
    let mut left = if is_balancer(chain) && !is_subchain(chain) { 1.0 } else { share };
    let mut out = Vec::new();
    for rule in &rules.rules {
        let options = RuleOptions::of(rule.text);
        let target = options.target();
        let mut branch = Branch { packets: rule.packets, ..Branch::default() };
        if target == "KUBE-MARK-MASQ" {
            branch.what = match options.get("-s") {
                Some(from) if chain.starts_with("KUBE-SEP-") => {
                    format!("masquerade when it comes from itself ({from})")
                }
                Some(from) => match from.strip_prefix("! ") {
                    Some(range) => format!("masquerade unless from {range}"),
                    None => format!("masquerade when from {from}"),
                },
                None => format!("masquerade{}", condition(&options)),
            };
        } else if target == "DNAT" {
            let endpoint = options.get("--to-destination").unwrap_or_default();
            branch.what = format!("to {endpoint}");
            branch.endpoint = endpoint.to_owned();
            branch.share = Some(left);
        } else if target.is_empty() {
            branch.what = "everything else is dropped by KUBE-PROXY-FIREWALL".to_owned();
        } else if options.get("--rcheck").is_some() {
            // One rule for each endpoint, all of which say the same.
            let again = "a client that came in the last ";
            if let Some(before) = out.last_mut().filter(|b: &&mut Branch| b.what.starts_with(again)) {
                before.packets += rule.packets;
                continue;
            }
            branch.what = format!("{again}{} s goes where it went before", options.get("--seconds").unwrap_or("?"));
        } else {
            target.clone_into(&mut branch.chain);
            let p = options.get("--probability").and_then(|p| p.parse::<f64>().ok());
            let mut inner = share;
            if is_balancer(chain) && (target.starts_with("KUBE-SEP-") || is_subchain(target)) {
                let mine = left * p.unwrap_or(1.0);
                left -= mine;
                branch.probability = p;
                branch.share = Some(mine);
                inner = mine;
                branch.what = match p {
                    Some(p) => format!("probability {p:.5}, share {:.1} % → {target}", mine * 100.0),
                    None => format!("the rest, share {:.1} % → {target}", mine * 100.0),
                };
            } else {
                branch.what = format!("{} → {target}", condition(&options)).trim_start().to_owned();
            }
            branch.then = branches_of(kernel, target, inner, depth + 1, budget);
        }
        out.push(branch);
    }
    out
}

fn condition(options: &RuleOptions) -> String {
    let mut out = String::new();
    if options.get("--src-type").is_some() {
        out.push_str(" from this node");
    }
    if let Some(source) = options.get("-s") {
        out.push_str(&match source.strip_prefix("! ") {
            Some(range) => format!(" not from {range}"),
            None => format!(" from {source}"),
        });
    }
    if let Some(interface) = options.get("-i") {
        out.push_str(&format!(" in by {interface}"));
    }
    out
}

/// The endpoints behind entries, each once.
pub(super) fn endpoints(kernel: &SavedRuleset<'_>, entries: &[Entry]) -> Vec<EndpointRow> {
    #[derive(Default)]
    struct Found {
        share: Option<f64>,
        local: Option<f64>,
        chain: String,
    }
    fn visit(branches: &[Branch], local: bool, found: &mut BTreeMap<String, Found>) {
        for branch in branches {
            let local = local || branch.chain.starts_with("KUBE-SVL-");
            if let (Some(share), true) = (branch.share, branch.chain.starts_with("KUBE-SEP-")) {
                for end in branch.then.iter().filter(|b| !b.endpoint.is_empty()) {
                    let row = found.entry(end.endpoint.clone()).or_default();
                    row.chain.clone_from(&branch.chain);
                    *(if local { &mut row.local } else { &mut row.share }) = Some(share);
                }
            }
            visit(&branch.then, local, found);
        }
    }
    let mut found = BTreeMap::new();
    for entry in entries {
        visit(&entry.branches, entry.chain.starts_with("KUBE-SVL-"), &mut found);
    }
    found
        .into_iter()
        .map(|(address, row)| {
            let rules = kernel.chain(Table::Nat, &row.chain).map(|c| c.rules.as_slice()).unwrap_or_default();
            let packets = rules.iter().filter(|r| r.text.contains("--to-destination")).map(|r| r.packets).sum();
            EndpointRow { address, share: row.share, local_share: row.local, packets }
        })
        .collect()
}
