//! Explains the kernel's rules service by service, and compares them with the desired ones. Pure: texts in, plain data
//! out; the caller prints, perhaps with [`Branch::draw`]. May import the rules, the model, `network_policy` and `iptables_save`.

mod compare;
mod policies;
#[cfg(test)]
mod tests;
mod trace;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub(crate) use compare::{Comparison, differences};
pub use compare::{Difference, Problem};
pub use policies::{AllowedRow, PolicyRow};
pub use trace::{Hop, Outcome, Packet, Trace, trace};
pub use tree::Branch;

use crate::{
    iptables_save::{Chain, ParseError, Rule, SavedRuleset, split_words},
    network_policy::{IpSets, plan::PolicyDifference},
    rules::{Table, is_tree_chain},
};

/// One address at which a service port is reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// `cluster IP`, `external IP`, `loadbalancer IP` or `node port`.
    pub kind: String,
    /// The address; empty for node ports, which answer at the node's addresses.
    pub address: String,
    /// The port.
    pub port: u16,
    /// Connections to this entry.
    pub packets: u64,
    /// Rejected or dropped, because there is no endpoint.
    pub refused: bool,
    /// The chain that it jumps to; empty when refused.
    pub chain: String,
    /// The rules of that chain and all that follows.
    pub branches: Vec<Branch>,
}

/// One endpoint of a service port.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndpointRow {
    /// `IP:port`.
    pub address: String,
    /// Its share of connections of policy Cluster, from 0 to 1; absent when only traffic of policy Local reaches it.
    pub share: Option<f64>,
    /// Its share of connections of policy Local.
    pub local_share: Option<f64>,
    /// Connections to it.
    pub packets: u64,
}

/// One service port in the kernel's rules.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceRow {
    /// `namespace/name` or `namespace/name:port`.
    pub name: String,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Where it is reached.
    pub entries: Vec<Entry>,
    /// Its endpoints, by address.
    pub endpoints: Vec<EndpointRow>,
}

