//! Ranks pods for deletion when an owner scales down. Pure.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use jiff::Timestamp;

use crate::{
    pods,
    runtime::{CachedPod, PodAnnotation},
};

/// The criteria of the ranking.
#[derive(Debug)]
struct Rank<'a> {
    pod: &'a Arc<CachedPod>,
    assigned: bool,
    phase: u8,
    ready: bool,
    cost: i32,
    /// Related pods on the same node.
    siblings: usize,
    ready_for: Option<u32>,
    /// Of containers, and of sidecars.
    restarts: (i32, i32),
    age: Option<u32>,
}

/// The `count` pods to delete, in order. `related`: pods that are as good as these, among which they should be spread.
pub(crate) fn to_delete(
    pods: &[Arc<CachedPod>],
    related: &[Arc<CachedPod>],
    count: usize,
    now: Timestamp,
) -> Vec<Arc<CachedPod>> {
    let mut per_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| pods::is_active(pod)) {
        if let Some(node) = pods::node_name(pod) {
            *per_node.entry(node).or_default() += 1;
        }
    }
    let mut ranks: Vec<Rank<'_>> = pods.iter().map(|pod| rank(pod, &per_node, now)).collect();
    ranks.sort_by(compare);
    ranks.truncate(count);
    ranks.into_iter().map(|rank| Arc::clone(rank.pod)).collect()
}

fn rank<'a>(pod: &'a Arc<CachedPod>, per_node: &HashMap<&str, usize>, now: Timestamp) -> Rank<'a> {
    let annotation = pod.annotation(PodAnnotation::DeletionCost);
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    Rank {
        pod,
        assigned: pods::node_name(pod).is_some(),
        phase: match pods::phase(pod) {
            "Pending" => 0,
            "Running" => 2,
            _ => 1,
        },
        ready: pods::is_ready(pod),
        cost: annotation.and_then(|text| text.parse().ok()).unwrap_or(0),
        siblings: pods::node_name(pod).and_then(|node| per_node.get(node).copied()).unwrap_or(0),
        ready_for: pods::ready_since(pod).map(|since| bucket(since, now)),
        restarts: (
            statuses.iter().map(|s| s.restart_count).max().unwrap_or(0),
            pod.status.as_ref().map_or(0, |status| status.sidecar_restarts),
        ),
        age: pod.metadata.creation_timestamp.as_ref().map(|created| bucket(created.0, now)),
    }
}

/// The binary order of magnitude of the seconds since `at`, so that near ages count as equal.
fn bucket(at: Timestamp, now: Timestamp) -> u32 {
    let seconds = u64::try_from(now.duration_since(at).as_secs()).unwrap_or(0);
    seconds.checked_ilog2().map_or(0, |log| log + 1)
}

fn compare(a: &Rank<'_>, b: &Rank<'_>) -> Ordering {
    a.assigned
        .cmp(&b.assigned)
        .then(a.phase.cmp(&b.phase))
        .then(a.ready.cmp(&b.ready))
        .then(a.cost.cmp(&b.cost))
        .then(b.siblings.cmp(&a.siblings))
        .then(a.ready_for.cmp(&b.ready_for))
        .then(b.restarts.cmp(&a.restarts))
        .then(a.age.cmp(&b.age))
        .then_with(|| a.pod.metadata.name.cmp(&b.pod.metadata.name))
}
