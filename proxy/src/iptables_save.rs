//! The text of `iptables-save`, with what only the proxy looks for in it: its jumps. Pure.

pub use windlass_kit::iptables_save::{Chain, ParseError, Rule, SavedRuleset, canonical, parse_mark, split_words};

use crate::rules::{JUMPS, Jump};

/// How often each of [`JUMPS`] is in its base chain.
#[must_use]
pub fn jump_counts(saved: &SavedRuleset<'_>) -> [usize; JUMPS.len()] {
    JUMPS.map(|jump| {
        let rules = saved.chain(jump.to.table(), jump.from).into_iter().flat_map(|chain| &chain.rules);
        rules.filter(|rule| is_jump(rule.text, &jump)).count()
    })
}

/// Whether a rule of a base chain is this jump: as a whole, like `iptables -C`. One with a further condition is not.
#[must_use]
pub fn is_jump(rule: &str, jump: &Jump) -> bool {
    is_like_jump(rule, jump) && canonical(rule) == canonical(&jump.rule())
}

/// Whether a rule of a base chain is this jump, or was made of it by somebody: what clean-up removes.
#[must_use]
pub fn is_like_jump(rule: &str, jump: &Jump) -> bool {
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
        // With another program's condition it no longer matches all packets.
        let narrower = "-i eth9 -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD";
        assert!(!is_jump(narrower, &JUMPS[5]) && is_like_jump(narrower, &JUMPS[5]));
        let twice = format!("*nat\n:OUTPUT ACCEPT [0:0]\n{0}{0}COMMIT\n", format!("-A OUTPUT {}\n", JUMPS[9].rule()));
        assert_eq!(jump_counts(&SavedRuleset::parse(&twice).unwrap())[9], 2);
        assert_eq!(jump_counts(&SavedRuleset::default()), [0; JUMPS.len()]);
    }
}
