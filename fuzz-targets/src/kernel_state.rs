//! Output of `iptables-save`: parsing, explaining and tracing it never panics, and the canonical form of a rule has no
//! more words than the rule.

use windlass_proxy::{
    LocalAddresses,
    explain::{Difference, Packet, Problem, explain, trace},
    iptables_save::{SavedRuleset, canonical, split_words},
    network_policy::IpSets,
};

pub(crate) fn run(text: &str) {
    let Ok(saved) = SavedRuleset::parse(text) else { return };
    for chain in saved.tables.values().flat_map(|t| t.values()) {
        for rule in &chain.rules {
            let once = canonical(rule.text);
            assert!(once.len() <= split_words(rule.text).len());
        }
    }
    let found = explain(text, text).expect("the text was read a moment ago");
    let jumps = |d: &Difference| matches!(d.problem, Problem::JumpMissing(_) | Problem::JumpRepeated(_));
    assert!(found.differences.iter().all(jumps), "{:?}", found.differences);
    let packet: Packet = "10.0.0.1 10.96.0.1:443/tcp".parse().expect("a packet");
    let sets = IpSets::parse(text).unwrap_or_default();
    let found = trace(&saved, &sets, &LocalAddresses::default(), &packet);
    let shares: f64 = found.outcomes.iter().map(|o| o.share).sum();
    assert!(shares.is_finite());
}
