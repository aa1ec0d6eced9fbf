//! Ranks pods for eviction and formats its messages. Pure; rules and texts are upstream's.

use std::{cmp::Reverse, collections::BTreeMap};

use k8s_openapi::api::core::v1::{Container, Pod};
use windlass_kit::quantity::Quantity;

use crate::pods::is_critical;

use super::{
    signals::Observation,
    thresholds::{Signal, Threshold},
};

/// Usage of one container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ContainerStats {
    /// The working set; `None` when nothing was measured.
    pub(super) memory: Option<u64>,
    /// The writable layer and logs.
    pub(super) disk: Option<u64>,
    pub(super) inodes: Option<u64>,
    pub(super) processes: Option<u64>,
}

/// Usage of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodStats {
    /// The working set of the pod's own cgroup, which also has what containers that ended have left there; `None` when it
    /// was not measured.
    pub(super) memory: Option<u64>,
    pub(super) containers: BTreeMap<String, ContainerStats>,
    /// Bytes of each emptyDir on the disk.
    pub(super) empty_dirs: BTreeMap<String, u64>,
    pub(super) empty_dir_inodes: u64,
    /// Bytes of node files that its containers can write, such as termination messages.
    pub(super) node_files: u64,
    pub(super) node_file_inodes: u64,
}

impl PodStats {
    /// Total usage of a signal's resource; `None` if it was not measured.
    fn of(&self, signal: Signal) -> Option<i64> {
        let sum = |of: fn(&ContainerStats) -> Option<u64>| {
            let measured: Vec<u64> = self.containers.values().filter_map(of).collect();
            (!measured.is_empty()).then(|| measured.into_iter().fold(0, u64::saturating_add))
        };
        let total = match signal.resource() {
            "memory" => self.memory.or_else(|| sum(|u| u.memory))?,
            "ephemeral-storage" => {
                sum(|u| u.disk)?.saturating_add(self.empty_dirs.values().sum()).saturating_add(self.node_files)
            }
            "inodes" => sum(|u| u.inodes)?.saturating_add(self.empty_dir_inodes).saturating_add(self.node_file_inodes),
            _ => sum(|u| u.processes)?,
        };
        Some(i64::try_from(total).unwrap_or(i64::MAX))
    }
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers))
}

fn amount(
    map: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
    resource: &str,
) -> Option<i64> {
    map?.get(resource)?.0.parse::<Quantity>().ok().map(Quantity::units)
}

/// A container's request; zero for resources without requests, such as inodes.
fn container_request(container: &Container, resource: &str) -> i64 {
    amount(container.resources.as_ref().and_then(|r| r.requests.as_ref()), resource).unwrap_or(0)
}

fn container_limit(container: &Container, resource: &str) -> Option<i64> {
    amount(container.resources.as_ref().and_then(|r| r.limits.as_ref()), resource)
}

/// The total of a pod: the sum of its containers and sidecars, or the largest init container if that is more; `None` if
/// none has a value.
fn total(pod: &Pod, of: impl Fn(&Container) -> Option<i64>) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let init = || spec.init_containers.iter().flatten();
    let is_sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let main = spec.containers.iter().chain(init().filter(is_sidecar)).filter_map(&of);
    let lasting = main.reduce(i64::saturating_add);
    lasting.into_iter().chain(init().filter(|c| !is_sidecar(c)).filter_map(&of)).max()
}

/// A pod's request.
fn pod_request(pod: &Pod, resource: &str) -> i64 {
    let spec = pod.spec.as_ref();
    let own = amount(spec.and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref()), resource);
    let overhead = amount(spec.and_then(|s| s.overhead.as_ref()), resource).unwrap_or(0);
    let sum = own.or_else(|| total(pod, |c| Some(container_request(c, resource)))).unwrap_or(0);
    sum.saturating_add(overhead)
}

/// A pod and its usage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) pod: &'a Pod,
    pub(super) usage: &'a PodStats,
}

