//! What a pod uses of a quota. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use windlass_kit::{
    objects::resource_names::{REQUESTS, is_extended, is_native},
    quantity::Quantity,
};

use super::{
    ResourceList, names,
    pod_resources::{Side, charged, has_own},
};

const HUGE_PAGES: &str = "hugepages-";
/// The pods that have not ended.
const PODS: &str = "pods";
/// Resources of pods that quotas count, besides those with a prefix.
const RESOURCES: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    PODS,
];
/// Resources that each container must state where a quota counts them.
const REQUIRED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Whether a resource of a quota is one of pods.
pub(super) fn counts(name: &str) -> bool {
    let request = name.strip_prefix(REQUESTS);
    RESOURCES.contains(&name)
        || name.starts_with(HUGE_PAGES)
        || request.is_some_and(|rest| rest.starts_with(HUGE_PAGES) || !is_native(name))
}

/// What a pod uses. One that has ended uses nothing.
pub(super) fn usage(pod: &Value, now: Timestamp) -> ResourceList {
    if has_ended(pod, now) {
        return ResourceList::default();
    }
    let mut usage = by_quota_name(&charged(pod, Side::Requests), &charged(pod, Side::Limits));
    usage.set(PODS, Quantity::from_units(1));
    usage
}

/// Terminal pods, and those that should have been gone already: their node may be lost.
fn has_ended(pod: &Value, now: Timestamp) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
        || charged_until(
            pod["metadata"]["deletionTimestamp"].as_str().and_then(|at| at.parse().ok()),
            pod["metadata"]["deletionGracePeriodSeconds"].as_i64(),
        )
        .is_some_and(|end| now > end)
}

/// Until when a pod that is being deleted counts, by its deletion timestamp and grace period.
pub fn charged_until(deletion: Option<Timestamp>, grace: Option<i64>) -> Option<Timestamp> {
    let (deletion, grace) = (deletion?, SignedDuration::from_secs(grace?));
    Some(deletion.checked_add(grace).unwrap_or(Timestamp::MAX))
}

/// Requests and limits by the names that quotas give them.
fn by_quota_name(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut usage = ResourceList::default();
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(resource) {
            usage.set(resource, request);
            usage.set(format!("{REQUESTS}{resource}"), request);
        }
        if let Some(limit) = limits.get(resource) {
            usage.set(format!("limits.{resource}"), limit);
        }
    }
    for (resource, request) in &requests.0 {
        let is_huge_page = resource.starts_with(HUGE_PAGES);
        if is_huge_page {
            usage.set(resource.clone(), *request);
        }
        if is_huge_page || is_extended(resource) {
            usage.set(format!("{REQUESTS}{resource}"), *request);
        }
    }
    usage
}

/// Each container must state CPU and memory where they are counted, unless the pod does so as a whole.
pub(super) fn check_stated<'a>(pod: &Value, counted: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let required: Vec<&str> = counted.filter(|name| REQUIRED.contains(name)).collect();
    let spec = &pod["spec"];
    if required.is_empty() || has_own(spec) {
        return Ok(());
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in ["containers", "initContainers"].iter().flat_map(|list| spec[*list].as_array()).flatten() {
        let resources = &container["resources"];
        let stated = by_quota_name(&Side::Requests.of(resources), &Side::Limits.of(resources));
        for name in required.iter().filter(|name| stated.get(name).is_none()) {
            missing.entry(name).or_default().insert(container["name"].as_str().unwrap_or(""));
        }
    }
    let missing = missing.into_iter().map(|(resource, containers)| format!("{resource} for: {}", names(containers)));
    let missing: Vec<String> = missing.collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("must specify {}", missing.join("; "))) }
}
