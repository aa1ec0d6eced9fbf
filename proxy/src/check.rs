//! Preflight check: whether the kernel accepts the rules of services and of NetworkPolicies. Each kind is written once, in a temporary network
//! namespace, so that nothing of the host changes.

use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use windlass_kit::{json, net::Family, preflight::Finding};

use crate::{
    apply::{Backend, MIN_VERSION, Runner, Variant},
    network_policy::{Cluster, Wanted},
    sync::policies::kernel,
};

/// What services need it for, the rule as `iptables-restore` input, and whether the proxy can do without it.
const PROBE_RULES: [(&str, &str, bool); 8] = [
    ("destinations rewritten", "-A T -p tcp -m tcp --dport 80 -j DNAT --to-destination {}:80", false),
    ("sources hidden", "-A T -j MASQUERADE --random-fully", false),
    ("shares among endpoints", "-A T -m statistic --mode random --probability 0.5 -j RETURN", false),
    ("marks", "-A T -m mark --mark 0x4000/0x4000 -j MARK --xor-mark 0x4000", false),
    ("node ports", "-A T -m addrtype --dst-type LOCAL -j RETURN", false),
    ("states of connections", "-A T -m conntrack --ctstate INVALID -j RETURN", false),
    ("session affinity", "-A T -m recent --name T --rcheck --seconds 60 --reap -j RETURN", true),
    ("services of SCTP", "-A T -p sctp -m sctp --dport 80 -j RETURN", true),
];

/// Probes all rules, for both families. Needs root.
#[must_use]
pub fn check(variant: Variant) -> Vec<Finding> {
    // A network namespace belongs to a thread; it ends with this one.
    let thread = std::thread::spawn(move || match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => [Family::V4, Family::V6].into_iter().flat_map(|family| check_family(family, variant)).collect(),
        Err(error) => vec![Finding::fail(
            "network namespaces",
            format!("failed to create one: {error}"),
            "pods need them: run this as root, with a kernel that has CONFIG_NET_NS, outside of containers without CAP_SYS_ADMIN",
        )],
    });
    thread.join().unwrap_or_default()
}

fn check_family(family: Family, variant: Variant) -> Vec<Finding> {
    let name = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    let backend = match Backend::find(&Runner::default(), family, variant) {
        Ok(backend) => backend,
        Err(error) => return vec![no_iptables(family, name, &error.to_string())],
    };
    let refused: Vec<(&str, bool, String)> = PROBE_RULES
        .iter()
        .filter_map(|(what, rule, optional)| {
            let error = backend.restore_text(&probe_input(rule, family)).err()?;
            Some((*what, *optional, error.to_string()))
        })
        .collect();
    let program = backend.program();
    let of_pods = [check_policies(&backend), check_source_addresses(&backend)];
    if refused.is_empty() {
        let rules = Finding::pass(name, format!("{program}: all {} kinds of rules are taken", PROBE_RULES.len()));
        return [rules].into_iter().chain(of_pods).collect();
    }
    let one = |(what, optional, error): (&str, bool, String)| {
        let what = format!("{name}: {what}");
        let advice = "load the kernel's module for it (modprobe xt_…), or take a kernel that has it";
        if optional || family == Family::V6 {
            Finding::warn(what, error, advice)
        } else {
            Finding::fail(what, error, advice)
        }
    };
    refused.into_iter().map(one).chain(of_pods).collect()
}

/// A policy whose rules have every kind of match and of IP set.
fn probe_policy(family: Family) -> Option<Wanted> {
    let (all, part, pod) = match family {
        Family::V4 => ("192.0.2.0/24", "192.0.2.0/25", "198.51.100.1"),
        Family::V6 => ("2001:db8::/32", "2001:db8:1::/48", "2001:db8:2::1"),
    };
    let policy = json!({"metadata": {"name": "probe", "namespace": "probe"}, "spec": {"podSelector": {}, "ingress": [
        {"from": [{"podSelector": {}}], "ports": [{"port": "a"}, {"port": 1, "endPort": 2, "protocol": "SCTP"}]},
        {"from": [{"ipBlock": {"cidr": all, "except": [part]}}]}]}});
    let pod = json!({"metadata": {"name": "probe", "namespace": "probe"}, "status": {"podIP": pod},
        "spec": {"containers": [{"ports": [{"name": "a", "containerPort": 1}]}]}});
    let mut cluster = Cluster::of_all_nodes();
    cluster.put_pod(&json::from_value(&pod).ok()?);
    cluster.put_policy(&json::from_value(&policy).ok()?);
    cluster.wanted(&[family]).pop()
}

