//! What the kernel's rules mean, service by service, and where they differ from what they should
//! be. Pure: two texts in, plain data out; printing is left to the caller, who may also use
//! [`Branch`]'s plain tree.

mod compare;
#[cfg(test)]
mod tests;
mod trace;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use compare::Difference;
pub(crate) use compare::{Comparison, differences};
pub use trace::{Hop, Outcome, Packet, Trace, trace};
pub use tree::Branch;

use crate::{
    kernel::{Chain, ParseError, Rule, Saved, words},
    rules::{Table, is_dispatch},
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
    /// Connections that took this entry.
    pub packets: u64,
    /// Refused: no endpoint to send it to.
    pub refused: bool,
    /// The chain that it leads to; empty when refused.
    pub chain: String,
    /// The rules of that chain and all that follows.
    pub branches: Vec<Branch>,
}

/// One endpoint of a service port.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndpointRow {
    /// `IP:port`.
    pub address: String,
    /// Its true share of connections that may go anywhere, from 0 to 1; absent when only traffic
    /// that must stay on this node reaches it.
    pub share: Option<f64>,
    /// The same for traffic that must stay on this node.
    pub local_share: Option<f64>,
    /// Connections that it got.
    pub packets: u64,
}

/// One service port as the kernel has it.
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

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// By name and protocol.
    pub services: Vec<ServiceRow>,
    /// Where kernel and intent differ; empty when the kernel holds what it should.
    pub differences: Vec<Difference>,
}

/// A rule's options by name; `!` is kept in front of the value.
pub(crate) struct Options(BTreeMap<String, String>);

impl Options {
    pub(crate) fn of(rule: &str) -> Self {
        let mut map = BTreeMap::new();
        let mut key: Option<String> = None;
        let mut negated = false;
        for word in words(rule) {
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

/// Explains the kernel's rules (`iptables-save -c` of nat and filter) beside those that should be
/// (as [`crate::rules_from_objects`] renders them).
///
/// # Errors
/// When a text is not a rule set.
pub fn explain(wanted: &str, kernel: &str) -> Result<Explanation, ParseError> {
    let (wanted, kernel) = (Saved::parse(wanted)?, Saved::parse(kernel)?);
    Ok(Explanation { services: services(&kernel), differences: differences(&wanted, &kernel) })
}

fn services(kernel: &Saved<'_>) -> Vec<ServiceRow> {
    let mut rows: BTreeMap<(String, String), ServiceRow> = BTreeMap::new();
    let sources = [
        (Table::Nat, "KUBE-SERVICES"),
        (Table::Nat, "KUBE-NODEPORTS"),
        (Table::Filter, "KUBE-SERVICES"),
        (Table::Filter, "KUBE-EXTERNAL-SERVICES"),
    ];
    for (table, chain) in sources {
        for rule in dispatching(kernel, table, chain) {
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

/// The rules of a dispatching chain, also where it is a tree.
fn dispatching<'k>(kernel: &'k Saved<'_>, table: Table, chain: &str) -> Vec<&'k Rule<'k>> {
    let mut rules = Vec::new();
    let mut waiting = vec![chain.to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(chain) = waiting.pop().filter(|c| seen.insert(c.clone())) {
        for rule in kernel.chain(table, &chain).into_iter().flat_map(|c: &Chain<'_>| &c.rules) {
            let target = rule.text.rsplit(' ').next().unwrap_or_default();
            if is_dispatch(target) { waiting.push(target.to_owned()) } else { rules.push(rule) }
        }
    }
    rules
}

/// Reads one rule of the dispatching chains; `None` for rules that are no service's.
fn entry(kernel: &Saved<'_>, rule: &Rule<'_>, chain: &str) -> Option<(String, Entry, String)> {
    let options = Options::of(rule.text);
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
