//! Metrics of Jobs, by upstream's names (pkg/controller/job/metrics). Pure.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use windlass_kit::{
    metrics::{Counter, Histogram, Metrics, exponential_buckets},
    prometheus::Text,
};

use super::{CONTROLLER, indexes::Indexes, plan::Plan, pod::is_tracked};
use crate::{finished_jobs, pods, runtime::CachedPod};

pub(super) struct JobMetrics {
    sync_duration: Histogram<3>,
    syncs: Counter<3>,
    finished: Counter<3>,
    finished_indexes: Counter<2>,
    pods_finished: Counter<2>,
    failure_policy: Counter<1>,
    tracking_finalizer: Counter<1>,
    by_external_controller: Counter<1>,
    pods_creation: Counter<2>,
}

impl Default for JobMetrics {
    fn default() -> Self {
        const BUCKETS: &[f64] = &exponential_buckets::<15>(0.004, 2.0);
        const OF_SYNC: [&str; 3] = ["completion_mode", "result", "action"];
        Self {
            sync_duration: Histogram::new(
                "job_controller_job_sync_duration_seconds",
                "Time it took to sync a Job.",
                OF_SYNC,
                BUCKETS,
            ),
            syncs: Counter::new("job_controller_job_syncs_total", "Syncs of Jobs.", OF_SYNC),
            finished: Counter::new(
                "job_controller_jobs_finished_total",
                "Jobs that have ended.",
                ["completion_mode", "result", "reason"],
            ),
            finished_indexes: Counter::new(
                "job_controller_job_finished_indexes_total",
                "Indexes of indexed Jobs that have ended.",
                ["status", "backoffLimit"],
            ),
            pods_finished: Counter::new(
                "job_controller_job_pods_finished_total",
                "Pods that have ended and are counted.",
                ["completion_mode", "result"],
            ),
            failure_policy: Counter::new(
                "job_controller_pod_failures_handled_by_failure_policy_total",
                "Failed pods that a rule of a pod failure policy fits.",
                ["action"],
            ),
            tracking_finalizer: Counter::new(
                "job_controller_terminated_pods_tracking_finalizer_total",
                "Pods with the tracking finalizer that have ended (add), and that are free of it then (delete).",
                ["event"],
            ),
            pods_creation: Counter::new(
                "job_controller_job_pods_creation_total",
                "Pods that were to be created for Jobs.",
                ["reason", "status"],
            ),
            by_external_controller: Counter::new(
                "job_controller_jobs_by_external_controller_total",
                "Jobs that another controller manages.",
                ["controller_name"],
            ),
        }
    }
}

impl Metrics for JobMetrics {
    fn write(&self, page: &mut Text) {
        self.sync_duration.write(page);
        self.syncs.write(page);
        self.finished.write(page);
        self.finished_indexes.write(page);
        self.pods_finished.write(page);
        self.failure_policy.write(page);
        self.tracking_finalizer.write(page);
        self.by_external_controller.write(page);
        self.pods_creation.write(page);
    }
}

fn completion_mode(job: &Job) -> &str {
    job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()).unwrap_or("NonIndexed")
}

/// What a sync does, as its metrics say.
pub(super) fn action(plan: &Plan) -> &'static str {
    match (plan.create.is_empty(), plan.delete.is_empty(), plan.forget) {
        (_, _, false) => "reconciling",
        (false, ..) => "pods_created",
        (_, false, _) => "pods_deleted",
        _ => "tracking",
    }
}

impl JobMetrics {
    pub(super) fn synced(&self, job: &Job, succeeded: bool, action: &str, took: Duration) {
        let labels = [completion_mode(job), if succeeded { "success" } else { "error" }, action];
        self.sync_duration.observe_duration(labels, took);
        self.syncs.add(labels);
    }

    /// Pods were created, and others could not be, while the Job has this status. Upstream's `recordJobPodsCreationTotal`.
    pub(super) fn created(&self, job: &Job, status: &JobStatus, succeeded: usize, failed: usize) {
        let policy = job.spec.as_ref().and_then(|spec| spec.pod_replacement_policy.as_deref());
        let (has_failed, terminating) = (status.failed.unwrap_or(0) > 0, status.terminating.unwrap_or(0) > 0);
        let reason = match policy {
            Some("Failed") if has_failed => "recreate_failed",
            _ if has_failed || terminating => "recreate_terminating_or_failed",
            _ => "new",
        };
        for (status, pods) in [("succeeded", succeeded), ("failed", failed)] {
            if pods > 0 {
                self.pods_creation.add_many([reason, status], pods);
            }
        }
    }

    /// A status was written in place of another one.
    pub(super) fn written(&self, job: &Job, old: Option<&JobStatus>, new: &JobStatus) {
        let (mode, none) = (completion_mode(job), JobStatus::default());
        let old = old.unwrap_or(&none);
        if let (None, Some(end)) = (finished_jobs::end(old), finished_jobs::end(new)) {
            let result = if end.type_ == "Complete" { "succeeded" } else { "failed" };
            self.finished.add([mode, result, end.reason.as_deref().unwrap_or_default()]);
        }
        let more = |new: Option<i32>, old: Option<i32>| {
            usize::try_from(new.unwrap_or(0).saturating_sub(old.unwrap_or(0))).unwrap_or(0)
        };
        let spec = job.spec.as_ref();
        let succeeded = if mode == "Indexed" {
            let completions = spec.and_then(|spec| spec.completions).unwrap_or(0);
            let count = |text: &Option<String>| text.as_deref().map(|text| Indexes::parse(text, completions).total());
            let limit = match spec.and_then(|spec| spec.backoff_limit_per_index) {
                Some(_) => "perIndex",
                None => "global",
            };
            let succeeded = more(count(&new.completed_indexes), count(&old.completed_indexes));
            let failed = more(count(&new.failed_indexes), count(&old.failed_indexes));
            for (status, indexes) in [("succeeded", succeeded), ("failed", failed)] {
                if indexes > 0 {
                    self.finished_indexes.add_many([status, limit], indexes);
                }
            }
            succeeded
        } else {
            more(new.succeeded, old.succeeded)
        };
        for (result, pods) in [("succeeded", succeeded), ("failed", more(new.failed, old.failed))] {
            if pods > 0 {
                self.pods_finished.add_many([mode, result], pods);
            }
        }
    }

    /// Rules of a pod failure policy with these actions fit pods that are counted now.
    pub(super) fn handled(&self, actions: &[&str]) {
        actions.iter().for_each(|action| self.failure_policy.add([action]));
    }

    pub(super) fn on_pod(&self, old: Option<&Arc<CachedPod>>, new: Option<&Arc<CachedPod>>) {
        let held = |pod: Option<&Arc<CachedPod>>| pod.is_some_and(|pod| pods::is_terminal(pod) && is_tracked(pod));
        match (held(old), held(new)) {
            (false, true) => self.tracking_finalizer.add(["add"]),
            (true, false) => self.tracking_finalizer.add(["delete"]),
            _ => {}
        }
    }

    pub(super) fn on_job(&self, old: Option<&Arc<Job>>, new: Option<&Arc<Job>>) {
        let manager = new.filter(|_| old.is_none()).and_then(|job| job.spec.as_ref()?.managed_by.as_deref());
        if let Some(name) = manager.filter(|name| *name != CONTROLLER) {
            self.by_external_controller.add([name]);
        }
    }
}
