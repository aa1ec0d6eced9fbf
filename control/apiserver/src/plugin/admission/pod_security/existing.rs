//! What a namespace's pods have to fear of a tighter level: they stay, and their successors would be refused. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    checks::{Violation, violations},
    pod_of,
    policy::LevelVersion,
};

/// Pods that are looked at (upstream's number).
const MAX_PODS: usize = 3000;

/// The warnings about the pods of a namespace that violate a level.
pub(super) fn warnings(namespace: &str, level: LevelVersion, pods: &[Value]) -> Vec<String> {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let looked_at: Vec<&Value> = one_of_each_owner_first(pods).into_iter().take(MAX_PODS).collect();
    for pod in &looked_at {
        let reasons: Vec<String> =
            violations(level, pod_of(pod)).into_iter().map(|Violation { reason, .. }| reason).collect();
        if !reasons.is_empty() {
            let name = pod["metadata"]["name"].as_str().unwrap_or("");
            found.entry(reasons.join(", ")).or_default().insert(name);
        }
    }
    let mut warnings = Vec::new();
    if looked_at.len() < pods.len() {
        let (some, all) = (looked_at.len(), pods.len());
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {some} of {all} existing pods"
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{level}\""
        ));
    }
    let mut of_pods: Vec<String> = found.iter().map(|(reasons, names)| about(reasons, names)).collect();
    of_pods.sort_unstable();
    warnings.extend(of_pods);
    warnings
}

fn about(reasons: &str, names: &BTreeSet<&str>) -> String {
    let first = names.first().unwrap_or(&"");
    match names.len() {
        0 | 1 => format!("{first}: {reasons}"),
        2 => format!("{first} (and 1 other pod): {reasons}"),
        more => format!("{first} (and {} other pods): {reasons}", more - 1),
    }
}

/// The pods, those without a controller and one of each controller first: its others are mostly alike.
fn one_of_each_owner_first(pods: &[Value]) -> Vec<&Value> {
    let mut seen = BTreeSet::new();
    let controller = |pod: &Value| {
        let owners = pod["metadata"]["ownerReferences"].as_array()?;
        owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str().map(str::to_owned)
    };
    let (mut first, later): (Vec<&Value>, Vec<&Value>) =
        pods.iter().partition(|pod| controller(pod).is_none_or(|owner| seen.insert(owner)));
    first.extend(later);
    first
}
