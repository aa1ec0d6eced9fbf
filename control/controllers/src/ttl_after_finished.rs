//! TTL-after-finished controller: deletes Jobs some time after they have ended. Upstream's
//! `pkg/controller/ttlafterfinished/ttlafterfinished_controller.go`.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, Client, api::DeleteParams};
use windlass_kit::{
    metrics::{Histogram, Metrics, exponential_buckets},
    prometheus::Text,
};

use super::{
    finished_jobs,
    runtime::{Cache, Context, Controller, Error, Key, Outcome, error, same_version},
};

/// The controller.
pub(crate) struct TtlAfterFinishedController {
    client: Client,
    jobs: Cache<Job>,
    metrics: Arc<JobDeletions>,
}

struct JobDeletions {
    duration: Histogram<0>,
}

impl Default for JobDeletions {
    fn default() -> Self {
        const BUCKETS: &[f64] = &exponential_buckets::<14>(0.1, 2.0);
        let name = "ttl_after_finished_controller_job_deletion_duration_seconds";
        let help = "Time from the expiry of an ended Job until it was deleted.";
        Self { duration: Histogram::new(name, help, [], BUCKETS) }
    }
}

impl Metrics for JobDeletions {
    fn write(&self, page: &mut Text) {
        self.duration.write(page);
    }
}

impl Controller for TtlAfterFinishedController {
    const NAME: &'static str = "ttl-after-finished-controller";
    const QUEUE: &'static str = "ttl_jobs_to_delete";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let jobs = context.informer::<Job>();
        let queue = context.queue();
        jobs.on_change(move |_, new| {
            if let Some(job) = new.filter(|job| expires_at(job).is_some()) {
                queue.add(Key::of(&job.metadata));
            }
        });
        Self { client: context.client(), jobs: jobs.cache(), metrics: context.metrics().of() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(job) = self.jobs.get(&key) else { return Ok(Outcome::Done) };
        let Some(at) = expires_at(&job) else { return Ok(Outcome::Done) };
        if let Some(left) = time_between(Timestamp::now(), at).filter(|left| !left.is_zero()) {
            return Ok(Outcome::After(left));
        }
        // In this version only: its time may have been extended meanwhile.
        let params = DeleteParams::foreground().preconditions(same_version(&job.metadata));
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        if error::of_seen(api.delete(&key.name, &params).await, "delete", &key)?.is_some() {
            let late = time_between(at, Timestamp::now()).unwrap_or_default();
            self.metrics.duration.observe_duration([], late);
        }
        Ok(Outcome::Done)
    }
}

/// `None` when `to` is before `from`.
fn time_between(from: Timestamp, to: Timestamp) -> Option<Duration> {
    Duration::try_from(to.duration_since(from)).ok()
}

/// Until when a Job is kept; `None` for one that is not to be deleted, or is already.
fn expires_at(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let ended = finished_jobs::finished(job)?.last_transition_time.as_ref()?.0;
    ended.checked_add(SignedDuration::from_secs(i64::from(ttl))).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ended_jobs_are_kept_for_their_time() {
        let job = |ttl: Option<i32>, condition: &str, deleted: Option<&str>| -> Job {
            let ended = json!({"type": condition, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            serde_json::from_value(json!({
                "metadata": {"name": "j", "deletionTimestamp": deleted},
                "spec": {"ttlSecondsAfterFinished": ttl, "template": {}},
                "status": {"conditions": [ended]},
            }))
            .unwrap()
        };
        for (job, at) in [
            (job(Some(100), "Complete", None), Some("2026-01-01T00:01:40Z")),
            (job(Some(100), "Failed", None), Some("2026-01-01T00:01:40Z")),
            (job(Some(0), "Complete", None), Some("2026-01-01T00:00:00Z")),
            (job(Some(100), "Suspended", None), None),
            (job(None, "Complete", None), None),
            (job(Some(0), "Complete", Some("2026-01-01T00:00:10Z")), None),
        ] {
            assert_eq!(expires_at(&job), at.map(|at| at.parse().unwrap()), "{job:?}");
        }
    }
}
