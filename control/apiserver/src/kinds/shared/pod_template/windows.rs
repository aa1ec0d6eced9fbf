//! What a pod says of its operating system, and what pods of Windows may have. Pure.

use super::containers;
use crate::{
    apiserver::pipeline::validation::{
        errors::{Cause, Errors},
        names,
    },
    kinds::shared::field::Field,
};

const MAX_SPEC_KIB: usize = 64;
const MAX_DOMAIN: usize = 256;
const MAX_USER: usize = 104;
const FOR_WINDOWS: &str = "cannot be set for a windows pod";
const FOR_LINUX: &str = "windows options cannot be set for a linux pod";
const ALL_OR_NONE: &str =
    "If pod contains any hostProcess containers then all containers must be HostProcess containers";

/// Validates `windowsOptions`.
pub(super) fn validate_options(options: &Field<'_>, errors: &mut Errors) {
    let (name, spec, user) =
        (options.at("gmsaCredentialSpecName"), options.at("gmsaCredentialSpec"), options.at("runAsUserName"));
    if name.is_set() {
        name.fits(names::subdomain, errors);
    }
    if spec.is_set() && spec.is_empty() {
        spec.invalid("gmsaCredentialSpec cannot be an empty string", errors);
    } else if spec.len() > MAX_SPEC_KIB * 1024 {
        spec.invalid(&format!("gmsaCredentialSpec size must be under {MAX_SPEC_KIB} KiB"), errors);
    }
    if user.is_set() {
        let problems = user_problems(user.text());
        problems.iter().for_each(|why| user.invalid(&format!("runAsUserName{why}"), errors));
    }
}

/// What is wrong with the name of a user, after the name of the field.
fn user_problems(name: &str) -> Vec<String> {
    let parts: Vec<&str> = name.split('\\').collect();
    if name.is_empty() {
        return vec![" cannot be an empty string".to_owned()];
    }
    if name.bytes().any(|b| b.is_ascii_control()) {
        return vec![" cannot contain control characters".to_owned()];
    }
    let (domain, user) = match parts[..] {
        [user] => (None, user),
        [domain, user] => (Some(domain), user),
        _ => return vec![" cannot contain more than one backslash".to_owned()],
    };
    let mut found = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= MAX_DOMAIN) {
        found.push(format!("'s Domain length must be under {MAX_DOMAIN} characters"));
    }
    if domain.is_some_and(|domain| !is_net_bios(domain) && !is_dns(domain)) {
        found.push("'s Domain doesn't match the NetBios nor the DNS format".to_owned());
    }
    if user.is_empty() {
        found.push("'s User cannot be empty".to_owned());
    } else if user.len() > MAX_USER {
        found.push(format!("'s User length must not be longer than {MAX_USER} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        found.push("'s User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        found.push("'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]".to_owned());
    }
    found
}

fn is_net_bios(domain: &str) -> bool {
    let forbidden = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];
    (1..=15).contains(&domain.chars().count()) && !domain.starts_with('.') && !domain.contains(forbidden)
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| names::label(&label.to_lowercase()).is_none())
}

/// Refuses pods of which only some containers are processes of the host.
pub(super) fn validate_host_process(spec: &Field<'_>, errors: &mut Errors) {
    let flag = |of: &Field<'_>| of.below("securityContext.windowsOptions.hostProcess").value.as_bool();
    let of_pod = flag(spec);
    let (mut all, mut on_host) = (0, 0);
    for container in containers(spec) {
        all += 1;
        let own = flag(&container);
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let why = format!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            container.below("securityContext.windowsOptions.hostProcess").invalid(&why, errors);
        }
        on_host += usize::from(own.or(of_pod) == Some(true));
    }
    if on_host > 0 {
        if on_host != all {
            errors.push(&spec.path, Cause::Invalid, format!("Invalid value: \"\": {ALL_OR_NONE}"));
        }
        if spec.value["hostNetwork"] != true {
            spec.at("hostNetwork").invalid_as(
                "false",
                "hostNetwork must be true if pod contains any hostProcess containers",
                errors,
            );
        }
    }
}

/// Validates `os` and the fields that depend on it.
pub(super) fn validate_os(spec: &Field<'_>, errors: &mut Errors) {
    let (os, name) = (spec.at("os"), spec.below("os.name"));
    match name.text() {
        _ if !os.is_set() => {}
        "" => name.required("", errors),
        "linux" => linux(spec, errors),
        "windows" => windows(spec, errors),
        // The path is upstream's.
        other => os.not_supported_as(&format!("{other:?}"), &["linux", "windows"], errors),
    }
}

fn linux(spec: &Field<'_>, errors: &mut Errors) {
    for of in std::iter::once(spec.clone()).chain(containers(spec)) {
        let options = of.below("securityContext.windowsOptions");
        if options.is_set() {
            options.forbidden(FOR_LINUX, errors);
        }
    }
}

fn windows(spec: &Field<'_>, errors: &mut Errors) {
    // In upstream's order, in whose type they stand together.
    const OF_PODS: [&str; 15] = [
        "securityContext.appArmorProfile",
        "securityContext.seLinuxOptions",
        "hostUsers",
        "hostPID",
        "hostIPC",
        "securityContext.seccompProfile",
        "securityContext.fsGroup",
        "securityContext.fsGroupChangePolicy",
        "securityContext.sysctls",
        "shareProcessNamespace",
        "securityContext.runAsUser",
        "securityContext.runAsGroup",
        "securityContext.supplementalGroups",
        "securityContext.supplementalGroupsPolicy",
        "securityContext.seLinuxChangePolicy",
    ];
    const OF_CONTAINERS: [&str; 10] = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    for field in OF_PODS.map(|path| spec.below(path)) {
        let unset = match field.path.name() {
            "hostPID" | "hostIPC" => *field.value != true,
            "sysctls" => field.is_empty(),
            _ => !field.is_set(),
        };
        if !unset {
            field.forbidden(FOR_WINDOWS, errors);
        }
    }
    for context in containers(spec).map(|container| container.at("securityContext")) {
        for field in OF_CONTAINERS.map(|field| context.at(field)).iter().filter(|field| field.is_set()) {
            field.forbidden(FOR_WINDOWS, errors);
        }
    }
}
