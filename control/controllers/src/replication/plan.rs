//! Plans the pods of an owner from its current pods. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use windlass_kit::objects::label_selector::Selector;

use super::ranking;
use crate::{
    pod_control::{Claim, Claimant, claim},
    pods,
    runtime::CachedPod,
};

/// Maximum number of pods that one run creates or deletes.
pub(crate) const BURST: usize = 500;

/// The desired state of an owner, whatever its kind.
#[derive(Debug, Clone)]
pub(crate) struct Desired<'a> {
    pub(crate) uid: &'a str,
    /// Terminating: neither adopts nor scales.
    pub(crate) deleting: bool,
    pub(crate) replicas: usize,
    pub(crate) min_ready: Duration,
    pub(crate) selector: Selector<'a>,
    pub(crate) template_labels: &'a BTreeMap<String, String>,
}

impl<'a> Desired<'a> {
    fn claimant(&self) -> Claimant<'a> {
        Claimant { uid: self.uid, deleting: self.deleting, selector: self.selector }
    }
}

/// Replica counts as the owner's status shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) replicas: i32,
    pub(crate) fully_labeled: i32,
    pub(crate) ready: i32,
    pub(crate) available: i32,
    pub(crate) terminating: i32,
}

/// The actions of one run.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Matching pods without a controller, to adopt.
    pub(crate) adopt: Vec<Arc<CachedPod>>,
    /// Owned pods whose labels no longer match, to release.
    pub(crate) release: Vec<Arc<CachedPod>>,
    pub(crate) create: usize,
    /// In order of deletion.
    pub(crate) delete: Vec<Arc<CachedPod>>,
    pub(crate) counts: Counts,
    /// When a ready pod becomes available by time alone.
    pub(crate) recheck: Option<Duration>,
}

/// `scale` is false while expectations of earlier writes are not satisfied; `related` are pods of owners of the same owner.
/// Upstream's `manageReplicas`.
pub(crate) fn reconcile(
    desired: &Desired<'_>,
    pods: &[Arc<CachedPod>],
    related: impl FnOnce() -> Vec<Arc<CachedPod>>,
    scale: bool,
    now: Timestamp,
) -> Plan {
    let Claim { ours, adopt, release } = claim(&desired.claimant(), pods, pods::is_active);
    let active: Vec<Arc<CachedPod>> = ours.iter().filter(|p| pods::is_active(p)).chain(&adopt).cloned().collect();
    let terminating = ours.iter().filter(|p| p.metadata.deletion_timestamp.is_some() && !pods::is_terminal(p)).count();
    let mut plan = Plan { adopt, release, ..Plan::default() };
    (plan.counts, plan.recheck) = count(desired, &active, terminating, now);
    if scale && !desired.deleting {
        if active.len() < desired.replicas {
            plan.create = (desired.replicas - active.len()).min(BURST);
        } else {
            let surplus = (active.len() - desired.replicas).min(BURST);
            let related = if surplus > 0 { related() } else { Vec::new() };
            plan.delete = ranking::to_delete(&active, &related, surplus, now);
        }
    }
    plan
}

/// Upstream's `calculateStatus`.
fn count(
    desired: &Desired<'_>,
    active: &[Arc<CachedPod>],
    terminating: usize,
    now: Timestamp,
) -> (Counts, Option<Duration>) {
    let mut counts = Counts { replicas: clamp(active.len()), terminating: clamp(terminating), ..Counts::default() };
    let mut recheck: Option<Duration> = None;
    for pod in active {
        let labels = pod.metadata.labels.as_ref();
        let full = desired.template_labels.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v));
        counts.fully_labeled += i32::from(full);
        if let Some(wait) = pods::available_in(pod, desired.min_ready, now) {
            counts.ready += 1;
            if wait.is_zero() {
                counts.available += 1;
            } else {
                recheck = pods::earliest(recheck, Some(wait));
            }
        }
    }
    (counts, recheck)
}

fn clamp(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
