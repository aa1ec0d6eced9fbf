//! Job controller: runs pods until enough of them have succeeded, or too many have failed. `plan` decides and what it is
//! made of is pure and may not import tokio or kube's client; `orphan_pods` frees pods whose Job is gone.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use tokio::time::Instant;
use windlass_kit::{events::Severity, objects::label_selector::Selector};

use super::{
    finished_jobs,
    pod_control::{Claim, Claimant, PodControl, claim, take_over_held, watch_owners},
    runtime::{
        CACHE_PATIENCE, Cache, CachedPod, Context, Controller, During as _, Error, Key, Outcome, PerOwner, SyncPoint,
        error,
    },
};

mod backoff;
mod counts;
mod ending;
mod finalizer;
mod indexes;
mod manage;
mod messages;
mod metrics;
mod orphan_pods;
mod plan;
mod pod;
mod policy;
mod status;
mod template;
#[cfg(test)]
mod tests;

pub(crate) use orphan_pods::OrphanPodController;

use backoff::Backoff;
use messages::{Reason, events};
use metrics::JobMetrics;
use plan::{Observed, Plan};
use pod::{TRACKING, is_tracked};

impl crate::runtime::Cached for Job {}

/// Manages the Jobs whose `managedBy` names no other controller.
const CONTROLLER: &str = "kubernetes.io/job-controller";
/// Status updates that only follow the pods come at most this often.
const STATUS_PERIOD: Duration = Duration::from_secs(1);

/// The controller.
pub(crate) struct JobController {
    control: PodControl<Job>,
    jobs: Cache<Job>,
    states: PerOwner<JobState>,
    metrics: Arc<JobMetrics>,
}

/// What is remembered of one Job.
#[derive(Debug, Default)]
struct JobState {
    /// UIDs of pods whose finalizer is gone, though the cache may still show it.
    released: HashSet<String>,
    /// The last write of the status. An older status would count pods a second time.
    written: Option<(SyncPoint, Instant)>,
    backoff: Backoff,
}

impl Controller for JobController {
    const NAME: &'static str = "job-controller";
    const QUEUE: &'static str = "job";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let control = PodControl::subscribe(context, "job-controller");
        let metrics: Arc<JobMetrics> = context.metrics().of();
        let (of_pods, of_jobs) = (Arc::clone(&metrics), Arc::clone(&metrics));
        context.informer::<CachedPod>().count_changes(move |old, new| of_pods.on_pod(old, new));
        context.informer::<Job>().count_changes(move |old, new| of_jobs.on_job(old, new));
        Self { control, jobs: watch_owners(context, selector), states: PerOwner::default(), metrics }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(job) = self.jobs.get(&key).filter(|job| is_managed(job)) else {
            self.forget(&key);
            return Ok(Outcome::Done);
        };
        let spec = job.spec.as_ref();
        let mode = spec.and_then(|spec| spec.completion_mode.as_deref());
        if mode.is_some_and(|mode| !matches!(mode, "NonIndexed" | "Indexed")) {
            self.record(&job, &[(Severity::Warning, events::unknown_completion_mode())]);
            return Ok(Outcome::Done);
        }
        let (Some(uid), Some(selector)) = (job.metadata.uid.as_deref(), selector(&job)) else {
            return Ok(Outcome::Done);
        };
        if !self.states.with(&key, uid, |state| state.written.is_none_or(|(point, _)| self.jobs.reached(point))) {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let (began, mut action) = (Instant::now(), "reconciling");
        let result = self.sync(&key, &job, (uid, selector), &mut action).await;
        let succeeded = matches!(result, Ok(Outcome::Done | Outcome::After(_)));
        self.metrics.synced(&job, succeeded, action, began.elapsed());
        result
    }
}