fn check_policies(backend: &Backend) -> Finding {
    let what = format!("NetworkPolicies ({})", backend.family().name());
    let written = probe_policy(backend.family()).map(|wanted| kernel::write(backend, &wanted));
    match written {
        Some(Ok(())) => Finding::pass(what, "their rules and IP sets are taken"),
        Some(Err(error)) => Finding::warn(
            what,
            error.to_string(),
            "pods that policies select do not start on the built-in pod network: load ip_set, ip_set_hash_ip, ip_set_hash_ipport, ip_set_hash_net, ip_set_hash_netiface and xt_set, or take a kernel that has them",
        ),
        None => Finding::warn(what, "the rules of a policy could not be made", "report this as a fault"),
    }
}

/// The rule by which the built-in pod network keeps pods off the addresses of others, which is written before a pod is
/// connected.
fn check_source_addresses(backend: &Backend) -> Finding {
    let what = format!("source addresses of pods ({})", backend.family().name());
    let rule = "*raw\n:T - [0:0]\n-A T -m rpfilter --invert -j DROP\nCOMMIT\n*raw\n-F T\n-X T\nCOMMIT\n";
    match backend.restore_text(rule) {
        Ok(()) => Finding::pass(what, "the rule that checks them is taken"),
        Err(error) => Finding::warn(
            what,
            error.to_string(),
            "no pod starts on the built-in pod network: load iptable_raw and ipt_rpfilter (ip6table_raw, ip6t_rpfilter), or take a kernel that has them",
        ),
    }
}

fn no_iptables(family: Family, name: &str, error: &str) -> Finding {
    match family {
        Family::V4 => {
            Finding::fail(name, error, format!("install Debian's package iptables, version {MIN_VERSION} or later"))
        }
        Family::V6 => Finding::warn(name, error, "services have addresses of IPv4 only; install ip6tables for others"),
    }
}

/// One chain with one rule, created and deleted in one transaction.
fn probe_input(rule: &str, family: Family) -> String {
    let address = match family {
        Family::V4 => "192.0.2.1",
        Family::V6 => "[2001:db8::1]",
    };
    format!("*nat\n:T - [0:0]\n{}\nCOMMIT\n*nat\n-F T\n-X T\nCOMMIT\n", rule.replace("{}", address))
}

#[cfg(test)]
mod tests {
    use windlass_kit::preflight::Status;

    use super::*;

    #[test]
    fn a_trial_leaves_nothing() {
        let text = probe_input(PROBE_RULES[0].1, Family::V6);
        assert!(text.contains("--to-destination [2001:db8::1]:80\nCOMMIT"), "{text}");
        assert!(text.ends_with("-F T\n-X T\nCOMMIT\n"), "{text}");
    }

    /// Every type of set is among those that are tried.
    #[test]
    fn the_policy_of_the_trial_needs_all_types_of_sets() {
        for family in Family::BOTH {
            let wanted = probe_policy(family).unwrap();
            let kinds: std::collections::BTreeSet<_> = wanted.sets.0.values().map(|set| set.kind.name()).collect();
            assert_eq!(
                kinds.into_iter().collect::<Vec<_>>(),
                ["hash:ip", "hash:ip,port", "hash:net", "hash:net,iface"]
            );
            assert!(wanted.sets.0.values().all(|set| !set.entries.is_empty()));
        }
        let findings = check(Variant::Auto);
        let policies = findings.iter().filter(|finding| finding.what.starts_with("NetworkPolicies"));
        assert!(policies.clone().count() > 0 && policies.clone().all(|finding| finding.status == Status::Pass));
    }

    #[test]
    fn without_iptables_there_is_no_node_and_without_ip6tables_there_is() {
        assert_eq!(no_iptables(Family::V4, "iptables", "no such file").status, Status::Fail);
        assert_eq!(no_iptables(Family::V6, "ip6tables", "no such file").status, Status::Warn);
    }
}
