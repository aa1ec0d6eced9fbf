//! Decides which Jobs a CronJob starts, replaces and removes. Pure.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::{
    api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::ResourceExt;
use windlass_kit::objects::schedule::Schedule;

use super::{
    messages::{self, Message},
    schedule_times::Times,
};
use crate::{finished_jobs, pod_control::owner_reference};

/// When the Job should have begun, in the CronJob's time zone.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// What is known besides the CronJob.
#[derive(Debug)]
pub(crate) struct Observed<'a> {
    /// The Jobs that the CronJob controls.
    pub(crate) jobs: &'a [Arc<Job>],
    /// UIDs of its active Jobs that exist no longer.
    pub(crate) gone: &'a HashSet<String>,
    /// The zone of CronJobs that name none.
    pub(crate) local: &'a TimeZone,
    /// The missed time that was reported last.
    pub(crate) told: Option<Timestamp>,
    /// When the schedule or its zone became another one: no time before that was ever due by it.
    pub(crate) rescheduled: Option<Timestamp>,
    pub(crate) now: Timestamp,
}

/// The actions of one run, in their order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Running Jobs that the new one replaces.
    pub(crate) replace: Vec<Arc<Job>>,
    pub(crate) start: Option<Start>,
    /// Ended Jobs beyond the limits, the oldest first.
    pub(crate) expired: Vec<Arc<Job>>,
    /// Without the Job to start.
    pub(crate) status: CronJobStatus,
    pub(crate) events: Vec<Message>,
    pub(crate) missed: Option<Timestamp>,
    pub(crate) wait: Option<Duration>,
}

/// A Job to start.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) at: Timestamp,
    pub(crate) job: Job,
}

/// Upstream's `syncCronJob`.
pub(crate) fn reconcile(cron_job: &CronJob, observed: &Observed<'_>) -> Plan {
    let spec = &cron_job.spec;
    let mut plan = Plan { status: cron_job.status.clone().unwrap_or_default(), ..Plan::default() };
    follow(&mut plan, observed);
    if cron_job.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    schedule(cron_job, spec, observed, &mut plan);
    // A Job of a run that ended before it wrote the status is started again, which finds it.
    if let Some(start) = &plan.start {
        let unexpected = messages::unexpected(&start.job.name_any());
        plan.events.retain(|event| *event != unexpected);
    }
    plan.expired = expired(spec.successful_jobs_history_limit, observed.jobs, "Complete");
    plan.expired.extend(expired(spec.failed_jobs_history_limit, observed.jobs, "Failed"));
    plan
}

/// Follows the Jobs that are active.
fn follow(plan: &mut Plan, observed: &Observed<'_>) {
    let Plan { status, events, .. } = plan;
    let active = status.active.get_or_insert_default();
    for job in observed.jobs {
        let known = active.iter().position(|reference| reference.uid == job.metadata.uid);
        match (finished_jobs::finished(job), known) {
            (None, None) => events.push(messages::unexpected(&job.name_any())),
            (None, Some(_)) => {}
            (Some(end), known) => {
                if let Some(at) = known {
                    active.remove(at);
                    events.push(messages::completed(&job.name_any(), &end.type_));
                }
                let completed = job.status.as_ref().and_then(|status| status.completion_time.clone());
                if end.type_ == "Complete" && completed > status.last_successful_time {
                    status.last_successful_time = completed;
                }
            }
        }
    }
    active.retain(|reference| {
        let gone = reference.uid.as_ref().is_some_and(|uid| observed.gone.contains(uid));
        if gone {
            events.push(messages::missing(reference.name.as_deref().unwrap_or_default()));
        }
        !gone
    });
}

