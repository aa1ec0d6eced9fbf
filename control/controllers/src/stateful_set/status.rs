//! What a set's status says. Pure.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use serde_json::{Value, json};

use super::{
    identity::revision_of,
    plan::{Desired, Update},
};
use crate::{pods, runtime::CachedPod};

/// Numbers of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) replicas: i32,
    pub(super) ready: i32,
    pub(super) available: i32,
    pub(super) current: i32,
    pub(super) updated: i32,
}

/// Counts pods; also says when a ready one becomes available by time alone.
pub(super) fn count<'a>(
    desired: &Desired<'_>,
    pods: impl Iterator<Item = &'a Arc<CachedPod>>,
    now: Timestamp,
) -> (Counts, Option<Duration>) {
    let (mut counts, mut recheck) = (Counts::default(), None::<Duration>);
    for pod in pods {
        counts.replicas += 1;
        if pods::phase(pod) == "Running"
            && let Some(wait) = pods::available_in(pod, desired.min_ready, now)
        {
            counts.ready += 1;
            counts.available += i32::from(wait.is_zero());
            if !wait.is_zero() {
                recheck = pods::earliest(recheck, Some(wait));
            }
        }
        if pod.metadata.deletion_timestamp.is_none() {
            counts.current += i32::from(revision_of(pod) == Some(desired.current_revision));
            counts.updated += i32::from(revision_of(pod) == Some(desired.update_revision));
        }
    }
    (counts, recheck)
}

/// The status. An update is complete when all pods are of its revision and ready: then it is the current one.
pub(super) fn status(
    set: &StatefulSet,
    desired: &Desired<'_>,
    counts: Counts,
    collisions: Option<i32>,
) -> StatefulSetStatus {
    let all = usize::try_from(counts.updated) == Ok(desired.replicas)
        && counts.replicas == counts.updated
        && counts.ready == counts.updated;
    let complete = all && matches!(desired.update, Update::Rolling { .. });
    let (current, revision) =
        if complete { (counts.updated, desired.update_revision) } else { (counts.current, desired.current_revision) };
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: counts.replicas,
        ready_replicas: Some(counts.ready),
        available_replicas: Some(counts.available),
        current_replicas: Some(current),
        updated_replicas: Some(counts.updated),
        current_revision: Some(revision.to_owned()),
        update_revision: Some(desired.update_revision.to_owned()),
        collision_count: collisions,
        conditions: None,
    }
}

/// The merge patch of the status, or `None` when it is unchanged.
pub(super) fn patch(set: &StatefulSet, new: &StatefulSetStatus) -> Option<Value> {
    let old = set.status.clone().unwrap_or_default();
    let same = old.observed_generation == new.observed_generation
        && old.replicas == new.replicas
        && old.ready_replicas.unwrap_or(0) == new.ready_replicas.unwrap_or(0)
        && old.available_replicas.unwrap_or(0) == new.available_replicas.unwrap_or(0)
        && old.current_replicas.unwrap_or(0) == new.current_replicas.unwrap_or(0)
        && old.updated_replicas.unwrap_or(0) == new.updated_replicas.unwrap_or(0)
        && old.current_revision == new.current_revision
        && old.update_revision == new.update_revision
        && old.collision_count.unwrap_or(0) == new.collision_count.unwrap_or(0);
    (!same).then(|| {
        json!({"status": {
            "observedGeneration": new.observed_generation,
            "replicas": new.replicas,
            "readyReplicas": new.ready_replicas,
            "availableReplicas": new.available_replicas,
            "currentReplicas": new.current_replicas,
            "updatedReplicas": new.updated_replicas,
            "currentRevision": new.current_revision,
            "updateRevision": new.update_revision,
            "collisionCount": new.collision_count.unwrap_or(0),
        }})
    })
}
