//! Decides what a Job needs: pods to create and delete, pods that have ended to count, and its status. Pure.
//!
//! Each pod counts once, whatever happens in between. A finalizer holds a pod until it has been counted: first its UID
//! is written to `uncountedTerminatedPods` ([`reconcile`]), then the finalizer is removed, then the UID moves to a
//! counter ([`settle`], or the next run). An indexed Job's completed indexes need no UIDs.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::batch::v1::{Job, JobSpec, JobStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use windlass_kit::events::Severity;

use super::{
    backoff::Backoff,
    counts::{self, Counts, Uncounted, number},
    ending::{Ending, deadline_in, ending},
    manage::{Changes, NewPod, manage},
    messages::{self, Reason, events},
    pod::{self, completion_index},
    policy,
    status::{is_set, move_counted, normal, set_condition},
};
use crate::{pods, runtime::CachedPod};

/// The largest number of UIDs that a status names.
const MAX_UNCOUNTED: usize = 500;

/// What is known besides the Job.
#[derive(Debug)]
pub(crate) struct Observed<'a> {
    /// The pods that the Job controls.
    pub(crate) pods: &'a [Arc<CachedPod>],
    /// Whether the cache shows all earlier creations and deletions.
    pub(crate) settled: bool,
    /// UIDs of pods whose finalizer is gone, though the cache may still show it.
    pub(crate) released: &'a HashSet<String>,
    pub(crate) backoff: Backoff,
    pub(crate) now: Timestamp,
}

/// The actions of one run, in their order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) create: Vec<NewPod>,
    pub(crate) delete: Vec<Arc<CachedPod>>,
    /// The deleted pods are too many: their finalizers go first, and they do not count as failures.
    pub(crate) forget: bool,
    /// What is written then, provided that all of that succeeds.
    pub(crate) status: JobStatus,
    pub(crate) events: Vec<(Severity, Reason)>,
    /// What the status says now of these pods is enough: their finalizers go.
    pub(crate) release: Vec<Arc<CachedPod>>,
    /// What rules of a pod failure policy say of failed pods among them.
    pub(crate) handled: Vec<&'static str>,
    /// The UIDs of pods that have the finalizer.
    pub(crate) tracked: HashSet<String>,
    /// The Job has ended as soon as all pods are counted and gone.
    pub(crate) ending: Option<Ending>,
    /// More pods are to be counted.
    pub(crate) more: bool,
    /// When the passing of time changes something.
    pub(crate) wait: Option<Duration>,
    /// Replaces the record when the status is written.
    pub(crate) backoff: Backoff,
}

/// Upstream's `syncJob`.
pub(crate) fn reconcile(job: &Job, observed: &Observed<'_>) -> Plan {
    let Some(spec) = &job.spec else { return Plan::default() };
    let now = observed.now;
    let mut status = job.status.clone().unwrap_or_default();
    let tracked = tracked(observed);
    move_counted(&mut status, &tracked);
    let counts = counts::count(job, spec, &status, observed);
    let suspended = spec.suspend == Some(true);
    if status.start_time.is_none() && !suspended {
        status.start_time = Some(Time(now));
    }
    let backoff = observed.backoff.with(&counts.new_succeeded, &counts.new_failed);
    let mut plan = Plan { tracked, backoff, wait: deadline_in(spec, &status, now), ..Plan::default() };
    let end = ending((job, spec, &status), observed.pods, &counts, now);
    if end.is_some() {
        plan.delete = counts.active.clone();
        // Pods that the cache does not show yet have to be found and deleted first.
        plan.ending = end.filter(|_| observed.settled);
        plan.wait = None;
    } else {
        let deleting = job.metadata.deletion_timestamp.is_some();
        if observed.settled && !deleting {
            let Changes { create, delete, wait } = manage(job, spec, &counts, backoff, now);
            plan.wait = pods::earliest(plan.wait, wait);
            (plan.create, plan.delete, plan.forget) = (create, delete, true);
        }
        let active = counts.active.len() + plan.create.len() - plan.delete.len();
        let reached = match spec.completions {
            Some(completions) => counts.succeeded >= completions,
            None => counts.succeeded > 0,
        };
        // A pod that the cache does not show yet may still run.
        if reached && active == 0 && observed.settled {
            plan.ending = Some(Ending::completions_reached());
        } else if observed.settled && !deleting {
            suspension(&mut status, &mut plan.events, suspended, now);
        }
    }
    set_counts(&mut status, &plan, &counts);
    count_ended(job, &mut status, &mut plan, &counts);
    // The interim condition must be written before the finalizers are removed: afterwards the reason is lost with the
    // pods.
    if let Some(end) = &plan.ending {
        // A Job may come to its end while it is suspended; one that has ended must have begun.
        if status.start_time.is_none() && spec.completions != Some(0) {
            status.start_time = Some(Time(now));
        }
        set_condition(&mut status, end.interim(), true, &end.why, now);
    }
    plan.status = normal(status);
    plan
}

/// Takes pods that could not be created out of the numbers.
pub(crate) fn not_created(plan: &mut Plan, count: usize) {
    let active = plan.status.active.unwrap_or(0).saturating_sub(number(count)).max(0);
    plan.status.active = Some(active).filter(|active| *active > 0);
}

/// Puts pods that could not be deleted back into the numbers; a Job does not end while they run.
pub(crate) fn not_deleted(plan: &mut Plan, count: usize) {
    if count > 0 {
        plan.status.active = Some(plan.status.active.unwrap_or(0).saturating_add(number(count)));
        plan.status.terminating = Some(plan.status.terminating.unwrap_or(0).saturating_sub(number(count)).max(0));
    }
}