impl ServiceRow {
    /// Whether it belongs to the Service `namespace/name`.
    #[must_use]
    pub fn is_of(&self, service: &str) -> bool {
        self.name.strip_prefix(service).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

/// The explanation of a ruleset.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// By name and protocol.
    pub services: Vec<ServiceRow>,
    /// By direction and chain.
    pub policies: Vec<PolicyRow>,
    /// Where the kernel's rules of services differ from the desired ones.
    pub differences: Vec<Difference>,
    /// And where those of policies do, with their IP sets; nothing where they are not compared.
    pub policy_differences: Vec<PolicyDifference>,
}

/// The options of a rule by name; a negated value starts with `!`.
pub(crate) struct RuleOptions(BTreeMap<String, String>);

impl RuleOptions {
    pub(crate) fn of(rule: &str) -> Self {
        let mut map = BTreeMap::new();
        let mut key: Option<String> = None;
        let mut negated = false;
        for word in split_words(rule) {
            if word == "!" {
                negated = true;
            } else if word.len() > 1 && word.starts_with('-') {
                map.entry(word.clone()).or_insert_with(|| if negated { "! ".to_owned() } else { String::new() });
                negated = false;
                key = Some(word);
            } else if let Some(value) = key.as_ref().and_then(|k| map.get_mut(k)) {
                if !value.is_empty() && !value.ends_with("! ") {
                    value.push(' ');
                }
                value.push_str(&word);
            }
        }
        Self(map)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub(crate) fn target(&self) -> &str {
        self.get("-j").or_else(|| self.get("-g")).unwrap_or_default()
    }
}

const KINDS: [&str; 3] = ["cluster IP", "external IP", "loadbalancer IP"];
const REFUSALS: [&str; 2] = ["has no endpoints", "has no local endpoints"];

/// Explains the kernel's rules (`iptables-save -c`, and IP sets as comments), and compares those of services them with the desired ones (as
/// [`crate::rules_from_objects`] renders them).
///
/// # Errors
/// When a text cannot be parsed.
pub fn explain(wanted: &str, kernel: &str) -> Result<Explanation, ParseError> {
    let sets = IpSets::parse(kernel)?;
    let (wanted, kernel) = (SavedRuleset::parse(wanted)?, SavedRuleset::parse(kernel)?);
    Ok(Explanation {
        services: services(&kernel),
        policies: policies::rows(&kernel, &sets),
        differences: differences(&wanted, &kernel),
        policy_differences: Vec::new(),
    })
}

fn services(kernel: &SavedRuleset<'_>) -> Vec<ServiceRow> {
    let mut rows: BTreeMap<(String, String), ServiceRow> = BTreeMap::new();
    let sources = [
        (Table::Nat, "KUBE-SERVICES"),
        (Table::Nat, "KUBE-NODEPORTS"),
        (Table::Filter, "KUBE-SERVICES"),
        (Table::Filter, "KUBE-EXTERNAL-SERVICES"),
    ];
    for (table, chain) in sources {
        for rule in dispatch_rules(kernel, table, chain) {
            let Some((name, entry, protocol)) = entry(kernel, rule, chain) else { continue };
            let row = rows.entry((name.clone(), protocol.clone())).or_insert_with(|| ServiceRow {
                name,
                protocol,
                entries: Vec::new(),
                endpoints: Vec::new(),
            });
            row.entries.push(entry);
        }
    }
    for row in rows.values_mut() {
        row.endpoints = tree::endpoints(kernel, &row.entries);
    }
    rows.into_values().collect()
}

/// The rules of a dispatch chain, collected from its whole tree.
fn dispatch_rules<'k>(kernel: &'k SavedRuleset<'_>, table: Table, chain: &str) -> Vec<&'k Rule<'k>> {
    let mut rules = Vec::new();
    let mut waiting = vec![chain.to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(chain) = waiting.pop().filter(|c| seen.insert(c.clone())) {
        for rule in kernel.chain(table, &chain).into_iter().flat_map(|c: &Chain<'_>| &c.rules) {
            let target = rule.text.rsplit(' ').next().unwrap_or_default();
            if is_tree_chain(target) { waiting.push(target.to_owned()) } else { rules.push(rule) }
        }
    }
    rules
}

/// Parses one rule of a dispatch chain; `None` for rules that belong to no service.
fn entry(kernel: &SavedRuleset<'_>, rule: &Rule<'_>, chain: &str) -> Option<(String, Entry, String)> {
    let options = RuleOptions::of(rule.text);
    let comment = options.get("--comment")?;
    let port = options.get("--dport")?.parse().ok()?;
    let protocol = options.get("-p")?.to_owned();
    let address = options.get("-d").unwrap_or_default();
    let address = address.strip_suffix("/32").or_else(|| address.strip_suffix("/128")).unwrap_or(address).to_owned();
    let mut refused = false;
    let (name, kind) = if let Some(kind) = KINDS.into_iter().find(|k| comment.ends_with(k)) {
        (comment.strip_suffix(kind)?.trim_end(), kind)
    } else if let Some(reason) = REFUSALS.into_iter().find(|r| comment.ends_with(r)) {
        refused = true;
        let kind = match (chain, address.is_empty()) {
            (_, true) => "node port",
            ("KUBE-SERVICES", _) => "cluster IP",
            _ => "external address",
        };
        (comment.strip_suffix(reason)?.trim_end(), kind)
    } else if chain == "KUBE-NODEPORTS" {
        (comment, "node port")
    } else {
        return None;
    };
    let branches = if refused {
        vec![Branch::leaf(format!("{} ({})", options.target(), &comment[name.len()..].trim()), rule.packets)]
    } else {
        tree::branches(kernel, options.target())
    };
    let chain = if refused { String::new() } else { options.target().to_owned() };
    let entry = Entry { kind: kind.to_owned(), address, port, packets: rule.packets, refused, chain, branches };
    Some((name.to_owned(), entry, protocol))
}
