//! The text of `iptables-save`, with what only the proxy looks for in it: its jumps. Pure.

pub use windlass_kit::iptables_save::{Chain, ParseError, Rule, SavedRuleset, canonical, parse_mark, split_words};

use crate::rules::{JUMPS, Jump};

/// Indices into [`JUMPS`] of the jumps that a ruleset lacks.
#[must_use]
pub fn missing_jumps(saved: &SavedRuleset<'_>) -> Vec<usize> {
    let there = |jump: &Jump| {
        saved.chain(jump.to.table(), jump.from).is_some_and(|c| c.rules.iter().any(|r| is_jump(r.text, jump)))
    };
    JUMPS.iter().enumerate().filter(|(_, j)| !there(j)).map(|(i, _)| i).collect()
}

/// Whether a rule of a base chain is this jump.
#[must_use]
pub fn is_jump(rule: &str, jump: &Jump) -> bool {
    let Some(before) = rule.strip_suffix(jump.to.name()).and_then(|r| r.strip_suffix("-j ")) else { return false };
    before.contains("--ctstate NEW") == jump.new_only
        && match jump.comment {
            "" => !before.contains("--comment"),
            text => before.contains(text),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_recognised_in_both_spellings() {
        for jump in &JUMPS {
            assert!(is_jump(&jump.rule(), jump), "{}", jump.rule());
            assert_eq!(JUMPS.iter().filter(|j| j.from == jump.from && is_jump(&jump.rule(), j)).count(), 1);
        }
        assert!(is_jump(
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
            &JUMPS[3]
        ));
        assert!(!is_jump("-j KUBE-SERVICES", &JUMPS[10]));
        assert_eq!(missing_jumps(&SavedRuleset::default()).len(), JUMPS.len());
    }
}
