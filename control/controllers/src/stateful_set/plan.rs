//! Plans the pods of a set from its current pods. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::ResourceExt;
use windlass_kit::objects::label_selector::Selector;

use super::{
    identity::{is_member, ordinal_of, revision_of},
    status::{Counts, count},
};
use crate::{
    pod_control::{Claim, Claimant, claim_members},
    pods,
    runtime::CachedPod,
};

/// Maximum number of pods that one run creates or deletes.
pub(super) const BURST: usize = 500;

/// How pods get a new template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Update {
    OnDelete,
    /// Pods from `partition` on, counted from the first; at most `max_unavailable` at a time.
    Rolling {
        partition: usize,
        max_unavailable: usize,
    },
}

/// The desired state of a set.
#[derive(Debug, Clone)]
pub(super) struct Desired<'a> {
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    pub(super) selector: Selector<'a>,
    pub(super) replicas: usize,
    /// The ordinal of the first pod.
    pub(super) start: i64,
    /// One pod at a time, in order; else all at once.
    pub(super) ordered: bool,
    pub(super) update: Update,
    pub(super) min_ready: Duration,
    /// Names of revisions.
    pub(super) current_revision: &'a str,
    pub(super) update_revision: &'a str,
}

impl Desired<'_> {
    fn index(&self, ordinal: i64) -> Option<usize> {
        usize::try_from(ordinal.checked_sub(self.start)?).ok().filter(|index| *index < self.replicas)
    }

    /// Whether the set has no place for a pod of this ordinal.
    pub(super) fn is_condemned(&self, ordinal: i64) -> bool {
        self.index(ordinal).is_none()
    }

    fn ordinal(&self, index: usize) -> i64 {
        self.start.saturating_add(i64::try_from(index).unwrap_or(i64::MAX))
    }

    /// Whether a new pod at this place is of the current revision, not of the one that is rolled out.
    fn is_kept_back(&self, index: usize) -> bool {
        matches!(self.update, Update::Rolling { partition, .. } if index < partition)
    }
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Failed,
    Succeeded,
    /// The set has no place for it any more.
    Condemned,
    /// It is of another revision.
    Outdated,
}

/// One change.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// A pod of the current revision, or of the one that is rolled out.
    Create {
        ordinal: i64,
        current: bool,
    },
    Delete(Arc<CachedPod>, Why),
}

/// The actions of one run.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Pods of the set's names without a controller, to adopt.
    pub(super) adopt: Vec<Arc<CachedPod>>,
    /// Owned pods whose labels or names are not the set's, to release.
    pub(super) release: Vec<Arc<CachedPod>>,
    /// The set's pods by ordinal.
    pub(super) pods: BTreeMap<i64, Arc<CachedPod>>,
    /// In this order; for an ordered set there is at most one, or several of one update.
    pub(super) steps: Vec<Step>,
    pub(super) counts: Counts,
    /// When a ready pod becomes available by time alone.
    pub(super) recheck: Option<Duration>,
}

/// `settled` is false while the cache does not show earlier writes: then nothing is created or deleted.
/// Upstream's `updateStatefulSet`.
pub(super) fn reconcile(desired: &Desired<'_>, pods: &[Arc<CachedPod>], settled: bool, now: Timestamp) -> Plan {
    let claimant = Claimant { uid: desired.uid, deleting: false, selector: desired.selector };
    let adoptable = |pod: &CachedPod| {
        pod.metadata.deletion_timestamp.is_none() && ordinal_of(desired.name, &pod.name_any()).is_some()
    };
    let belongs = |pod: &CachedPod| is_member(desired.name, &pod.name_any());
    let Claim { ours, adopt, release } = claim_members(&claimant, pods, belongs, adoptable);
    let members = ours.iter().chain(&adopt);
    let members: BTreeMap<i64, Arc<CachedPod>> =
        members.filter_map(|pod| Some((ordinal_of(desired.name, &pod.name_any())?, Arc::clone(pod)))).collect();
    let (counts, recheck) = count(desired, members.values(), now);
    let walk = Walk { desired, pods: &members, now, steps: Vec::new() };
    let steps = if settled { walk.steps() } else { Vec::new() };
    Plan { adopt, release, steps, counts, recheck, pods: members }
}

