//! Whether the kernel takes the rules of services: each kind is written once, in a network namespace that is made for
//! it and gone afterwards, so that nothing of the machine's is touched.

use nix::sched::{CloneFlags, unshare};
use windlass_kit::{finding::Finding, net::Family};

use crate::{
    apply::{Backend, OLDEST, Runner},
    config::Variant,
};

/// What services need it for, the rule as `iptables-restore` reads it, and whether the proxy can do without.
const TRIALS: [(&str, &str, bool); 8] = [
    ("destinations rewritten", "-A T -p tcp -m tcp --dport 80 -j DNAT --to-destination {}:80", false),
    ("sources hidden", "-A T -j MASQUERADE --random-fully", false),
    ("shares among endpoints", "-A T -m statistic --mode random --probability 0.5 -j RETURN", false),
    ("marks", "-A T -m mark --mark 0x4000/0x4000 -j MARK --xor-mark 0x4000", false),
    ("node ports", "-A T -m addrtype --dst-type LOCAL -j RETURN", false),
    ("states of connections", "-A T -m conntrack --ctstate INVALID -j RETURN", false),
    ("session affinity", "-A T -m recent --name T --rcheck --seconds 60 --reap -j RETURN", true),
    ("services of SCTP", "-A T -p sctp -m sctp --dport 80 -j RETURN", true),
];

/// Tries everything, for both families. Needs root.
#[must_use]
pub fn check(variant: Variant) -> Vec<Finding> {
    // A namespace belongs to a thread, so one is made for it and ends with it.
    let tried = std::thread::spawn(move || match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => [Family::V4, Family::V6].into_iter().flat_map(|family| family_of(family, variant)).collect(),
        Err(error) => vec![Finding::missing(
            "network namespaces",
            format!("none could be made: {error}"),
            "pods need them: run this as root, with a kernel that has CONFIG_NET_NS, outside of containers without CAP_SYS_ADMIN",
        )],
    });
    tried.join().unwrap_or_default()
}

fn family_of(family: Family, variant: Variant) -> Vec<Finding> {
    let name = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    let backend = match Backend::find(&Runner::default(), family, variant) {
        Ok(backend) => backend,
        Err(error) => return vec![absent(family, name, &error.to_string())],
    };
    let refused: Vec<(&str, bool, String)> = TRIALS
        .iter()
        .filter_map(|(what, rule, optional)| {
            let error = backend.restore_text(&text(rule, family)).err()?;
            Some((*what, *optional, error.to_string()))
        })
        .collect();
    let program = backend.program();
    if refused.is_empty() {
        return vec![Finding::fine(name, format!("{program}: all {} kinds of rules are taken", TRIALS.len()))];
    }
    let one = |(what, optional, error): (&str, bool, String)| {
        let what = format!("{name}: {what}");
        let advice = "load the kernel's module for it (modprobe xt_…), or take a kernel that has it";
        if optional || family == Family::V6 {
            Finding::doubtful(what, error, advice)
        } else {
            Finding::missing(what, error, advice)
        }
    };
    refused.into_iter().map(one).collect()
}

fn absent(family: Family, name: &str, error: &str) -> Finding {
    match family {
        Family::V4 => {
            Finding::missing(name, error, format!("install Debian's package iptables, version {OLDEST} or later"))
        }
        Family::V6 => {
            Finding::doubtful(name, error, "services have addresses of IPv4 only; install ip6tables for others")
        }
    }
}

/// One chain with one rule, made and removed in one transaction.
fn text(rule: &str, family: Family) -> String {
    let address = match family {
        Family::V4 => "192.0.2.1",
        Family::V6 => "[2001:db8::1]",
    };
    format!("*nat\n:T - [0:0]\n{}\nCOMMIT\n*nat\n-F T\n-X T\nCOMMIT\n", rule.replace("{}", address))
}

#[cfg(test)]
mod tests {
    use windlass_kit::finding::Verdict;

    use super::*;

    #[test]
    fn a_trial_leaves_nothing() {
        let text = text(TRIALS[0].1, Family::V6);
        assert!(text.contains("--to-destination [2001:db8::1]:80\nCOMMIT"), "{text}");
        assert!(text.ends_with("-F T\n-X T\nCOMMIT\n"), "{text}");
    }

    #[test]
    fn without_iptables_there_is_no_node_and_without_ip6tables_there_is() {
        assert_eq!(absent(Family::V4, "iptables", "no such file").verdict, Verdict::Missing);
        assert_eq!(absent(Family::V6, "ip6tables", "no such file").verdict, Verdict::Doubtful);
    }
}
