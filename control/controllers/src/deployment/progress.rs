//! A Deployment's status: counts of its ReplicaSets, and the conditions Available, Progressing and ReplicaFailure. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt as _;

use super::{
    messages,
    replica_sets::{Set, total},
    strategy::{Limits, progress_deadline},
};

pub(super) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.into()),
        last_transition_time: Some(Time(now)),
        last_update_time: Some(Time(now)),
    }
}

pub(super) fn find<'a>(conditions: &'a [DeploymentCondition], kind: &str) -> Option<&'a DeploymentCondition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn remove(conditions: &mut Vec<DeploymentCondition>, kind: &str) {
    conditions.retain(|condition| condition.type_ != kind);
}

/// Sets a condition; one of the same status and reason stays as it is, times and message included.
pub(super) fn set(conditions: &mut Vec<DeploymentCondition>, mut new: DeploymentCondition) {
    if let Some(old) = find(conditions, &new.type_) {
        if old.status == new.status && old.reason == new.reason {
            return;
        }
        if old.status == new.status {
            new.last_transition_time = old.last_transition_time.clone();
        }
    }
    remove(conditions, &new.type_);
    conditions.push(new);
}

/// Notes that the Deployment is paused, or no longer: a pause must not count as a lack of progress.
pub(super) fn note_pause(deployment: &Deployment, conditions: &mut Vec<DeploymentCondition>, now: Timestamp) {
    let reason = find(conditions, messages::PROGRESSING).and_then(|condition| condition.reason.as_deref());
    if progress_deadline(deployment).is_none() || reason == Some(messages::PROGRESS_DEADLINE_EXCEEDED) {
        return;
    }
    let is_paused = deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false);
    let note = match (is_paused, reason == Some(messages::DEPLOYMENT_PAUSED)) {
        (true, false) => (messages::DEPLOYMENT_PAUSED, messages::IS_PAUSED),
        (false, true) => (messages::DEPLOYMENT_RESUMED, messages::IS_RESUMED),
        _ => return,
    };
    set(conditions, condition(messages::PROGRESSING, "Unknown", note.0, note.1, now));
}

/// A status with the form that the API gives it: counts of zero are absent.
pub(super) fn canonical(mut status: DeploymentStatus) -> DeploymentStatus {
    for count in [
        &mut status.replicas,
        &mut status.updated_replicas,
        &mut status.ready_replicas,
        &mut status.available_replicas,
        &mut status.unavailable_replicas,
    ] {
        *count = count.filter(|count| *count != 0);
    }
    status.observed_generation = status.observed_generation.filter(|generation| *generation != 0);
    status.conditions = status.conditions.filter(|conditions| !conditions.is_empty());
    status
}

/// The counts of all ReplicaSets, and whether enough pods are available. `conditions` are those to go on with.
pub(super) fn calculate(
    deployment: &Deployment,
    mut conditions: Vec<DeploymentCondition>,
    new: Option<&Set>,
    old: &[Set],
    limits: Limits,
    now: Timestamp,
) -> DeploymentStatus {
    let sum = |count: fn(&Set) -> i32| old.iter().chain(new).fold(0_i32, |sum, set| sum.saturating_add(count(set)));
    let available = sum(Set::available);
    let wanted = total(old).saturating_add(new.map_or(0, |new| new.replicas));
    // Unknown unless every ReplicaSet reports it.
    let mut terminating = Some(0);
    for set in old.iter().chain(new).filter(|set| set.object.metadata.uid.is_some()) {
        let of_set = set.object.status.as_ref().and_then(|status| status.terminating_replicas);
        terminating = terminating.and_then(|sum: i32| Some(sum.saturating_add(of_set?)));
    }
    let availability = if available >= limits.fewest_available() {
        ("True", messages::MINIMUM_REPLICAS_AVAILABLE, messages::HAS_MINIMUM)
    } else {
        ("False", messages::MINIMUM_REPLICAS_UNAVAILABLE, messages::HAS_NO_MINIMUM)
    };
    set(&mut conditions, condition(messages::AVAILABLE, availability.0, availability.1, availability.2, now));
    canonical(DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: Some(sum(Set::actual)),
        updated_replicas: Some(new.map_or(0, Set::actual)),
        ready_replicas: Some(sum(Set::ready)),
        available_replicas: Some(available),
        unavailable_replicas: Some(wanted.saturating_sub(available).max(0)),
        terminating_replicas: terminating,
        collision_count: deployment.status.as_ref().and_then(|status| status.collision_count),
        conditions: Some(conditions),
    })
}

/// Whether all pods are of the new ReplicaSet and available.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus, limits: Limits) -> bool {
    [status.updated_replicas, status.replicas, status.available_replicas]
        .iter()
        .all(|count| count.unwrap_or(0) == limits.replicas)
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

