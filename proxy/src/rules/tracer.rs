//! For tests: where a packet can end in rendered rules, in short words; and whether the rules hang
//! together.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    explain::{Options, Packet, trace},
    kernel::Saved,
    rules::{Table, entrances},
};

/// Where a packet can end: `10.0.0.1:80`, `10.0.0.1:80 masq`, `REJECT`, `DROP`, `ACCEPT`, `pass`.
pub(crate) fn ends(text: &str, local: &[IpAddr], packet: &Packet) -> BTreeSet<String> {
    let whole = entrances() + text;
    let found = trace(&Saved::parse(&whole).unwrap(), local, packet);
    let shares: f64 = found.outcomes.iter().map(|o| o.share).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{found}");
    assert!(!found.hops.iter().any(|h| h.verdict.contains("is not known")), "{found}");
    let word = |outcome: &crate::explain::Outcome| match outcome.end.as_str() {
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

/// Chains that are led to and not there, there and not led to, or written to without being made.
pub(crate) fn loose_ends(text: &str) -> Vec<String> {
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
            let target = Options::of(rule).target().to_owned();
            if target.starts_with("KUBE-") {
                if !made.contains(target.as_str()) {
                    out.push(format!("{target} is led to and not made"));
                }
                led.insert(target);
            }
        }
        let entrances = crate::rules::Fixed::ALL.map(crate::rules::Fixed::name);
        out.extend(
            made.iter()
                .filter(|c| !led.contains(**c) && !entrances.contains(c))
                .map(|c| format!("{c} is made and not led to")),
        );
    }
    out
}
