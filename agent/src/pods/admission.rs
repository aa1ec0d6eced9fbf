//! What this node cannot or must not run, whatever was scheduled here. Pure.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::spec;

/// Why a pod is refused, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Settings of the kernel that are a namespace's own and harm nobody else; upstream's list.
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

/// Whether this node refuses a pod; asked before anything of it is made.
pub(crate) fn refuse(pod: &Pod) -> Option<Refused> {
    let spec = pod.spec.as_ref()?;
    sysctls(spec).or_else(|| others(spec))
}

fn sysctls(spec: &PodSpec) -> Option<Refused> {
    let forbidden =
        |why: String| Some(Refused { reason: "SysctlForbidden", message: format!("Pod was rejected: {why}") });
    for sysctl in spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
        // Both ways of writing a name are the API's.
        let name = sysctl.name.replace('/', ".");
        if spec::host_network(spec) && name.starts_with("net.") {
            return forbidden(format!("forbidden sysctl: {name:?} not allowed with host net enabled"));
        }
        if spec.host_ipc == Some(true) && !name.starts_with("net.") {
            return forbidden(format!("forbidden sysctl: {name:?} not allowed with host ipc enabled"));
        }
        if !SAFE_SYSCTLS.contains(&name.as_str()) {
            return forbidden(format!("forbidden sysctl: {name:?} not allowlisted"));
        }
    }
    None
}

fn others(spec: &PodSpec) -> Option<Refused> {
    let refused = |reason, why: &str| Some(Refused { reason, message: format!("Pod was rejected: {why}") });
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return refused("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    if spec.host_users == Some(false) {
        // Docker maps users for the whole daemon or not at all.
        return refused(
            "PodFeatureUnsupported",
            "Docker Engine has no user namespaces for single pods (hostUsers: false)",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_refuses() {
        let reason = |spec: &str| {
            let pod: Pod = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
            refuse(&pod).map(|r| r.reason)
        };
        let sysctl = |name: &str, rest: &str| {
            format!(r#"{{"containers":[],{rest}"securityContext":{{"sysctls":[{{"name":"{name}","value":"1"}}]}}}}"#)
        };
        assert_eq!(reason(r#"{"containers":[]}"#), None);
        assert_eq!(reason(&sysctl("net.ipv4.tcp_syncookies", "")), None);
        assert_eq!(reason(&sysctl("net/ipv4/tcp_syncookies", "")), None);
        assert_eq!(reason(&sysctl("kernel.msgmax", "")), Some("SysctlForbidden"));
        assert_eq!(reason(&sysctl("net.ipv4.tcp_syncookies", r#""hostNetwork":true,"#)), Some("SysctlForbidden"));
        assert_eq!(reason(&sysctl("kernel.shm_rmid_forced", r#""hostIPC":true,"#)), Some("SysctlForbidden"));
        assert_eq!(reason(r#"{"containers":[],"os":{"name":"windows"}}"#), Some("PodOSNotSupported"));
        assert_eq!(reason(r#"{"containers":[],"hostUsers":false}"#), Some("PodFeatureUnsupported"));
    }
}