/// Whether a status is nearer to the end of the rollout than the one before.
fn has_moved(before: &DeploymentStatus, status: &DeploymentStatus) -> bool {
    let number = |count: Option<i32>| count.unwrap_or(0);
    let of_old = |status: &DeploymentStatus| number(status.replicas) - number(status.updated_replicas);
    number(status.updated_replicas) > number(before.updated_replicas)
        || of_old(status) < of_old(before)
        || number(status.ready_replicas) > number(before.ready_replicas)
        || number(status.available_replicas) > number(before.available_replicas)
}

/// Judges the progress of a rollout, and takes over a failure of a ReplicaSet, into a calculated status.
pub(super) fn judge(
    deployment: &Deployment,
    status: &mut DeploymentStatus,
    new: Option<&Set>,
    old: &[Set],
    limits: Limits,
    now: Timestamp,
) {
    let before = deployment.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.take().unwrap_or_default();
    let current = find(&conditions, messages::PROGRESSING).cloned();
    let reason = current.as_ref().and_then(|condition| condition.reason.as_deref());
    // A rollout that was completed is judged no more: pods that fail later are no lack of progress.
    let was_complete = status.replicas.unwrap_or(0) == status.updated_replicas.unwrap_or(0)
        && reason == Some(messages::NEW_REPLICA_SET_AVAILABLE);
    let (name, its_name) = (deployment.name_any(), new.map(Set::name));
    match progress_deadline(deployment) {
        None => remove(&mut conditions, messages::PROGRESSING),
        Some(_) if was_complete => {}
        Some(_) if is_complete(deployment, status, limits) => {
            let text = messages::has_progressed(its_name, &name);
            let reached = condition(messages::PROGRESSING, "True", messages::NEW_REPLICA_SET_AVAILABLE, text, now);
            set(&mut conditions, reached);
        }
        Some(_) if has_moved(&before, status) => {
            let text = messages::is_progressing(its_name, &name);
            let mut moved = condition(messages::PROGRESSING, "True", messages::REPLICA_SET_UPDATED, text, now);
            if let Some(current) = current.filter(|current| current.status == "True") {
                moved.last_transition_time = current.last_transition_time;
            }
            // Replaced even by the same reason: the deadline counts from the last update.
            remove(&mut conditions, messages::PROGRESSING);
            conditions.push(moved);
        }
        Some(deadline) if has_timed_out(current.as_ref(), deadline, now) => {
            let text = messages::has_timed_out(its_name, &name);
            let late = condition(messages::PROGRESSING, "False", messages::PROGRESS_DEADLINE_EXCEEDED, text, now);
            set(&mut conditions, late);
        }
        Some(_) => {}
    }
    match failure(new, old) {
        Some(failure) => set(&mut conditions, failure),
        None => remove(&mut conditions, messages::REPLICA_FAILURE),
    }
    status.conditions = Some(conditions).filter(|conditions| !conditions.is_empty());
}

fn has_timed_out(progressing: Option<&DeploymentCondition>, deadline: i32, now: Timestamp) -> bool {
    let Some(progressing) = progressing else { return false };
    match progressing.reason.as_deref() {
        Some(messages::NEW_REPLICA_SET_AVAILABLE) => false,
        Some(messages::PROGRESS_DEADLINE_EXCEEDED) => true,
        _ => left(progressing, deadline, now).is_some_and(|left| left.is_negative()),
    }
}

/// The time until the deadline.
fn left(progressing: &DeploymentCondition, deadline: i32, now: Timestamp) -> Option<SignedDuration> {
    let since = now.duration_since(progressing.last_update_time.as_ref()?.0);
    Some(SignedDuration::from_secs(i64::from(deadline)) - since)
}

/// The first condition of a ReplicaSet that pods could not be created or deleted; the new one's comes first.
fn failure(new: Option<&Set>, old: &[Set]) -> Option<DeploymentCondition> {
    let of_set = |set: &Set| {
        let conditions = set.object.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == messages::REPLICA_FAILURE).cloned()
    };
    let found = new.into_iter().chain(old).find_map(of_set)?;
    Some(DeploymentCondition {
        type_: found.type_,
        status: found.status,
        reason: found.reason,
        message: found.message,
        last_transition_time: found.last_transition_time.clone(),
        last_update_time: found.last_transition_time,
    })
}

/// When to look again whether the deadline has passed, if nothing happens before.
pub(super) fn recheck(
    deployment: &Deployment,
    status: &DeploymentStatus,
    limits: Limits,
    now: Timestamp,
) -> Option<Duration> {
    let deadline = progress_deadline(deployment)?;
    let progressing = find(status.conditions.as_deref().unwrap_or_default(), messages::PROGRESSING)?;
    let settled = [messages::NEW_REPLICA_SET_AVAILABLE, messages::PROGRESS_DEADLINE_EXCEEDED];
    if is_complete(deployment, status, limits) || progressing.reason.as_deref().is_some_and(|r| settled.contains(&r)) {
        return None;
    }
    let left = Duration::try_from(left(progressing, deadline, now)?).unwrap_or_default();
    // A second more: times in conditions have no fractions.
    Some(left + Duration::from_secs(1))
}