/// The state of one walk over the pods.
struct Walk<'a> {
    desired: &'a Desired<'a>,
    pods: &'a BTreeMap<i64, Arc<CachedPod>>,
    now: Timestamp,
    steps: Vec<Step>,
}

fn is_terminating(pod: &CachedPod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

impl Walk<'_> {
    /// Running, and ready for long enough.
    fn is_available(&self, pod: &CachedPod) -> bool {
        pods::phase(pod) == "Running"
            && pods::available_in(pod, self.desired.min_ready, self.now).is_some_and(|wait| wait.is_zero())
    }

    fn is_unavailable(&self, pod: &CachedPod) -> bool {
        is_terminating(pod) || !self.is_available(pod)
    }

    fn steps(mut self) -> Vec<Step> {
        if self.replicas() && self.condemned() {
            self.outdated();
        }
        self.steps
    }

    /// Creates what is missing and replaces what has ended, from the lowest ordinal. False when later pods have to wait.
    /// Upstream's `processReplica`.
    fn replicas(&mut self) -> bool {
        for index in 0..self.desired.replicas {
            if self.steps.len() >= BURST {
                return false;
            }
            let ordinal = self.desired.ordinal(index);
            let done = match self.pods.get(&ordinal) {
                None => {
                    self.steps.push(Step::Create { ordinal, current: self.desired.is_kept_back(index) });
                    false
                }
                Some(pod) if pods::is_terminal(pod) => {
                    if !is_terminating(pod) {
                        let why = if pods::phase(pod) == "Failed" { Why::Failed } else { Why::Succeeded };
                        self.steps.push(Step::Delete(Arc::clone(pod), why));
                    }
                    false
                }
                Some(pod) => !self.is_unavailable(pod),
            };
            if self.desired.ordered && !done {
                return false;
            }
        }
        true
    }

    /// Deletes what is too much, from the highest ordinal. False when the update has to wait.
    /// Upstream's `processCondemned`.
    fn condemned(&mut self) -> bool {
        let condemned: Vec<&Arc<CachedPod>> =
            self.pods.iter().filter(|(ordinal, _)| self.desired.is_condemned(**ordinal)).map(|(_, pod)| pod).collect();
        // In order all replicas are available here.
        let lowest = condemned.iter().find(|pod| self.is_unavailable(pod)).map(|pod| pod.name_any());
        for pod in condemned.iter().rev() {
            if self.steps.len() >= BURST {
                return false;
            }
            if self.desired.ordered {
                // One that has ended never becomes available.
                let may_recover = !self.is_available(pod) && !pods::is_terminal(pod);
                let waits = may_recover && lowest != Some(pod.name_any());
                if !is_terminating(pod) && !waits {
                    self.steps.push(Step::Delete(Arc::clone(pod), Why::Condemned));
                }
                return false;
            }
            if !is_terminating(pod) {
                self.steps.push(Step::Delete(Arc::clone(pod), Why::Condemned));
            }
        }
        true
    }

    /// Deletes pods of other revisions, from the highest ordinal down to the partition.
    fn outdated(&mut self) {
        let Update::Rolling { partition, max_unavailable } = self.desired.update else { return };
        let at = |index: usize| self.pods.get(&self.desired.ordinal(index));
        // With a limit of one, only pods above count: an old pod that never becomes ready must not block the others.
        let unavailable = if max_unavailable > 1 {
            (0..self.desired.replicas).filter(|index| at(*index).is_none_or(|pod| self.is_unavailable(pod))).count()
        } else {
            0
        };
        let (mut out, mut taken) = (0, 0);
        let mut outdated = Vec::new();
        for index in (partition..self.desired.replicas).rev() {
            if out >= max_unavailable || self.steps.len() + outdated.len() >= BURST {
                break;
            }
            let Some(pod) = at(index) else {
                out += 1;
                continue;
            };
            let ended = pods::is_terminal(pod) || is_terminating(pod);
            let available = !self.is_unavailable(pod);
            if revision_of(pod) == Some(self.desired.update_revision) || ended {
                out += usize::from(!available);
                continue;
            }
            if available && max_unavailable > 1 && unavailable + taken >= max_unavailable {
                break;
            }
            outdated.push(Step::Delete(Arc::clone(pod), Why::Outdated));
            (out, taken) = (out + 1, taken + usize::from(available));
        }
        self.steps.extend(outdated);
    }
}
