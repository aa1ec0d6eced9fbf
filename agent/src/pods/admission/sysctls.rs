//! Which sysctls a pod may set. Pure; upstream's `pkg/kubelet/sysctl`.

use k8s_openapi::api::core::v1::PodSpec;

use super::rejected;
use crate::pods::lifecycle::{kill::KillReason, spec};

/// Namespaced sysctls that harm no other pod; upstream's list.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Prefixes of namespaced sysctls; upstream's list.
const NAMESPACED: [&str; 5] = ["kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue.", "net."];

/// What is wrong with `allowedUnsafeSysctls`: a sysctl that is not namespaced would be set for the whole machine.
#[must_use]
pub fn unsafe_sysctl_problems(patterns: &[String]) -> Vec<String> {
    let part = |p: &str| {
        !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
    };
    let wrong = |pattern: &&String| {
        let name = pattern.replace('/', ".");
        let stem = name.strip_suffix('*').unwrap_or(&name);
        let whole = stem.strip_suffix('.').filter(|_| name.ends_with('*')).unwrap_or(stem);
        !whole.split('.').all(part) || !NAMESPACED.iter().any(|start| stem.starts_with(start))
    };
    let problem = |pattern: &String| {
        format!(
            "allowedUnsafeSysctls {pattern:?} is not a namespaced sysctl: expected a name, or a pattern that ends in *, of \
             kernel.sem, kernel.shm…, kernel.msg…, fs.mqueue.… or net.…"
        )
    };
    patterns.iter().filter(wrong).map(problem).collect()
}

/// Whether one of these patterns matches a sysctl.
fn is_allowed(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| {
        let pattern = pattern.replace('/', ".");
        pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
    })
}

/// Why the node rejects a pod for its sysctls, if it does.
pub(super) fn reject(spec: &PodSpec, allowed: &[String]) -> Option<KillReason> {
    let forbidden = |why: String| Some(rejected("SysctlForbidden", format_args!("forbidden sysctl: {why}")));
    for sysctl in spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
        // The API allows both separators.
        let name = sysctl.name.replace('/', ".");
        if spec::host_network(spec) && name.starts_with("net.") {
            return forbidden(format!("{name:?} not allowed with host net enabled"));
        }
        if spec.host_ipc == Some(true) && !name.starts_with("net.") {
            return forbidden(format!("{name:?} not allowed with host ipc enabled"));
        }
        if !SAFE_SYSCTLS.contains(&name.as_str()) && !is_allowed(&name, allowed) {
            return forbidden(format!("{name:?} not allowlisted"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::{
        super::rules::{self, NodeView},
        *,
    };

    #[test]
    fn unsafe_sysctls_that_the_node_allows() {
        let pod = |name: &str| -> Pod {
            let text = r#"{"spec":{"containers":[],"securityContext":{"sysctls":[{"name":"NAME","value":"1"}]}}}"#;
            serde_json::from_str(&text.replace("NAME", name)).unwrap()
        };
        let allowed = ["kernel.msg*".to_owned(), "net.core.somaxconn".to_owned()];
        for (name, taken) in [
            ("kernel.msgmax", true),
            ("kernel/msgmax", true),
            ("net.core.somaxconn", true),
            ("net.core.somaxconn2", false),
            ("kernel.sem", false),
        ] {
            let node = NodeView { max_pods: 1, unsafe_sysctls: allowed.to_vec(), ..NodeView::default() };
            let refused = rules::reject(&pod(name), &node, std::iter::empty());
            assert_eq!(refused.map(|r| r.reason), (!taken).then(|| "SysctlForbidden".to_owned()), "{name}");
        }
    }

    #[test]
    fn only_settings_of_a_namespace_can_be_allowed() {
        let problems = |pattern: &str| unsafe_sysctl_problems(&[pattern.to_owned()]).len();
        for good in ["kernel.msg*", "kernel.sem", "net.*", "net/ipv4/tcp_mem", "fs.mqueue.*", "net.ipv4.tcp_*"] {
            assert_eq!(problems(good), 0, "{good}");
        }
        for bad in ["", "*", "kernel.*", "vm.swappiness", "kernel.panic", "net.", "net..x", "net.*.x", "Net.x"] {
            assert_eq!(problems(bad), 1, "{bad}");
        }
    }
}