/// Sorts pods by eviction order: those above their request first, then lower priority, then by the excess. Process ids
/// have no requests. Pods without measurements come first, as upstream; critical pods are left out.
pub(super) fn rank<'a>(signal: Signal, candidates: impl Iterator<Item = Candidate<'a>>) -> Vec<Candidate<'a>> {
    let resource = signal.resource();
    let mut all: Vec<Candidate<'a>> = candidates.filter(|c| !is_critical(c.pod)).collect();
    all.sort_by_cached_key(|candidate| {
        let used = candidate.usage.of(signal);
        let above = used.map(|used| used.saturating_sub(pod_request(candidate.pod, resource)));
        let (known, exceeds) = (used.is_some(), resource != "pids" && above.is_some_and(|a| a > 0));
        (known, !exceeds, priority(candidate.pod), Reverse(above.unwrap_or(0)))
    });
    all
}

/// Bytes in binary units, anything else as a plain number.
fn format_amount(signal: Signal, amount: i64) -> String {
    let quantity = if signal.is_bytes() { Quantity::from_bytes(amount) } else { Quantity::from_units(amount) };
    quantity.to_string()
}

/// The pod's message for an eviction, and the annotations of its event.
pub(super) fn eviction_message(
    threshold: &Threshold,
    observed: Observation,
    candidate: Candidate<'_>,
) -> (String, BTreeMap<String, String>) {
    let signal = threshold.signal;
    let resource = signal.resource();
    let mut message = format!("The node was low on resource: {resource}. ");
    let quantity = format_amount(signal, threshold.amount.of(observed.capacity));
    message += &format!("Threshold quantity: {quantity}, available: {}. ", format_amount(signal, observed.available));
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for container in containers(candidate.pod) {
        let Some(used) = candidate.usage.containers.get(&container.name) else { continue };
        let used = match resource {
            "memory" => used.memory,
            "ephemeral-storage" => used.disk,
            _ => None,
        };
        let Some(used) = used.and_then(|u| i64::try_from(u).ok()) else { continue };
        let request = container_request(container, resource);
        if used > request {
            let (used, request) = (format_amount(signal, used), format_amount(signal, request));
            message += &format!(
                "Container {} was using {used}, request is {request}, has larger consumption of {resource}. ",
                container.name
            );
            names.push(container.name.clone());
            usages.push(used);
        }
    }
    let annotations = [
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", usages.join(",")),
        ("starved_resource", resource.to_owned()),
    ];
    (message, annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Which limit of local storage a pod exceeds, in upstream's words and order; `None` if none.
pub(super) fn exceeded_limit(pod: &Pod, usage: &PodStats) -> Option<(&'static str, String)> {
    let spec = pod.spec.as_ref()?;
    for volume in spec.volumes.iter().flatten() {
        let Some(limit) = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref()) else { continue };
        let bytes = limit.0.parse::<Quantity>().ok().map(Quantity::units).filter(|b| *b > 0);
        let used = usage.empty_dirs.get(&volume.name).and_then(|u| i64::try_from(*u).ok());
        if bytes.zip(used).is_some_and(|(limit, used)| used > limit) {
            let why = format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", volume.name, limit.0);
            return Some(("emptydirfs.limit", why));
        }
    }
    let storage = "ephemeral-storage";
    let all = total(pod, |c| container_limit(c, storage));
    if let Some(total) = all.filter(|total| usage.of(Signal::NodeFs).is_some_and(|used| used > *total)) {
        let total = Quantity::from_bytes(total);
        let why = format!("Pod ephemeral local storage usage exceeds the total limit of containers {total}. ");
        return Some(("ephemeralpodfs.limit", why));
    }
    containers(pod).find_map(|container| {
        let limit = container_limit(container, storage)?;
        let used = i64::try_from(usage.containers.get(&container.name)?.disk?).ok()?;
        let text = container.resources.as_ref()?.limits.as_ref()?.get(storage)?.0.clone();
        let why = format!("Container {} exceeded its local ephemeral storage limit {text:?}. ", container.name);
        (used > limit).then_some(("ephemeralcontainerfs.limit", why))
    })
}

#[cfg(test)]
mod tests;
