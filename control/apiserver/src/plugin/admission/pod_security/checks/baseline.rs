//! The checks of the level `baseline`. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Pod, Versioned, Violation,
    fields::{
        Setters, container_list, containers, containers_where, counted, has_user_namespace, name, plural, quoted, uses,
    },
};

/// By name, as upstream orders them.
pub(super) const CHECKS: &[Versioned] = &[
    check("appArmorProfile", &[(0, app_armor_profile)]),
    check("capabilities_baseline", &[(0, capabilities)]),
    check("hostNamespaces", &[(0, host_namespaces)]),
    check("hostPathVolumes", &[(0, host_path_volumes)]),
    check("hostPorts", &[(0, host_ports)]),
    check("hostProbesAndHostLifecycle", &[(34, probe_hosts)]),
    check("privileged", &[(0, privileged)]),
    check("procMount", &[(0, proc_mount), (35, proc_mount_35)]),
    check(
        "seLinuxOptions",
        &[(0, |pod| se_linux_options(pod, &SE_LINUX_TYPES[..4])), (31, |pod| se_linux_options(pod, &SE_LINUX_TYPES))],
    ),
    check("seccompProfile_baseline", &[(0, seccomp_annotations), (19, seccomp_setters)]),
    check(
        "sysctls",
        &[
            (0, |pod| sysctls(pod, 0)),
            (27, |pod| sysctls(pod, 27)),
            (29, |pod| sysctls(pod, 29)),
            (32, |pod| sysctls(pod, 32)),
        ],
    ),
    check("windowsHostProcess", &[(0, windows_host_process)]),
];

const fn check(name: &'static str, versions: &'static [(u32, super::Check)]) -> Versioned {
    Versioned { replaces: None, name, versions }
}

/// The type of a profile, AppArmor's or seccomp's, that takes the container's confinement away.
fn bad_profile(profile: &Value) -> Option<&str> {
    profile["type"].as_str().filter(|of| !matches!(*of, "RuntimeDefault" | "Localhost"))
}

fn app_armor_profile(pod: Pod<'_>) -> Option<Violation> {
    let found = Setters::find(pod, |context| bad_profile(&context["appArmorProfile"]));
    let is_bad = |(key, value): &(&String, &str)| {
        key.starts_with("container.apparmor.security.beta.kubernetes.io/")
            && !(value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/"))
    };
    let annotations: Vec<String> = text_annotations(pod).filter(is_bad).map(annotation).collect();
    let mut setters = found.names();
    if !annotations.is_empty() {
        setters.push(plural("annotation", annotations.len()));
    }
    if setters.is_empty() {
        return None;
    }
    let values: Vec<&str> = found.values.iter().copied().chain(annotations.iter().map(String::as_str)).collect();
    let detail = format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(&values));
    Some(Violation::new(&plural("forbidden AppArmor profile", values.len()), detail))
}

/// The annotations of a pod, ordered by key.
fn text_annotations(pod: Pod<'_>) -> impl Iterator<Item = (&String, &str)> {
    let mut all: Vec<(&String, &str)> = Vec::new();
    all.extend(
        pod.metadata["annotations"].as_object().into_iter().flatten().filter_map(|(k, v)| Some((k, v.as_str()?))),
    );
    all.sort_unstable();
    all.into_iter()
}

fn annotation((key, value): (&String, &str)) -> String {
    format!("{key}={value:?}")
}

/// The capabilities that Docker and others give by default.
const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn capabilities(pod: Pod<'_>) -> Option<Violation> {
    let mut added = BTreeSet::new();
    let mut bad = Vec::new();
    for container in containers(pod) {
        let all = container["securityContext"]["capabilities"]["add"].as_array().into_iter().flatten();
        let more: Vec<&str> = all.filter_map(Value::as_str).filter(|one| !DEFAULT_CAPABILITIES.contains(one)).collect();
        if !more.is_empty() {
            bad.push(name(container));
            added.extend(more);
        }
    }
    let (who, what) = (container_list(&bad), quoted(&added));
    let detail = format!("{who} must not include {what} in securityContext.capabilities.add");
    (!bad.is_empty()).then(|| Violation::new("non-default capabilities", detail))
}

fn host_namespaces(pod: Pod<'_>) -> Option<Violation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| pod.spec[field] == true);
    let shared: Vec<String> = shared.map(|field| format!("{field}=true")).collect();
    (!shared.is_empty()).then(|| Violation::new("host namespaces", shared.join(", ")))
}

fn host_path_volumes(pod: Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec["volumes"].as_array().into_iter().flatten();
    let bad: Vec<&str> = volumes.filter(|volume| !volume["hostPath"].is_null()).map(name).collect();
    (!bad.is_empty()).then(|| Violation::new("hostPath volumes", counted("volume", &bad)))
}

fn host_ports(pod: Pod<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let mut bad = Vec::new();
    for container in containers(pod) {
        let all = container["ports"].as_array().into_iter().flatten();
        let taken: Vec<String> = all
            .filter_map(|port| port["hostPort"].as_i64())
            .filter(|port| *port != 0)
            .map(|port| port.to_string())
            .collect();
        if !taken.is_empty() {
            bad.push(name(container));
            ports.extend(taken);
        }
    }
    let listed: Vec<&str> = ports.iter().map(String::as_str).collect();
    let detail = format!(
        "{} {} {} {}",
        container_list(&bad),
        uses(bad.len()),
        plural("hostPort", ports.len()),
        listed.join(", ")
    );
    (!bad.is_empty()).then(|| Violation::new("hostPort", detail))
}

