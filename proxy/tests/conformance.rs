//! The conformance tables by the model of netfilter, for both families; the numbers of rules; and whether every chain
//! that a rule jumps to exists.

#![allow(clippy::unwrap_used)]

#[path = "conformance/mod.rs"]
mod tables;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tables::{Cluster, NODE, cases, twin};
use windlass_proxy::{
    LocalAddresses,
    explain::{Packet, trace},
    iptables_save::SavedRuleset,
    model::{Family, parse_ip},
    network_policy::IpSets,
    rules::{Layout, StaticChain, Table, base_chain_jumps},
};

#[test]
fn every_flow_ends_where_upstream_ends_it() {
    walk(Layout::Flat);
}

#[test]
fn trees_send_packets_where_flat_chains_do() {
    walk(Layout::Tree);
}

fn walk(layout: Layout) {
    for family in Family::BOTH {
        let local: LocalAddresses = NODE.iter().map(|ip| parse_ip(&twin(ip, family)).unwrap()).collect();
        let mut flows = 0;
        for case in cases::all().list {
            let text = case.cluster.clone().set(|c| c.layout = layout).text(family);
            assert_eq!(loose_ends(&text), [] as [String; 0], "{text}");
            for flow in case.flows(family) {
                let packet = Packet {
                    source: flow.source,
                    destination: flow.destination,
                    port: flow.port,
                    protocol: flow.protocol.clone(),
                    interface: None,
                };
                let masq = if flow.masqueraded { " masq" } else { "" };
                let expected: BTreeSet<String> = flow.ends.iter().map(|e| format!("{e}{masq}")).collect();
                assert_eq!(ends(&text, &local, &packet), expected, "{}: {}\n{text}", case.name, flow.line);
                flows += 1;
            }
        }
        assert!(flows > 150, "{flows} flows of {}", family.name());
    }
}

/// The possible ends of a packet: `10.0.0.1:80`, `10.0.0.1:80 masq`, `REJECT`, `DROP`, `ACCEPT`, `pass`.
fn ends(text: &str, local: &LocalAddresses, packet: &Packet) -> BTreeSet<String> {
    let whole = base_chain_jumps() + text;
    let found = trace(&SavedRuleset::parse(&whole).unwrap(), &IpSets::default(), local, packet);
    let shares: f64 = found.outcomes.iter().map(|o| o.share).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{found}");
    assert!(!found.hops.iter().any(|h| h.verdict.contains("is not known")), "{found}");
    let word = |outcome: &windlass_proxy::explain::Outcome| match outcome.end.as_str() {
        "refused" => "REJECT".to_owned(),
        "dropped" => "DROP".to_owned(),
        end if outcome.translated => {
            format!("{}{}", end.trim_start_matches("to "), if outcome.masqueraded { " masq" } else { "" })
        }
        _ if outcome.decided_by.contains("filter KUBE-NODEPORTS") => "ACCEPT".to_owned(),
        _ => "pass".to_owned(),
    };
    found.outcomes.iter().map(word).collect()
}

/// The argument of `-j` or `-g`.
fn target(rule: &str) -> String {
    let words: Vec<&str> = rule.split_whitespace().collect();
    let at = words.iter().position(|w| *w == "-j" || *w == "-g");
    at.and_then(|i| words.get(i + 1)).map(|w| (*w).to_owned()).unwrap_or_default()
}

/// Chains that are jumped to and do not exist, exist and are not jumped to, or have rules and were not created.
fn loose_ends(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for table in Table::BOTH {
        let section = text.split(&format!("*{}\n", table.name())).nth(1).and_then(|t| t.split("COMMIT\n").next());
        let lines: Vec<&str> = section.unwrap_or_default().lines().collect();
        let made: BTreeSet<&str> = lines.iter().filter_map(|l| l.strip_prefix(':')?.split(' ').next()).collect();
        let mut led: BTreeSet<String> = BTreeSet::new();
        for line in lines.iter().filter_map(|l| l.strip_prefix("-A ")) {
            let (chain, rule) = line.split_once(' ').unwrap();
            if !made.contains(chain) {
                out.push(format!("{chain} is written to and not made"));
            }
            let target = target(rule);
            if target.starts_with("KUBE-") {
                if !made.contains(target.as_str()) {
                    out.push(format!("{target} is led to and not made"));
                }
                led.insert(target);
            }
        }
        let base_chain_jumps = StaticChain::ALL.map(StaticChain::name);
        out.extend(
            made.iter()
                .filter(|c| !led.contains(**c) && !base_chain_jumps.contains(c))
                .map(|c| format!("{c} is made and not led to")),
        );
    }
    out
}

