//! The places of the built-in group versions in discovery: upstream's `DefaultGenericAPIServicePriorities`, and
//! `defaultAPIServicePriorities` of kube-apiserver. Pure.

use crate::apiserver::types::Priority;

/// The priority of each group among the groups; a group that is not here has that of an aggregated one.
const GROUPS: [(&str, i64); 21] = [
    // Above all that an APIService may say.
    ("apiregistration.k8s.io", 20_001),
    ("", 18_000),
    ("apps", 17_800),
    ("events.k8s.io", 17_750),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("networking.k8s.io", 17_200),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("storage.k8s.io", 16_800),
    ("admissionregistration.k8s.io", 16_700),
    ("apiextensions.k8s.io", 16_700),
    ("scheduling.k8s.io", 16_600),
    ("coordination.k8s.io", 16_500),
    ("node.k8s.io", 16_300),
    ("discovery.k8s.io", 16_200),
    ("resource.k8s.io", 16_200),
    ("flowcontrol.apiserver.k8s.io", 16_100),
];
const OTHER_GROUP: i64 = 100;

/// The priority of a built-in group version.
pub(crate) fn priority_of(group: &str, version: &str) -> Priority {
    let found = GROUPS.iter().find(|(known, _)| *known == group).map(|(_, priority)| *priority);
    let of_version = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("autoscaling", "v2beta1") => 9,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", _) => 21,
        _ if found.is_some() => 15,
        _ => 100,
    };
    Priority { group: found.unwrap_or(OTHER_GROUP), version: of_version }
}
