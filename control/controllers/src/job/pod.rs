//! What a Job reads of its pods. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;

use super::policy;
use crate::{
    pods,
    runtime::{CachedContainerStatus, CachedPod, PodAnnotation},
};

/// Holds a pod until it has been counted.
pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(crate) fn is_tracked(pod: &CachedPod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

pub(crate) fn uid(pod: &CachedPod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Being deleted, though its containers may still run.
pub(crate) fn is_terminating(pod: &CachedPod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && !pods::is_terminal(pod)
}

pub(crate) fn has_succeeded(pod: &CachedPod) -> bool {
    pods::phase(pod) == "Succeeded"
}

/// Whether a pod has failed. Unless only failed pods are replaced, one that is being deleted has: a pod whose node is gone
/// never comes to that phase.
pub(crate) fn has_failed(job: &Job, pod: &CachedPod) -> bool {
    let deleted = pod.metadata.deletion_timestamp.is_some() && !has_succeeded(pod);
    pods::phase(pod) == "Failed" || (deleted && !replaces_failed_only(job))
}

/// Whether a pod is replaced only when it has ended: by podReplacementPolicy, or since a pod failure policy must see how.
pub(crate) fn replaces_failed_only(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|s| s.pod_replacement_policy.as_deref() == Some("Failed") || s.pod_failure_policy.is_some())
}

fn annotation(pod: &CachedPod, annotation: PodAnnotation) -> Option<i32> {
    let number: i32 = pod.annotation(annotation)?.parse().ok()?;
    (number >= 0).then_some(number)
}

pub(crate) fn completion_index(pod: &CachedPod) -> Option<i32> {
    annotation(pod, PodAnnotation::CompletionIndex)
}

/// How many pods of the same index failed before this one: those that count, and those that are ignored.
pub(crate) fn index_failures(pod: &CachedPod) -> (i32, i32) {
    (
        annotation(pod, PodAnnotation::IndexFailures).unwrap_or(0),
        annotation(pod, PodAnnotation::IndexIgnoredFailures).unwrap_or(0),
    )
}

/// The failures of an index after `failed`.
pub(crate) fn failures_after(job: &Job, failed: &CachedPod) -> (i32, i32) {
    let (counted, ignored) = index_failures(failed);
    if policy::counts(job, failed) {
        (counted.saturating_add(1), ignored)
    } else {
        (counted, ignored.saturating_add(1))
    }
}

/// When a pod ended: its last container, else when it stopped being ready, was deleted or created.
pub(crate) fn finished_at(pod: &CachedPod) -> Timestamp {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ends: Option<Vec<Timestamp>> = statuses.map(|container| container.terminated.as_ref()?.finished_at).collect();
    let containers = ends.and_then(|ends| ends.into_iter().max());
    let unready = || {
        let condition = pods::condition(pod, "Ready").filter(|condition| condition.status == "False")?;
        condition.last_transition_time.as_ref().map(|time| time.0)
    };
    let deleted = || {
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        let at = pod.metadata.deletion_timestamp.as_ref()?.0;
        Some(at.saturating_sub(grace).unwrap_or(at))
    };
    let created = || pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    containers.or_else(unready).or_else(deleted).or_else(created).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The statuses of all containers, those that run before the others last.
pub(crate) fn containers(pod: &CachedPod) -> impl Iterator<Item = &CachedContainerStatus> {
    pod.status.iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    })
}

/// How often the containers of pods that have not ended were restarted.
pub(crate) fn restarts<'a>(pods: impl IntoIterator<Item = &'a CachedPod>) -> i32 {
    let alive = pods.into_iter().filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"));
    alive.flat_map(containers).fold(0_i32, |sum, container| sum.saturating_add(container.restart_count))
}