/// Finds the time that is due, if any, and starts its Job.
fn schedule(cron_job: &CronJob, spec: &CronJobSpec, observed: &Observed<'_>, plan: &mut Plan) {
    let zone = match spec.time_zone.as_deref().map(|name| (name, TimeZone::get(name))) {
        None => None,
        Some((_, Ok(zone))) => Some(zone),
        Some((name, Err(_))) => return plan.events.push(messages::unknown_time_zone(name)),
    };
    if spec.suspend == Some(true) {
        return;
    }
    if spec.schedule.contains("TZ") {
        plan.events.push(messages::unsupported(&spec.schedule));
    }
    let parsed = match Schedule::parse(&spec.schedule) {
        Ok(parsed) => parsed,
        Err(why) => return plan.events.push(messages::unparseable(&spec.schedule, &why)),
    };
    let now = observed.now;
    let last = plan.status.last_schedule_time.as_ref().map(|time| time.0);
    let created = cron_job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let since = last.or(created).unwrap_or(now);
    let since = observed.rescheduled.map_or(since, |rescheduled| rescheduled.max(since));
    let times = Times { schedule: &parsed, zone: zone.as_ref().unwrap_or(observed.local), since };
    if !times.any() {
        return plan.events.push(messages::invalid(&spec.schedule));
    }
    plan.wait = times.wait(now);
    let Some(at) = times.due(now) else { return };
    let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let earliest = deadline.and_then(|deadline| now.checked_sub(deadline).ok());
    if earliest.is_some_and(|earliest| at < earliest) {
        if observed.told != Some(at) {
            plan.events.push(messages::missed(at));
        }
        plan.missed = Some(at);
        return;
    }
    if times.are_many(earliest.map_or(since, |earliest| earliest.max(since)), now) {
        plan.events.push(messages::too_many_missed());
    }
    let job = job_of(cron_job, spec, at, zone.unwrap_or(TimeZone::UTC));
    let active = plan.status.active.as_deref().unwrap_or_default();
    if active.iter().any(|reference| reference.name == job.metadata.name) {
        return;
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => return plan.events.push(messages::already_active()),
        Some("Replace") => {
            let is_active = |job: &&Arc<Job>| active.iter().any(|reference| reference.uid == job.metadata.uid);
            plan.replace = observed.jobs.iter().filter(is_active).cloned().collect();
        }
        _ => {}
    }
    plan.start = Some(Start { at, job });
}

/// The Job of one scheduled time. Its name is derived from the time, so that there is only one, however often it is
/// created.
/// Upstream's `getJobFromTemplate2`.
fn job_of(cron_job: &CronJob, spec: &CronJobSpec, at: Timestamp, zone: TimeZone) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), rfc3339(at, zone));
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", cron_job.name_any(), at.as_second() / 60)),
            namespace: cron_job.namespace(),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(cron_job)]),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

/// A time as Go's RFC 3339 has it.
fn rfc3339(at: Timestamp, zone: TimeZone) -> String {
    let at = at.to_zoned(zone);
    at.strftime(if at.offset().is_zero() { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" }).to_string()
}

/// The Jobs that have ended so and are too many. Upstream's `cleanupFinishedJobs`.
fn expired(limit: Option<i32>, all: &[Arc<Job>], condition: &str) -> Vec<Arc<Job>> {
    let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { return Vec::new() };
    let ended = |job: &&Arc<Job>| {
        job.metadata.deletion_timestamp.is_none()
            && finished_jobs::finished(job).is_some_and(|end| end.type_ == condition)
    };
    let mut ended: Vec<Arc<Job>> = all.iter().filter(ended).cloned().collect();
    ended.sort_by_cached_key(|job| {
        let start = job.status.as_ref().and_then(|status| status.start_time.clone());
        (start.is_none(), start, job.name_any())
    });
    ended.truncate(ended.len().saturating_sub(limit));
    ended
}

/// The status with a Job that has been started.
pub(crate) fn started(status: &mut CronJobStatus, job: k8s_openapi::api::core::v1::ObjectReference, at: Timestamp) {
    let active = status.active.get_or_insert_default();
    if !active.iter().any(|reference| reference.uid == job.uid) {
        active.push(job);
    }
    status.last_schedule_time = Some(Time(at));
}