/// The UIDs of the pods that have the finalizer.
fn tracked(observed: &Observed<'_>) -> HashSet<String> {
    let tracked = observed.pods.iter().filter(|pod| pod::is_tracked(pod)).map(|pod| pod::uid(pod));
    tracked.filter(|uid| !observed.released.contains(*uid)).map(str::to_owned).collect()
}

/// Sets the condition of a Job that is suspended or runs again. Only running counts towards the deadline.
fn suspension(status: &mut JobStatus, events: &mut Vec<(Severity, Reason)>, suspended: bool, now: Timestamp) {
    if suspended {
        status.start_time = None;
        if set_condition(status, "Suspended", true, &messages::suspended(), now) {
            events.push((Severity::Normal, self::events::suspended()));
        }
    } else if is_set(status, "Suspended") && set_condition(status, "Suspended", false, &messages::resumed(), now) {
        events.push((Severity::Normal, self::events::resumed()));
    }
}

/// The numbers of pods, as they are after the actions.
fn set_counts(status: &mut JobStatus, plan: &Plan, counts: &Counts<'_>) {
    let deleted: HashSet<&str> = plan.delete.iter().map(|pod| pod::uid(pod)).collect();
    let left = || counts.active.iter().filter(|pod| !deleted.contains(pod::uid(pod)));
    status.active = Some(number(left().count() + plan.create.len()));
    status.ready = Some(number(left().filter(|pod| pods::is_ready(pod)).count()));
    status.terminating = Some(number(counts.terminating.len() + deleted.len()));
}

/// Adds pods that have ended to the status, and to those to release. Upstream's `trackJobStatusAndRemoveFinalizers`.
fn count_ended(job: &Job, status: &mut JobStatus, plan: &mut Plan, counts: &Counts<'_>) {
    let completions = counts.indexed.as_ref().map(|indexed| indexed.completions);
    let known = status.clone();
    let known = Uncounted::of(&known);
    let fails = plan.ending.as_ref().is_some_and(|end| !end.succeeds);
    let all = job.metadata.deletion_timestamp.is_some() || plan.ending.is_some();
    let replaced = counts.indexed.as_ref().map(|indexed| &indexed.replaced);
    let mut added = 0;
    let lists = status.uncounted_terminated_pods.get_or_insert_default();
    for pod in &counts.tracked {
        let (succeeded, failed) = (pod::has_succeeded(pod), pod::has_failed(job, pod));
        if !(all || succeeded || (failed && !is_replaced(pod, replaced))) {
            continue;
        }
        plan.release.push(Arc::clone(pod));
        let uid = pod::uid(pod);
        let valid = counts::is_valid(pod, completions);
        let fails_now = !succeeded && (failed || fails) && valid && !known.has(uid);
        if fails_now {
            plan.handled.extend(policy::rule(job, pod).map(|action| action.name()));
        }
        if succeeded && !known.has(uid) {
            match (&counts.indexed, completion_index(pod)) {
                (None, _) => {
                    lists.succeeded.get_or_insert_default().push(uid.to_owned());
                    added += 1;
                }
                (Some(indexed), Some(index)) if valid && !indexed.recorded.has(index) => added += 1,
                _ => {}
            }
        } else if fails_now && policy::counts(job, pod) {
            lists.failed.get_or_insert_default().push(uid.to_owned());
            added += 1;
        }
        if added + known.succeeded.len() + known.failed.len() >= MAX_UNCOUNTED {
            plan.more = true;
            break;
        }
    }
    if let Some(indexed) = &counts.indexed {
        status.succeeded = Some(indexed.completed.total());
        status.completed_indexes = Some(indexed.completed.to_string());
        status.failed_indexes = indexed.failed.as_ref().map(ToString::to_string);
    }
}

/// A pod that stays until its index has another one, which takes over its number of failures.
fn is_replaced(pod: &CachedPod, replaced: Option<&BTreeMap<i32, &Arc<CachedPod>>>) -> bool {
    let last = replaced.zip(completion_index(pod)).and_then(|(replaced, index)| replaced.get(&index));
    last.is_some_and(|last| pod::uid(last) == pod::uid(pod))
}

/// The status when the finalizers of `released` are gone: what was uncounted is counted, and a Job that has ended says so.
/// Upstream's `flushUncountedAndRemoveFinalizers`.
pub(crate) fn settle(
    spec: Option<&JobSpec>,
    plan: &Plan,
    released: &HashSet<String>,
    now: Timestamp,
) -> (JobStatus, Vec<(Severity, Reason)>) {
    let (mut status, mut events) = (plan.status.clone(), Vec::new());
    let tracked: HashSet<String> = plan.tracked.difference(released).cloned().collect();
    move_counted(&mut status, &tracked);
    let uncounted = Uncounted::of(&status);
    let open = !uncounted.succeeded.is_empty() || !uncounted.failed.is_empty() || plan.more;
    let runs = status.terminating.unwrap_or(0) > 0 || status.active.unwrap_or(0) > 0;
    if let Some(end) = plan.ending.as_ref().filter(|_| !open && !runs) {
        set_condition(&mut status, end.terminal(), true, &end.why, now);
        if end.succeeds {
            status.completion_time = Some(Time(now));
            let wanted = spec.and_then(|spec| spec.completions);
            if wanted.is_some_and(|wanted| status.succeeded.unwrap_or(0) > wanted) {
                events.push((Severity::Warning, self::events::too_many_succeeded()));
            }
            events.push((Severity::Normal, self::events::completed()));
        } else {
            events.push((Severity::Warning, end.why.clone()));
        }
    }
    (normal(status), events)
}
