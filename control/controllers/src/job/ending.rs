//! Whether a Job has come to its end, and why. Pure.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};

use super::{
    counts::Counts,
    messages::{self, Reason},
    pod, policy,
};
use crate::{finished_jobs, runtime::CachedPod};

/// How a Job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) succeeds: bool,
    pub(crate) why: Reason,
}

impl Ending {
    fn success(why: Reason) -> Self {
        Self { succeeds: true, why }
    }

    fn failure(why: Reason) -> Self {
        Self { succeeds: false, why }
    }

    /// Of a Job that has the number of pods it needs.
    pub(crate) fn completions_reached() -> Self {
        Self::success(messages::completions_reached())
    }

    /// The condition that announces the end while pods still run.
    pub(crate) fn interim(&self) -> &'static str {
        if self.succeeds { "SuccessCriteriaMet" } else { "FailureTarget" }
    }

    /// The condition of a Job that has ended.
    pub(crate) fn terminal(&self) -> &'static str {
        if self.succeeds { "Complete" } else { "Failed" }
    }

    /// What an earlier run has announced.
    fn announced(job: &Job) -> Option<Self> {
        let of = |kind: &str| {
            let condition = finished_jobs::true_condition(job, kind)?;
            let (reason, message) = (condition.reason.clone(), condition.message.clone());
            Some(Reason { reason: reason.unwrap_or_default(), message: message.unwrap_or_default() })
        };
        of("SuccessCriteriaMet").map(Self::success).or_else(|| of("FailureTarget").map(Self::failure))
    }
}

/// Why all pods of a Job have to go.
pub(crate) fn ending(
    (job, spec, status): (&Job, &JobSpec, &JobStatus),
    pods: &[Arc<CachedPod>],
    counts: &Counts<'_>,
    now: Timestamp,
) -> Option<Ending> {
    let pods = || pods.iter().map(|pod| &**pod);
    Ending::announced(job)
        .or_else(|| policy::fail_job(job, pods()).map(Ending::failure))
        .or_else(|| {
            let limit = spec.backoff_limit.unwrap_or(6);
            let exceeded = counts.failed > limit || restarts_exceed(spec, limit, pod::restarts(pods()));
            exceeded.then(|| Ending::failure(messages::backoff_limit_exceeded()))
        })
        .or_else(|| {
            let over = deadline_in(spec, status, now).is_some_and(|left| left.is_zero());
            over.then(|| Ending::failure(messages::deadline_exceeded()))
        })
        .or_else(|| of_indexes(spec, counts))
}

/// Of pods that restart their containers, restarts count as failures.
fn restarts_exceed(spec: &JobSpec, limit: i32, restarts: i32) -> bool {
    let restarted = spec.template.spec.as_ref().is_some_and(|pod| pod.restart_policy.as_deref() == Some("OnFailure"));
    restarted && restarts > 0 && restarts >= limit
}

/// How long a Job may still run; `None` for any time.
pub(crate) fn deadline_in(spec: &JobSpec, status: &JobStatus, now: Timestamp) -> Option<Duration> {
    let limit = SignedDuration::from_secs(spec.active_deadline_seconds?);
    let start = status.start_time.as_ref()?.0;
    if spec.suspend == Some(true) {
        return None;
    }
    Some(Duration::try_from(limit.saturating_sub(now.duration_since(start))).unwrap_or(Duration::ZERO))
}

fn of_indexes(spec: &JobSpec, counts: &Counts<'_>) -> Option<Ending> {
    let indexed = counts.indexed.as_ref()?;
    if let Some(failed) = indexed.failed.as_ref().map(super::indexes::Indexes::total) {
        if spec.max_failed_indexes.is_some_and(|limit| failed > limit) {
            return Some(Ending::failure(messages::max_failed_indexes_exceeded()));
        }
        if failed > 0 && failed.saturating_add(indexed.completed.total()) >= indexed.completions {
            return Some(Ending::failure(messages::failed_indexes()));
        }
    }
    policy::success(spec.success_policy.as_ref(), indexed.completions, &indexed.completed).map(Ending::success)
}