impl JobController {
    /// Reconciles a Job that has not ended; `action` becomes what it does, for the metrics.
    async fn sync(
        &self,
        key: &Key,
        job: &Job,
        (uid, selector): (&str, Selector<'_>),
        action: &mut &'static str,
    ) -> Result<Outcome, Error> {
        let settled = self.control.settled(key, uid);
        let claimable = self.control.claimable(&key.namespace, uid, selector);
        let claimant = Claimant { uid, deleting: job.metadata.deletion_timestamp.is_some(), selector };
        let Claim { ours, adopt, release } =
            claim(&claimant, &claimable, |pod: &CachedPod| pod.metadata.deletion_timestamp.is_none());
        if !adopt.is_empty() || !release.is_empty() {
            take_over_held(&self.control.client(), job, Some(TRACKING), &adopt, &release).await?;
            // What has changed comes back as changes of these pods.
            return Ok(Outcome::Done);
        }
        let held: HashSet<&str> = ours.iter().filter(|pod| is_tracked(pod)).map(|pod| pod::uid(pod)).collect();
        let (released, backoff, written) = self.states.with(key, uid, |state| {
            state.released.retain(|uid| held.contains(uid.as_str()));
            (state.released.clone(), state.backoff, state.written)
        });
        let observed = Observed { pods: &ours, settled, released: &released, backoff, now: Timestamp::now() };
        let plan = plan::reconcile(job, &observed);
        *action = metrics::action(&plan);
        if let Some((_, at)) = written
            && is_patient(&plan)
            && at.elapsed() < STATUS_PERIOD
        {
            return Ok(Outcome::After(STATUS_PERIOD - at.elapsed()));
        }
        self.execute(key, job, plan, || plan::reconcile(job, &Observed { settled: false, ..observed })).await
    }

    /// Does what the plan says. Whatever fails is planned again; nothing is counted before it is written.
    /// `unfinished` is the plan of a Job that does not end yet.
    async fn execute(
        &self,
        key: &Key,
        job: &Job,
        mut plan: Plan,
        unfinished: impl FnOnce() -> Plan,
    ) -> Result<Outcome, Error> {
        let pods: Api<CachedPod> = Api::namespaced(self.control.client(), &key.namespace);
        if plan.forget && !plan.delete.is_empty() {
            let (removed, failure) = finalizer::remove(&pods, &plan.delete).await;
            self.released(key, job, &removed);
            if let Some(failure) = failure {
                return Err(failure).during("free the surplus pods of", key);
            }
            if removed.len() < plan.delete.len() {
                return Err(Error::Changed(key.to_string()));
            }
        }
        // A pod that cannot be deleted does not keep the status: what has ended is counted all the same.
        let deleted = self.control.delete(job, &plan.delete).await;
        if deleted.failed > 0 && plan.ending.is_some() {
            plan = Plan { create: Vec::new(), ..unfinished() };
        }
        plan::not_deleted(&mut plan, deleted.failed);
        let new: Vec<_> = plan.create.iter().filter_map(|new| template::pod_for(job, new)).collect();
        let created = self.control.create(job, &new).await;
        self.metrics.created(job, &plan.status, created.count, created.failed);
        plan::not_created(&mut plan, new.len().saturating_sub(created.count));
        let Some(version) =
            self.write(key, job, (job.metadata.resource_version.clone(), job.status.as_ref()), &plan.status).await?
        else {
            return Ok(Outcome::Done);
        };
        self.record(job, &plan.events);
        self.metrics.handled(&plan.handled);
        self.states.with(key, job.metadata.uid.as_deref().unwrap_or_default(), |state| state.backoff = plan.backoff);

        let (removed, failure) = finalizer::remove(&pods, &plan.release).await;
        self.released(key, job, &removed);
        let (status, events) = plan::settle(job.spec.as_ref(), &plan, &removed, Timestamp::now());
        if self.write(key, job, (version, Some(&plan.status)), &status).await?.is_some() {
            self.record(job, &events);
        }
        if let Some(failure) = failure {
            return Err(failure).during("free the counted pods of", key);
        }
        Ok(match plan.wait {
            _ if created.failure.is_some() || deleted.failure.is_some() || removed.len() < plan.release.len() => {
                Outcome::Failed
            }
            _ if plan.more => Outcome::After(Duration::ZERO),
            Some(wait) => Outcome::After(wait),
            None => Outcome::Done,
        })
    }

    /// Writes the status if it changes anything; returns the Job's version then, or `None` when the Job is gone.
    ///
    /// # Errors
    /// When the Job has changed meanwhile: what was planned may be wrong.
    async fn write(
        &self,
        key: &Key,
        job: &Job,
        (version, old): (Option<String>, Option<&JobStatus>),
        new: &JobStatus,
    ) -> Result<Option<Option<String>>, Error> {
        let Some(patch) = status::patch(version.as_deref(), old, new) else { return Ok(Some(version)) };
        let api: Api<Job> = Api::namespaced(self.control.client(), &key.namespace);
        let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        let Some(written) = error::of_seen(answer, "update the status of", key)? else { return Ok(None) };
        self.metrics.written(job, old, new);
        let version = written.metadata.resource_version;
        let point = self.jobs.sync_point(version.as_deref());
        self.states.with(key, job.metadata.uid.as_deref().unwrap_or_default(), |state| {
            state.written = Some((point, Instant::now()));
        });
        Ok(Some(version))
    }

    fn released(&self, key: &Key, job: &Job, uids: &HashSet<String>) {
        self.states.with(key, job.metadata.uid.as_deref().unwrap_or_default(), |state| {
            state.released.extend(uids.iter().cloned());
        });
    }

    fn record(&self, job: &Job, events: &[(Severity, Reason)]) {
        for (severity, Reason { reason, message }) in events {
            self.control.record(job, *severity, reason, message.clone());
        }
    }

    fn forget(&self, key: &Key) {
        self.control.forget(key);
        self.states.forget(key);
    }
}

/// Whether this controller is to do anything for a Job.
fn is_managed(job: &Job) -> bool {
    let other = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref()).is_some_and(|name| name != CONTROLLER);
    !other && finished_jobs::finished(job).is_none()
}

fn selector(job: &Job) -> Option<Selector<'_>> {
    Selector::of(job.spec.as_ref().filter(|_| is_managed(job))?.selector.as_ref()?)
}

/// Whether a plan changes nothing but numbers.
fn is_patient(plan: &Plan) -> bool {
    plan.create.is_empty() && plan.delete.is_empty() && plan.ending.is_none() && plan.events.is_empty()
}
