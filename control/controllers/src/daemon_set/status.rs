//! What a set's status says. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use serde_json::{Value, json};

use super::{
    placement::Fit,
    plan::{Desired, is_updated},
};
use crate::{pods, runtime::CachedPod};

/// Numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) desired: i32,
    pub(super) current: i32,
    pub(super) misscheduled: i32,
    pub(super) ready: i32,
    pub(super) updated: i32,
    pub(super) available: i32,
}

/// Counts nodes by their first pods; also says when a ready one becomes available by time alone.
pub(super) fn count(
    desired: &Desired<'_>,
    nodes: &BTreeMap<String, Fit>,
    by_node: &BTreeMap<&str, Vec<Arc<CachedPod>>>,
    now: Timestamp,
) -> (Counts, Option<Duration>) {
    let (mut counts, mut recheck) = (Counts::default(), None::<Duration>);
    for (node, fit) in nodes {
        let pods = by_node.get(node.as_str()).map(Vec::as_slice).unwrap_or_default();
        if !fit.run {
            counts.misscheduled += i32::from(!pods.is_empty());
            continue;
        }
        counts.desired += 1;
        let Some(first) = pods.first() else { continue };
        counts.current += 1;
        counts.updated += i32::from(is_updated(first, desired.hash));
        counts.ready += i32::from(pods::is_ready(first));
        // With a surge, that of the second one matters too.
        for pod in pods {
            let Some(wait) = pods::available_in(pod, desired.min_ready, now) else { continue };
            if !wait.is_zero() {
                recheck = pods::earliest(recheck, Some(wait));
            } else if Arc::ptr_eq(pod, first) {
                counts.available += 1;
            }
        }
    }
    (counts, recheck)
}

/// The merge patch of the status, or `None` when it is unchanged. `observed`: the plan was of the newest generation.
pub(super) fn patch(set: &DaemonSet, counts: Counts, collisions: Option<i32>, observed: bool) -> Option<Value> {
    let old = set.status.clone().unwrap_or_default();
    let generation = if observed { set.metadata.generation } else { old.observed_generation };
    let unavailable = counts.desired - counts.available;
    let same = old.observed_generation == generation
        && old.desired_number_scheduled == counts.desired
        && old.current_number_scheduled == counts.current
        && old.number_misscheduled == counts.misscheduled
        && old.number_ready == counts.ready
        && old.updated_number_scheduled.unwrap_or(0) == counts.updated
        && old.number_available.unwrap_or(0) == counts.available
        && old.number_unavailable.unwrap_or(0) == unavailable
        && old.collision_count == collisions;
    (!same).then(|| {
        let mut status = json!({
            "desiredNumberScheduled": counts.desired,
            "currentNumberScheduled": counts.current,
            "numberMisscheduled": counts.misscheduled,
            "numberReady": counts.ready,
            "updatedNumberScheduled": counts.updated,
            "numberAvailable": counts.available,
            "numberUnavailable": unavailable,
        });
        if let Some(generation) = generation {
            status["observedGeneration"] = json!(generation);
        }
        if let Some(collisions) = collisions {
            status["collisionCount"] = json!(collisions);
        }
        json!({"status": status})
    })
}