/// The number of rules of a table.
fn count(text: &str, table: &str) -> usize {
    let section = text.split(&format!("*{table}\n")).nth(1).unwrap().split("COMMIT").next().unwrap();
    section.lines().filter(|l| l.starts_with("-A")).count()
}

#[test]
fn numbers_of_rules_are_those_of_upstream() {
    for services in [0, 1, 10] {
        for n in [0, 1, 2, 10] {
            let list: Vec<String> = (1..=n).map(|e: usize| e.to_string()).collect();
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            let build = |spec: &dyn Fn(usize) -> Value, lb: bool| {
                (0..services).fold(Cluster::new(), |c, i| {
                    let ip = format!("1.2.3.{i}");
                    c.with(&format!("s{i}"), spec(i), if lb { vec![ip.as_str()] } else { vec![] }.as_slice(), &list)
                })
            };
            let text = build(&|i| json!({"clusterIP": format!("172.30.0.{i}")}), false).text(Family::V4);
            let (filter, nat) = if n == 0 { (1, 0) } else { (0, 2 + 3 * n) };
            assert_eq!(
                (count(&text, "filter"), count(&text, "nat")),
                (4 + services * filter, 5 + services * nat),
                "{text}"
            );
            let spec = |i: usize| {
                json!({"clusterIP": format!("172.30.0.{i}"), "np": 3001 + i, "type": "LoadBalancer",
                                         "externalIPs": [format!("4.3.2.{i}")], "loadBalancerSourceRanges": ["203.0.113.0/25"]})
            };
            let text = build(&spec, true).text(Family::V4);
            // One less than with a kernel that has nfacct counters.
            let (filter, nat) = if n == 0 { (4, 0) } else { (1, 9 + 3 * n) };
            assert_eq!(
                (count(&text, "filter"), count(&text, "nat")),
                (4 + services * filter, 5 + services * nat),
                "{text}"
            );
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    /// All endpoints have the same share, in trees as in flat chains.
    #[test]
    fn every_endpoint_gets_its_share(octets in proptest::collection::btree_set(1u8..250, 1..200), tree: bool) {
        let names: Vec<String> = octets.iter().map(ToString::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let layout = if tree { Layout::Tree } else { Layout::Flat };
        let cluster = Cluster::new().with("a", json!({"clusterIP": "172.30.0.41"}), &[], &names).set(|c| c.layout = layout);
        let text = cluster.text(Family::V4);
        let whole = base_chain_jumps() + &text;
        let packet = "10.0.0.2 172.30.0.41:80/tcp".parse().unwrap();
        let found = trace(&SavedRuleset::parse(&whole).unwrap(), &IpSets::default(), &LocalAddresses::default(), &packet);
        proptest::prop_assert_eq!(found.outcomes.len(), names.len());
        for outcome in &found.outcomes {
            let times = outcome.share * f64::from(u32::try_from(names.len()).unwrap());
            proptest::prop_assert!((times - 1.0).abs() < 1e-6, "{}", found);
        }
        let chains: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(':')?.split(' ').next()).collect();
        proptest::prop_assert!(chains.iter().all(|c| c.len() <= 28 && c.starts_with("KUBE-")), "{:?}", chains);
        // A base chain and at most 15 levels below it, of which the tree of addresses may use four.
        let deepest = found.hops.iter().filter(|h| h.table == "nat").map(|h| h.depth).max().unwrap_or(0);
        proptest::prop_assert!(deepest + 4 <= 15, "{} chains deep", deepest);
    }
}