fn probe_hosts(pod: Pod<'_>) -> Option<Violation> {
    let mut hosts = BTreeSet::new();
    let mut bad = Vec::new();
    for container in containers(pod) {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
        let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
        let actions = probes.into_iter().chain(hooks).flat_map(|of| [&of["httpGet"], &of["tcpSocket"]]);
        let named: Vec<&str> =
            actions.filter_map(|action| action["host"].as_str()).filter(|host| !host.is_empty()).collect();
        if !named.is_empty() {
            bad.push(name(container));
            hosts.extend(named);
        }
    }
    let detail = format!(
        "{} {} {} {}",
        container_list(&bad),
        uses(bad.len()),
        plural("probe or lifecycle host", hosts.len()),
        quoted(&hosts)
    );
    (!bad.is_empty()).then(|| Violation::new("probe or lifecycle host", detail))
}

fn privileged(pod: Pod<'_>) -> Option<Violation> {
    let bad = containers_where(pod, |container| container["securityContext"]["privileged"] == true);
    let detail = format!("{} must not set securityContext.privileged=true", container_list(&bad));
    (!bad.is_empty()).then(|| Violation::new("privileged", detail))
}

fn proc_mount_35(pod: Pod<'_>) -> Option<Violation> {
    if has_user_namespace(pod) { None } else { proc_mount(pod) }
}

pub(super) fn proc_mount(pod: Pod<'_>) -> Option<Violation> {
    let bad = |container: &'_ Value| {
        container["securityContext"]["procMount"].as_str().is_some_and(|mount| mount != "Default")
    };
    let names = containers_where(pod, bad);
    let types: BTreeSet<&str> = containers(pod)
        .filter(|container| bad(container))
        .filter_map(|container| container["securityContext"]["procMount"].as_str())
        .collect();
    let detail = format!("{} must not set securityContext.procMount to {}", container_list(&names), quoted(&types));
    (!names.is_empty()).then(|| Violation::new("procMount", detail))
}

/// The types of SELinux that containers may have; the last since 1.31.
const SE_LINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

fn se_linux_options(pod: Pod<'_>, good: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let contexts = std::iter::once(&pod.spec["securityContext"]).chain(containers(pod).map(|c| &c["securityContext"]));
    for options in contexts.map(|context| &context["seLinuxOptions"]) {
        let text = |field: &str| options[field].as_str().unwrap_or("");
        types.extend(options["type"].as_str().filter(|of| !good.contains(of)));
        user |= !text("user").is_empty();
        role |= !text("role").is_empty();
    }
    let setters = Setters::find(pod, |context| {
        let options = &context["seLinuxOptions"];
        let text = |field: &str| options[field].as_str().unwrap_or("");
        let bad = !good.contains(&text("type")) || !text("user").is_empty() || !text("role").is_empty();
        bad.then_some("")
    });
    if setters.is_empty() {
        return None;
    }
    let mut wrong = Vec::new();
    if !types.is_empty() {
        wrong.push(format!("{} {}", plural("type", types.len()), quoted(&types)));
    }
    wrong.extend(user.then(|| "user may not be set".to_owned()));
    wrong.extend(role.then(|| "role may not be set".to_owned()));
    let detail = format!("{} set forbidden securityContext.seLinuxOptions: {}", setters.describe(), wrong.join("; "));
    Some(Violation::new("seLinuxOptions", detail))
}

pub(super) const SECCOMP_PROFILE: &str = "seccompProfile";

/// Profiles that are set and bad: since 1.19, when fields took the place of annotations.
pub(super) fn seccomp_setters(pod: Pod<'_>) -> Option<Violation> {
    let wrong = Setters::find(pod, |context| bad_profile(&context["seccompProfile"]));
    let (who, values) = (wrong.describe(), quoted(&wrong.values));
    let detail = format!("{who} must not set securityContext.seccompProfile.type to {values}");
    (!wrong.is_empty()).then(|| Violation::new(SECCOMP_PROFILE, detail))
}

/// The annotations that had the place of the fields before 1.19.
fn seccomp_annotations(pod: Pod<'_>) -> Option<Violation> {
    let keys: BTreeSet<String> = containers(pod)
        .map(|container| format!("container.seccomp.security.alpha.kubernetes.io/{}", name(container)))
        .chain(["seccomp.security.alpha.kubernetes.io/pod".to_owned()])
        .collect();
    let is_good =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let wrong: Vec<String> =
        text_annotations(pod).filter(|(key, value)| keys.contains(*key) && !is_good(value)).map(annotation).collect();
    let detail = format!("forbidden {} {}", plural("annotation", wrong.len()), wrong.join(", "));
    (!wrong.is_empty()).then(|| Violation::new(SECCOMP_PROFILE, detail))
}

/// Parameters of the kernel that reach no further than the pod, with the release that allowed them.
const SAFE_SYSCTLS: [(u32, &str); 12] = [
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

fn sysctls(pod: Pod<'_>, minor: u32) -> Option<Violation> {
    let all = pod.spec["securityContext"]["sysctls"].as_array().into_iter().flatten().map(name);
    let is_safe = |name: &str| SAFE_SYSCTLS.iter().any(|(since, safe)| *since <= minor && *safe == name);
    let bad: Vec<&str> = all.filter(|name| !is_safe(name)).collect();
    (!bad.is_empty()).then(|| Violation::new("forbidden sysctls", bad.join(", ")))
}

fn windows_host_process(pod: Pod<'_>) -> Option<Violation> {
    let wrong = Setters::find(pod, |context| (context["windowsOptions"]["hostProcess"] == true).then_some(""));
    let detail = format!("{} must not set securityContext.windowsOptions.hostProcess=true", wrong.describe());
    (!wrong.is_empty()).then(|| Violation::new("hostProcess", detail))
}
