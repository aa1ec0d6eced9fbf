//! What the pods of a Job say, besides what has been counted before. Pure.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};

use super::{
    indexes::Indexes,
    plan::Observed,
    pod::{self, completion_index, has_failed, has_succeeded},
    policy,
};
use crate::{pods, runtime::CachedPod};

/// The pods of a Job by what they do.
#[derive(Debug)]
pub(crate) struct Counts<'a> {
    pub(crate) active: Vec<Arc<CachedPod>>,
    pub(crate) terminating: Vec<&'a Arc<CachedPod>>,
    /// Those that the finalizer holds, in order of their indexes.
    pub(crate) tracked: Vec<&'a Arc<CachedPod>>,
    /// Ended, and not in the status yet.
    pub(crate) new_succeeded: Vec<&'a CachedPod>,
    pub(crate) new_failed: Vec<&'a CachedPod>,
    /// With those that have been counted.
    pub(crate) succeeded: i32,
    /// The same; without what a pod failure policy ignores.
    pub(crate) failed: i32,
    pub(crate) indexed: Option<Indexed<'a>>,
}

/// The indexes of an indexed Job.
#[derive(Debug)]
pub(crate) struct Indexed<'a> {
    pub(crate) completions: i32,
    /// Completed, as the status says.
    pub(crate) recorded: Indexes,
    /// The same with those of pods that have succeeded since.
    pub(crate) completed: Indexes,
    /// `None` without a limit for each index.
    pub(crate) failed: Option<Indexes>,
    /// The last failed pod of each index that is to get another one, which takes over its number of failures.
    pub(crate) replaced: BTreeMap<i32, &'a Arc<CachedPod>>,
}

/// The UIDs of pods that the status names, and that are not in its counters yet.
#[derive(Debug)]
pub(crate) struct Uncounted<'a> {
    pub(crate) succeeded: HashSet<&'a str>,
    pub(crate) failed: HashSet<&'a str>,
}

impl<'a> Uncounted<'a> {
    pub(crate) fn of(status: &'a JobStatus) -> Self {
        let uncounted = status.uncounted_terminated_pods.as_ref();
        let set = |uids: Option<&'a Vec<String>>| uids.into_iter().flatten().map(String::as_str).collect();
        Self {
            succeeded: set(uncounted.and_then(|u| u.succeeded.as_ref())),
            failed: set(uncounted.and_then(|u| u.failed.as_ref())),
        }
    }

    pub(crate) fn has(&self, uid: &str) -> bool {
        self.succeeded.contains(uid) || self.failed.contains(uid)
    }
}

pub(crate) fn count<'a>(job: &Job, spec: &JobSpec, status: &JobStatus, observed: &Observed<'a>) -> Counts<'a> {
    let completions = (spec.completion_mode.as_deref() == Some("Indexed")).then(|| spec.completions.unwrap_or(0));
    let uncounted = Uncounted::of(status);
    let is_tracked = |pod: &CachedPod| pod::is_tracked(pod) && !observed.released.contains(pod::uid(pod));
    let mut tracked: Vec<&Arc<CachedPod>> = observed.pods.iter().filter(|pod| is_tracked(pod)).collect();
    tracked.sort_by_key(|pod| completion_index(pod));
    let is_new = |pod: &CachedPod| !uncounted.has(pod::uid(pod)) && is_valid(pod, completions);
    let new: Vec<&CachedPod> = tracked.iter().map(|pod| &***pod).filter(|pod| is_new(pod)).collect();
    let new_succeeded: Vec<&CachedPod> = new.iter().copied().filter(|pod| has_succeeded(pod)).collect();
    let new_failed: Vec<&CachedPod> = new.iter().copied().filter(|pod| has_failed(job, pod)).collect();
    let active: Vec<Arc<CachedPod>> = observed.pods.iter().filter(|pod| pods::is_active(pod)).cloned().collect();
    let counted_failures = new_failed.iter().filter(|pod| policy::counts(job, pod)).count();
    let indexed = completions.map(|completions| {
        let limit = spec.backoff_limit_per_index;
        Indexed::of(job, (status, completions), limit, (&tracked, &new_succeeded, &active))
    });
    let succeeded = match &indexed {
        Some(indexed) => indexed.completed.total(),
        None => sum(status.succeeded, uncounted.succeeded.len() + new_succeeded.len()),
    };
    Counts {
        terminating: observed.pods.iter().filter(|pod| pod::is_terminating(pod)).collect(),
        succeeded,
        failed: sum(status.failed, uncounted.failed.len() + counted_failures),
        active,
        tracked,
        new_succeeded,
        new_failed,
        indexed,
    }
}

/// Whether a pod can count: those of an indexed Job need an index.
pub(crate) fn is_valid(pod: &CachedPod, completions: Option<i32>) -> bool {
    completions.is_none_or(|completions| completion_index(pod).is_some_and(|index| index < completions))
}

fn sum(counter: Option<i32>, more: usize) -> i32 {
    counter.unwrap_or(0).saturating_add(number(more))
}

pub(crate) fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl<'a> Indexed<'a> {
    fn of(
        job: &Job,
        (status, completions): (&JobStatus, i32),
        limit: Option<i32>,
        (tracked, new_succeeded, active): (&[&'a Arc<CachedPod>], &[&CachedPod], &[Arc<CachedPod>]),
    ) -> Self {
        let recorded = Indexes::parse(status.completed_indexes.as_deref().unwrap_or_default(), completions);
        let completed = recorded.and(&new_succeeded.iter().filter_map(|pod| completion_index(pod)).collect());
        let mut indexed = Self { completions, recorded, completed, failed: None, replaced: BTreeMap::new() };
        let Some(limit) = limit else { return indexed };
        let valid = || tracked.iter().copied().filter(|pod| is_valid(pod, Some(completions)));
        let exceeds = |pod: &&Arc<CachedPod>| fails_index(job, pod, limit);
        let recorded = Indexes::parse(status.failed_indexes.as_deref().unwrap_or_default(), completions);
        let failed = recorded.and(&valid().filter(exceeds).filter_map(|pod| completion_index(pod)).collect());
        let active: Indexes = active.iter().filter_map(|pod| completion_index(pod)).collect();
        for pod in valid().filter(|pod| has_failed(job, pod)) {
            let Some(index) = completion_index(pod) else { continue };
            if indexed.completed.has(index) || failed.has(index) || active.has(index) {
                continue;
            }
            let known = indexed.replaced.entry(index).or_insert(pod);
            if order(known) <= order(pod) {
                *known = pod;
            }
        }
        indexed.failed = Some(failed);
        indexed
    }
}

/// Later pods of an index come after earlier ones.
fn order(pod: &CachedPod) -> (i32, jiff::Timestamp) {
    let (counted, ignored) = pod::index_failures(pod);
    (counted.saturating_add(ignored), pod::finished_at(pod))
}

/// Whether an index has failed with this pod.
fn fails_index(job: &Job, pod: &CachedPod, limit: i32) -> bool {
    has_failed(job, pod)
        && match policy::action(job, pod) {
            policy::Action::FailIndex => true,
            policy::Action::Ignore => false,
            policy::Action::Count | policy::Action::FailJob(_) => pod::index_failures(pod).0 >= limit,
        }
}
