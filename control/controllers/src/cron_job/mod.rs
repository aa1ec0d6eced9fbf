//! CronJob controller: starts a Job at each time of a schedule. `plan`, `schedule_times` and `messages` are pure and may not
//! import tokio or kube's client.

use std::{collections::HashSet, sync::Arc};

use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use windlass_kit::{
    events::Recorder,
    metrics::{Histogram, Metrics, exponential_buckets},
    prometheus::Text,
};

use super::{
    indexes::controller_uid,
    pod_control::queue_controllers,
    pods,
    runtime::{
        CACHE_PATIENCE, Cache, Context, Controller, During as _, Error, Index, Key, Outcome, PerOwner, SyncPoint,
        error, same_object,
    },
};

mod messages;
mod plan;
mod schedule_times;
#[cfg(test)]
mod tests;

use messages::Message;
use plan::{Observed, Start};

impl crate::runtime::Cached for CronJob {}

/// Jobs by the UID of the owner that controls them.
const JOBS_BY_CONTROLLER: Index<Job> = Index::new("controller", controller_uid);

/// The controller.
pub(crate) struct CronJobController {
    client: Client,
    recorder: Recorder,
    cron_jobs: Cache<CronJob>,
    jobs: Cache<Job>,
    states: Arc<PerOwner<CronJobState>>,
    metrics: Arc<CronJobMetrics>,
}

struct CronJobMetrics {
    skew: Histogram<0>,
}

impl Default for CronJobMetrics {
    fn default() -> Self {
        const BUCKETS: &[f64] = &exponential_buckets::<10>(1.0, 2.0);
        let name = "cronjob_controller_job_creation_skew_duration_seconds";
        Self { skew: Histogram::new(name, "Time from a scheduled time until its Job was created.", [], BUCKETS) }
    }
}

impl Metrics for CronJobMetrics {
    fn write(&self, page: &mut Text) {
        self.skew.write(page);
    }
}

/// What is remembered of one CronJob.
#[derive(Debug, Clone, Default)]
struct CronJobState {
    /// The last write of the status.
    written: Option<SyncPoint>,
    /// The last Job that was started.
    started: Option<SyncPoint>,
    /// The missed time that was reported last.
    told: Option<Timestamp>,
    /// When the schedule or its zone was seen to change.
    rescheduled: Option<Timestamp>,
}

impl Controller for CronJobController {
    const NAME: &'static str = "cronjob-controller";
    const QUEUE: &'static str = "cronjob";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (cron_jobs, jobs) = (context.informer::<CronJob>(), context.informer::<Job>());
        jobs.index(&JOBS_BY_CONTROLLER);
        let states: Arc<PerOwner<CronJobState>> = Arc::default();
        let (queue, remembered) = (context.queue(), Arc::clone(&states));
        cron_jobs.on_change(move |old, new| {
            let Some(cron_job) = new.or(old) else { return };
            let key = Key::of(&cron_job.metadata);
            if let (Some(old), Some(new)) = (old, new)
                && (&old.spec.schedule, &old.spec.time_zone) != (&new.spec.schedule, &new.spec.time_zone)
            {
                let uid = new.uid().unwrap_or_default();
                remembered.with(&key, &uid, |state| state.rescheduled = Some(Timestamp::now()));
            }
            queue.add(key);
        });
        let queue = context.queue();
        jobs.on_change(move |old, new| {
            queue_controllers::<CronJob, Job>(&queue, old, new);
        });
        Self {
            client: context.client(),
            recorder: context.recorder("cronjob-controller"),
            cron_jobs: cron_jobs.cache(),
            jobs: jobs.cache(),
            states,
            metrics: context.metrics().of(),
        }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(cron_job) = self.cron_jobs.get(&key) else {
            self.states.forget(&key);
            return Ok(Outcome::Done);
        };
        let uid = cron_job.uid().unwrap_or_default();
        let state = self.states.with(&key, &uid, |state| state.clone());
        let (written, started) = (state.written, state.started);
        if written.is_some_and(|point| !self.cron_jobs.reached(point))
            || started.is_some_and(|point| !self.jobs.reached(point))
        {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let mut jobs = self.jobs.by_index(&JOBS_BY_CONTROLLER, &uid);
        jobs.retain(|job| job.metadata.namespace == cron_job.metadata.namespace);
        let gone = self.gone(&key, &cron_job);
        let local = TimeZone::system();
        let now = Timestamp::now();
        let CronJobState { told, rescheduled, .. } = state;
        let observed = Observed { jobs: &jobs, gone: &gone, local: &local, told, rescheduled, now };
        let mut plan = plan::reconcile(&cron_job, &observed);
        if plan.missed.is_some() {
            self.states.with(&key, &uid, |state| state.told = plan.missed);
        }
        let mut replaced = true;
        for job in &plan.replace {
            replaced &= self.delete(&cron_job, job).await;
            if replaced && let Some(active) = &mut plan.status.active {
                active.retain(|reference| reference.uid != job.metadata.uid);
            }
        }
        let failed = match &plan.start {
            Some(start) if replaced => !self.start(&key, &cron_job, start, &mut plan.status).await?,
            start => start.is_some(),
        };
        let mut cleaned = true;
        for job in &plan.expired {
            cleaned &= self.delete(&cron_job, job).await;
        }
        self.write(&key, &cron_job, &plan.status).await?;
        plan.events.iter().for_each(|event| self.record(&cron_job, event));
        Ok(match plan.wait {
            _ if failed || !cleaned => Outcome::Failed,
            Some(wait) => Outcome::After(wait),
            None => Outcome::Done,
        })
    }
}

