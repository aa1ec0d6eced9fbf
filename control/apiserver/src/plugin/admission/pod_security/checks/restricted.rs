//! The checks of the level `restricted`. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Check, Pod, Versioned, Violation,
    baseline::{SECCOMP_PROFILE, proc_mount, seccomp_setters},
    fields::{
        Setters, container_list, containers, containers_where, counted, has_user_namespace, is_windows, name, plural,
        quoted, uses,
    },
};

/// By name, as upstream orders them.
pub(super) const CHECKS: &[Versioned] = &[
    Versioned {
        replaces: None,
        name: "allowPrivilegeEscalation",
        versions: &[(8, allow_privilege_escalation), (25, |pod| unless_windows(pod, allow_privilege_escalation))],
    },
    Versioned {
        replaces: Some("capabilities_baseline"),
        name: "capabilities_restricted",
        versions: &[(22, capabilities), (25, |pod| unless_windows(pod, capabilities))],
    },
    // With 1.35 `baseline` came to allow it in user namespaces, this level did not.
    Versioned { replaces: Some("procMount"), name: "procMount_restricted", versions: &[(35, proc_mount)] },
    Versioned { replaces: Some("hostPathVolumes"), name: "restrictedVolumes", versions: &[(0, volumes)] },
    Versioned {
        replaces: None,
        name: "runAsNonRoot",
        versions: &[(0, run_as_non_root), (35, |pod| unless_user_namespace(pod, run_as_non_root))],
    },
    Versioned {
        replaces: None,
        name: "runAsUser",
        versions: &[(23, run_as_user), (35, |pod| unless_user_namespace(pod, run_as_user))],
    },
    Versioned {
        replaces: Some("seccompProfile_baseline"),
        name: "seccompProfile_restricted",
        versions: &[(19, seccomp_profile), (25, |pod| unless_windows(pod, seccomp_profile))],
    },
];

fn unless_windows(pod: Pod<'_>, check: Check) -> Option<Violation> {
    if is_windows(pod) { None } else { check(pod) }
}

fn unless_user_namespace(pod: Pod<'_>, check: Check) -> Option<Violation> {
    if has_user_namespace(pod) { None } else { check(pod) }
}

fn allow_privilege_escalation(pod: Pod<'_>) -> Option<Violation> {
    let bad = containers_where(pod, |c| c["securityContext"]["allowPrivilegeEscalation"] != false);
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", container_list(&bad));
    Some(Violation::new("allowPrivilegeEscalation != false", detail))
}

fn capabilities(pod: Pod<'_>) -> Option<Violation> {
    let (mut keeping, mut adding, mut added) = (Vec::new(), Vec::new(), BTreeSet::new());
    for container in containers(pod) {
        let list = |field: &str| container["securityContext"]["capabilities"][field].as_array().into_iter().flatten();
        if !list("drop").any(|capability| capability == "ALL") {
            keeping.push(name(container));
        }
        let bad: Vec<&str> = list("add").filter_map(Value::as_str).filter(|c| *c != "NET_BIND_SERVICE").collect();
        if !bad.is_empty() {
            adding.push(name(container));
            added.extend(bad);
        }
    }
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", container_list(&keeping)));
    }
    if !adding.is_empty() {
        let (who, what) = (container_list(&adding), quoted(&added));
        details.push(format!("{who} must not include {what} in securityContext.capabilities.add"));
    }
    (!details.is_empty()).then(|| Violation::new("unrestricted capabilities", details.join("; ")))
}

/// The sources of volumes that anybody may use.
const GOOD_SOURCES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn volumes(pod: Pod<'_>) -> Option<Violation> {
    let (mut bad, mut sources) = (Vec::new(), BTreeSet::new());
    for volume in pod.spec["volumes"].as_array().into_iter().flatten() {
        let mut of =
            volume.as_object().into_iter().flatten().filter(|(field, value)| *field != "name" && !value.is_null());
        let source = of.next().map_or("unknown", |(source, _)| source.as_str());
        if !GOOD_SOURCES.contains(&source) {
            bad.push(name(volume));
            sources.insert(source);
        }
    }
    if bad.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {}",
        counted("volume", &bad),
        uses(bad.len()),
        plural("restricted volume type", sources.len()),
        quoted(&sources)
    );
    Some(Violation::new("restricted volume types", detail))
}

fn run_as_non_root(pod: Pod<'_>) -> Option<Violation> {
    let refuse = |detail: String| Some(Violation::new("runAsNonRoot != true", detail));
    let wrong = Setters::find(pod, |context| (context["runAsNonRoot"] == false).then_some(""));
    if !wrong.is_empty() {
        return refuse(format!("{} must not set securityContext.runAsNonRoot=false", wrong.describe()));
    }
    if pod.spec["securityContext"]["runAsNonRoot"] == true {
        return None;
    }
    let unset = containers_where(pod, |c| c["securityContext"]["runAsNonRoot"] != true);
    if unset.is_empty() {
        return None;
    }
    refuse(format!("pod or {} must set securityContext.runAsNonRoot=true", container_list(&unset)))
}

fn run_as_user(pod: Pod<'_>) -> Option<Violation> {
    let wrong = Setters::find(pod, |context| (context["runAsUser"] == 0).then_some(""));
    let detail = format!("{} must not set runAsUser=0", wrong.describe());
    (!wrong.is_empty()).then(|| Violation::new("runAsUser=0", detail))
}

fn seccomp_profile(pod: Pod<'_>) -> Option<Violation> {
    if let Some(violation) = seccomp_setters(pod) {
        return Some(violation);
    }
    let is_unset = |of: &Value| of["securityContext"]["seccompProfile"].is_null();
    if !is_unset(pod.spec) {
        return None;
    }
    let unset = containers_where(pod, is_unset);
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        container_list(&unset)
    );
    (!unset.is_empty()).then(|| Violation::new(SECCOMP_PROFILE, detail))
}
