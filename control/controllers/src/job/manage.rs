//! How many pods a Job gets, and which are too many. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec};

use super::{
    backoff::{Backoff, remaining_of_index},
    counts::{Counts, Indexed, number},
    indexes::Indexes,
    pod::{completion_index, failures_after, index_failures, replaces_failed_only},
};
use crate::{replication::ranking, runtime::CachedPod};

/// The largest number of pods that one run creates or deletes.
const BURST: usize = 500;

/// A pod to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewPod {
    /// Of an indexed Job.
    pub(crate) index: Option<i32>,
    /// How many pods of the index failed before, counted and ignored; where each index has a limit.
    pub(crate) failures: Option<(i32, i32)>,
}

/// What is to be done; creations and deletions never come together.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) create: Vec<NewPod>,
    pub(crate) delete: Vec<Arc<CachedPod>>,
    /// When more pods may be created.
    pub(crate) wait: Option<Duration>,
}

pub(crate) fn manage(job: &Job, spec: &JobSpec, counts: &Counts<'_>, backoff: Backoff, now: Timestamp) -> Changes {
    let active = number(counts.active.len());
    if spec.suspend == Some(true) {
        return Changes { delete: counts.active.clone(), ..Changes::default() };
    }
    let parallelism = spec.parallelism.unwrap_or(1).max(0);
    let wanted = match spec.completions {
        Some(completions) => completions.saturating_sub(counts.succeeded).clamp(0, parallelism),
        // A first success means that there is no more work: running pods continue, and none is added.
        None if counts.succeeded > 0 => active,
        None => parallelism,
    };
    let surplus = usize::try_from(active - wanted).unwrap_or(0);
    let mut delete = surplus_pods(counts, surplus, now);
    if !delete.is_empty() {
        delete.truncate(BURST);
        return Changes { delete, ..Changes::default() };
    }
    let held = if replaces_failed_only(job) { number(counts.terminating.len()) } else { 0 };
    let missing = usize::try_from(wanted - held - active).unwrap_or(0).min(BURST);
    if missing == 0 {
        return Changes::default();
    }
    let wait = if spec.backoff_limit_per_index.is_some() { Duration::ZERO } else { backoff.remaining(now) };
    if !wait.is_zero() {
        return Changes { wait: Some(wait), ..Changes::default() };
    }
    match &counts.indexed {
        None => Changes { create: vec![NewPod { index: None, failures: None }; missing], ..Changes::default() },
        Some(indexed) => next_indexes(job, counts, indexed, missing, now),
    }
}

/// The pods of the first indexes that have none.
fn next_indexes(job: &Job, counts: &Counts<'_>, indexed: &Indexed<'_>, count: usize, now: Timestamp) -> Changes {
    let mut taken = indexed.completed.and(&counts.active.iter().filter_map(|pod| completion_index(pod)).collect());
    if replaces_failed_only(job) {
        taken = taken.and(&counts.terminating.iter().filter_map(|pod| completion_index(pod)).collect());
    }
    let mut changes = Changes::default();
    let Some(failed) = &indexed.failed else {
        let indexes = taken.missing(indexed.completions, count).into_iter();
        changes.create.extend(indexes.map(|index| NewPod { index: Some(index), failures: None }));
        return changes;
    };
    // An index that has to wait keeps none of the others back.
    let waits = |(index, pod): (&i32, &&Arc<CachedPod>)| {
        let (counted, ignored) = index_failures(pod);
        let wait = remaining_of_index(counted.saturating_add(ignored), pod, now);
        (!wait.is_zero()).then_some((*index, wait))
    };
    let waiting: BTreeMap<i32, Duration> = indexed.replaced.iter().filter_map(waits).collect();
    changes.wait = waiting.values().min().copied();
    let waiting: Indexes = waiting.into_keys().collect();
    for index in taken.and(failed).and(&waiting).missing(indexed.completions, count) {
        let failures = indexed.replaced.get(&index).map_or((0, 0), |pod| failures_after(job, pod));
        changes.create.push(NewPod { index: Some(index), failures: Some(failures) });
    }
    changes
}

/// The pods to delete: of an indexed Job those whose index is wrong or taken, then what is too much.
fn surplus_pods(counts: &Counts<'_>, surplus: usize, now: Timestamp) -> Vec<Arc<CachedPod>> {
    let Some(indexed) = &counts.indexed else {
        return ranking::to_delete(&counts.active, &counts.active, surplus, now);
    };
    let mut by_index: BTreeMap<Option<i32>, Vec<Arc<CachedPod>>> = BTreeMap::new();
    for pod in &counts.active {
        let index = completion_index(pod).filter(|index| *index < indexed.completions);
        by_index.entry(index).or_default().push(Arc::clone(pod));
    }
    let (mut delete, mut left) = (Vec::new(), Vec::new());
    for (index, pods) in by_index {
        let kept = usize::from(index.is_some());
        let mut ranked = ranking::to_delete(&pods, &pods, pods.len(), now);
        left.extend(ranked.split_off(ranked.len() - kept));
        delete.extend(ranked);
    }
    let more = surplus.saturating_sub(delete.len());
    delete.extend(ranking::to_delete(&left, &left, more, now));
    delete
}
