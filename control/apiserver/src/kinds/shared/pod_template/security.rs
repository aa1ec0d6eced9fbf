//! Who a pod and its containers may be: security contexts, sysctls, and namespaces of the host. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{container::Pod, containers, leniency::Broken, security_profiles, windows};
use crate::{
    apiserver::pipeline::validation::errors::Errors,
    kinds::shared::{
        field::Field,
        internal_version::{Internal, SECURITY_CONTEXT},
    },
};

const MAX_SYSCTL_BYTES: usize = 253;
const SYSCTL: &str = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
const WITH_USERS: &str = "when `hostUsers` is false";

/// Whether the pod has users of its own.
pub(super) fn has_users(spec: &Field<'_>) -> bool {
    spec.value["hostUsers"] == false
}

/// Refuses a number that is no user or group.
fn id(id: &Field<'_>, errors: &mut Errors) {
    if id.number().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
        id.invalid("must be between 0 and 2147483647, inclusive", errors);
    }
}

/// Validates the context of a container.
pub(super) fn validate_container(context: &Field<'_>, has_users: bool, errors: &mut Errors) {
    id(&context.at("runAsUser"), errors);
    id(&context.at("runAsGroup"), errors);
    let mount = context.at("procMount");
    mount.optional_one_of(&["Default", "Unmasked"], errors);
    if mount.text() == "Unmasked" && !has_users {
        mount.invalid("`hostUsers` must be false to use `Unmasked`", errors);
    }
    security_profiles::validate_seccomp(&context.at("seccompProfile"), errors);
    if context.value["allowPrivilegeEscalation"] == false {
        let mut refuse = |what: &str| {
            let shown = Internal::new(SECURITY_CONTEXT, context.value).text();
            context.invalid_as(&shown, &format!("cannot set `allowPrivilegeEscalation` to false and {what}"), errors);
        };
        if context.value["privileged"] == true {
            refuse("`privileged` to true");
        }
        for _ in context.below("capabilities.add").texts().iter().filter(|capability| **capability == "CAP_SYS_ADMIN") {
            refuse("`capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    windows::validate_options(&context.at("windowsOptions"), errors);
    security_profiles::validate_app_armor(&context.at("appArmorProfile"), errors);
}

/// Validates the context of a pod.
pub(super) fn validate_pod(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let context = spec.at("securityContext");
    ["fsGroup", "runAsUser", "runAsGroup"].iter().for_each(|field| id(&context.at(field), errors));
    context.at("supplementalGroups").items().for_each(|group| id(&group, errors));
    if spec.value["hostPID"] == true && spec.value["shareProcessNamespace"] == true {
        let share = Field { value: &Value::Bool(true), path: context.at("shareProcessNamespace").path };
        share.invalid("ShareProcessNamespace and HostPID cannot both be enabled", errors);
    }
    sysctls(spec, pod, errors);
    context.at("fsGroupChangePolicy").optional_one_of(&["Always", "OnRootMismatch"], errors);
    security_profiles::validate_seccomp(&context.at("seccompProfile"), errors);
    windows::validate_options(&context.at("windowsOptions"), errors);
    security_profiles::validate_app_armor(&context.at("appArmorProfile"), errors);
    context.at("supplementalGroupsPolicy").optional_one_of(&["Merge", "Strict"], errors);
    let labels = context.at("seLinuxChangePolicy");
    if pod.leniency.allows(Broken::SeLinuxPolicy) {
        labels.optional_one_of(&["MountOption", "Recursive"], errors);
    } else {
        labels.optional_one_of(&["Recursive"], errors);
    }
}

fn is_sysctl(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        bytes.iter().all(|b| fine(*b)) && end(bytes.first()) && end(bytes.last())
    };
    name.len() <= MAX_SYSCTL_BYTES && name.split(['.', '/']).all(is_segment)
}

fn sysctls(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    let of_host: Vec<_> = sysctls_of_host(spec).collect();
    for name in spec.below("securityContext.sysctls").items().map(|sysctl| sysctl.at("name")) {
        if name.is_empty() {
            name.required("", errors);
        } else if !is_sysctl(name.text()) {
            name.invalid(SYSCTL, errors);
        } else if seen.contains(name.text()) {
            name.duplicate(errors);
        }
        if let Some((_, flag)) = of_host.iter().find(|(own, _)| own.path.to_string() == name.path.to_string())
            && !pod.leniency.allows(Broken::OwnSysctls)
        {
            name.invalid(&format!("may not be specified when '{flag}' is true"), errors);
        }
        seen.insert(name.text());
    }
}

/// The names of sysctls that would change the host, and the field which shares its namespace.
pub(super) fn sysctls_of_host<'a>(spec: &Field<'a>) -> impl Iterator<Item = (Field<'a>, &'static str)> + use<'a> {
    let shares = [("hostNetwork", is_of_network as fn(&str) -> bool), ("hostIPC", is_of_ipc)]
        .map(|(flag, is)| (spec.value[flag] == true, flag, is));
    let names = spec.below("securityContext.sysctls").items().map(|sysctl| sysctl.at("name"));
    names.filter_map(move |name| {
        let dotted = normalized(name.text());
        let plain = dotted.split('*').next().unwrap_or_default();
        let (_, flag, _) = shares.into_iter().find(|(shared, _, is)| *shared && is(plain))?;
        Some((name, flag))
    })
}

/// The name with dots: sysctl(8) reads a name by the first of its separators.
fn normalized(name: &str) -> String {
    if name.find(['.', '/']).is_some_and(|at| name.as_bytes()[at] == b'/') {
        let swap = |c| match c {
            '/' => '.',
            '.' => '/',
            other => other,
        };
        return name.chars().map(swap).collect();
    }
    name.to_owned()
}

fn is_of_network(name: &str) -> bool {
    name.starts_with("net.")
}

fn is_of_ipc(name: &str) -> bool {
    const NAMES: [&str; 10] = [
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.shm",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.msg",
    ];
    NAMES.contains(&name) || name.starts_with("fs.mqueue.")
}

/// Refuses what does not go with users of the pod's own.
pub(super) fn validate_users(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    if !has_users(spec) {
        return;
    }
    // The paths are upstream's.
    let shares = [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")];
    for (flag, shown) in shares.into_iter().filter(|(flag, _)| spec.value[*flag] == true) {
        if flag != "hostNetwork" || !pod.leniency.allows(Broken::HostNetworkOfUsers) {
            spec.at(shown).forbidden(WITH_USERS, errors);
        }
    }
    if !pod.leniency.allows(Broken::DevicesOfUsers) {
        for devices in containers(spec).map(|container| container.at("volumeDevices")).filter(|all| !all.is_empty()) {
            devices.forbidden(WITH_USERS, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::normalized;

    #[test]
    fn the_first_separator_decides() {
        assert_eq!(normalized("net/ipv4/conf/eth0.1/x"), "net.ipv4.conf.eth0/1.x");
        assert_eq!(normalized("net.ipv4.conf.eth0/1.x"), "net.ipv4.conf.eth0/1.x");
    }
}
