//! TTL-after-finished controller: deletes Jobs some time after they have ended. Upstream's
//! `pkg/controller/ttlafterfinished/ttlafterfinished_controller.go`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, Client, api::DeleteParams};

use super::{
    finished_jobs,
    runtime::{Cache, Context, Controller, During as _, Error, Key, Outcome, error, same_version},
};

/// The controller.
pub(crate) struct TtlAfterFinished {
    client: Client,
    jobs: Cache<Job>,
}

impl Controller for TtlAfterFinished {
    const NAME: &'static str = "ttl-after-finished-controller";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let jobs = context.informer::<Job>();
        let queue = context.queue();
        jobs.on_change(move |_, new| {
            if let Some(job) = new.filter(|job| expires_in(job, Timestamp::now()).is_some()) {
                queue.add(Key::of(&job.metadata));
            }
        });
        Self { client: context.client(), jobs: jobs.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(job) = self.jobs.get(&key) else { return Ok(Outcome::Done) };
        match expires_in(&job, Timestamp::now()) {
            None => return Ok(Outcome::Done),
            Some(left) if !left.is_zero() => return Ok(Outcome::After(left)),
            Some(_) => {}
        }
        // In this version only: its time may have been extended meanwhile.
        let params = DeleteParams::foreground().preconditions(same_version(&job.metadata));
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        match api.delete(&key.name, &params).await {
            Err(error) if error::is_conflict(&error) => Err(Error::Changed(key.to_string())),
            deleted => error::ignore_deleted(deleted).during("delete", &key).map(|_| Outcome::Done),
        }
    }
}

/// How long a Job is kept yet; `None` for one that is not to be deleted, or is already.
fn expires_in(job: &Job, now: Timestamp) -> Option<Duration> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let ended = finished_jobs::finished(job)?.last_transition_time.as_ref()?.0;
    let left = SignedDuration::from_secs(i64::from(ttl)).saturating_sub(now.duration_since(ended));
    Some(Duration::try_from(left).unwrap_or(Duration::ZERO))
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
        let now: Timestamp = "2026-01-01T00:00:40Z".parse().unwrap();
        for (job, left) in [
            (job(Some(100), "Complete", None), Some(60)),
            (job(Some(100), "Failed", None), Some(60)),
            (job(Some(0), "Complete", None), Some(0)),
            (job(Some(10), "Complete", None), Some(0)),
            (job(Some(100), "Suspended", None), None),
            (job(None, "Complete", None), None),
            (job(Some(0), "Complete", Some("2026-01-01T00:00:10Z")), None),
        ] {
            assert_eq!(expires_in(&job, now), left.map(Duration::from_secs), "{job:?}");
        }
    }
}