impl CronJobController {
    /// The active Jobs that exist no longer.
    fn gone(&self, key: &Key, cron_job: &CronJob) -> HashSet<String> {
        let active = cron_job.status.iter().flat_map(|status| status.active.iter().flatten());
        let gone = active.filter_map(|reference| {
            let found = self.jobs.get(&Key::new(&*key.namespace, reference.name.as_deref().unwrap_or_default()));
            let uid = reference.uid.clone()?;
            found.is_none_or(|job| job.uid().as_ref() != Some(&uid)).then_some(uid)
        });
        gone.collect()
    }

    /// Starts a Job and adds it to the status; returns whether it runs or cannot be started at all.
    async fn start(
        &self,
        key: &Key,
        cron_job: &CronJob,
        start: &Start,
        status: &mut CronJobStatus,
    ) -> Result<bool, Error> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let job = match api.create(&PostParams::default(), &start.job).await {
            Ok(job) => {
                self.record(cron_job, &messages::created(&job.name_any()));
                if let Some(made) = &job.metadata.creation_timestamp {
                    self.metrics.skew.observe([], made.0.duration_since(start.at).as_secs_f64());
                }
                job
            }
            // Of an earlier run that could not write the status, or of somebody else.
            Err(error) if error::is_already_exists(&error) => {
                let found = api.get_opt(&start.job.name_any()).await.during("read a job of", key)?;
                match found.filter(|job| pods::is_controlled_by(&job.metadata, &cron_job.metadata)) {
                    Some(job) => job,
                    None => return Ok(true),
                }
            }
            Err(error) if error::is_namespace_terminating(&error) => return Ok(true),
            Err(error) => {
                self.record(cron_job, &messages::create_failed(&error::message(&error)));
                return Ok(false);
            }
        };
        let point = self.jobs.sync_point(job.metadata.resource_version.as_deref());
        let uid = cron_job.uid().unwrap_or_default();
        self.states.with(key, &uid, |state| state.started = Some(point));
        plan::started(status, job.object_ref(&()), start.at);
        Ok(true)
    }

    /// Deletes exactly this Job, and its pods after it; returns whether it is being deleted.
    #[must_use]
    async fn delete(&self, cron_job: &CronJob, job: &Arc<Job>) -> bool {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        let params = DeleteParams::background().preconditions(same_object(&job.metadata));
        match api.delete(&job.name_any(), &params).await {
            Ok(_) => self.record(cron_job, &messages::deleted(&job.name_any())),
            Err(error) if error::is_not_found(&error) || error::is_conflict(&error) => {}
            Err(error) => {
                self.record(cron_job, &messages::delete_failed(&error::message(&error)));
                return false;
            }
        }
        true
    }

    /// Writes the status if it has changed.
    ///
    /// # Errors
    /// When the CronJob has changed meanwhile; a Job that was started is found again by its name.
    async fn write(&self, key: &Key, cron_job: &CronJob, status: &CronJobStatus) -> Result<(), Error> {
        let old = cron_job.status.clone().unwrap_or_default();
        let active = |status: &CronJobStatus| status.active.clone().unwrap_or_default();
        if active(&old) == active(status)
            && old.last_schedule_time == status.last_schedule_time
            && old.last_successful_time == status.last_successful_time
        {
            return Ok(());
        }
        let active = Some(active(status)).filter(|active| !active.is_empty());
        let patch = json!({
            "metadata": {"resourceVersion": cron_job.metadata.resource_version},
            "status": {
                "active": active,
                "lastScheduleTime": status.last_schedule_time,
                "lastSuccessfulTime": status.last_successful_time,
            },
        });
        let api: Api<CronJob> = Api::namespaced(self.client.clone(), &key.namespace);
        let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        if let Some(written) = error::of_seen(answer, "update the status of", key)? {
            let point = self.cron_jobs.sync_point(written.metadata.resource_version.as_deref());
            let uid = cron_job.uid().unwrap_or_default();
            self.states.with(key, &uid, |state| state.written = Some(point));
        }
        Ok(())
    }

    fn record(&self, cron_job: &CronJob, Message { severity, reason, text }: &Message) {
        self.recorder.record(&cron_job.object_ref(&()), *severity, reason, text.clone());
    }
}
