//! Plans the pods of a set from its nodes and its current pods. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use windlass_kit::objects::label_selector::Selector;

use super::{
    backoff::FailedPods,
    placement::{Fit, HASH_LABEL},
    status::{Counts, count},
};
use crate::{
    pod_control::{Claim, Claimant, claim},
    pods,
    runtime::CachedPod,
};

/// Maximum number of pods that one run creates, and that it deletes.
pub(super) const BURST: usize = 250;

/// The desired state of a set.
#[derive(Debug, Clone)]
pub(super) struct Desired<'a> {
    pub(super) uid: &'a str,
    pub(super) selector: Selector<'a>,
    /// The hash of the template's revision.
    pub(super) hash: &'a str,
    pub(super) update: Update,
    pub(super) min_ready: Duration,
}

/// How pods get a new template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Update {
    OnDelete,
    /// As numbers of nodes.
    Rolling {
        max_unavailable: usize,
        max_surge: usize,
    },
}

/// A failed or succeeded pod that is deleted, for its event.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pod: Arc<CachedPod>,
    pub(super) node: String,
    pub(super) failed: bool,
}

/// The actions of one run.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Matching pods without a controller, to adopt.
    pub(super) adopt: Vec<Arc<CachedPod>>,
    /// Owned pods whose labels no longer match, to release.
    pub(super) release: Vec<Arc<CachedPod>>,
    /// Nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<CachedPod>>,
    /// Those of them that have ended.
    pub(super) ended: Vec<Ended>,
    pub(super) counts: Counts,
    /// The hashes of the pods' revisions.
    pub(super) live: BTreeSet<String>,
    /// When time alone changes something.
    pub(super) recheck: Option<Duration>,
}

type Pods = Vec<Arc<CachedPod>>;

/// The node that a pod is on, or will be on.
pub(super) fn node_of(pod: &CachedPod) -> Option<&str> {
    pods::node_name(pod).or_else(|| pod.spec.as_ref()?.target_node.as_deref())
}

pub(super) fn is_updated(pod: &CachedPod, hash: &str) -> bool {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(HASH_LABEL)).is_some_and(|label| label == hash)
}

/// `settled` is false while the cache does not show earlier writes: then nothing is created or deleted.
/// Upstream's `updateDaemonSet`.
pub(super) fn reconcile(
    desired: &Desired<'_>,
    nodes: &BTreeMap<String, Fit>,
    pods: &[Arc<CachedPod>],
    failed: &FailedPods,
    settled: bool,
    now: Timestamp,
) -> Plan {
    let claimant = Claimant { uid: desired.uid, deleting: false, selector: desired.selector };
    let Claim { ours, adopt, release } = claim(&claimant, pods, |pod| pod.metadata.deletion_timestamp.is_none());
    let mut by_node: BTreeMap<&str, Pods> = BTreeMap::new();
    let mut plan = Plan::default();
    for pod in ours.iter().chain(&adopt) {
        plan.live.extend(pod.metadata.labels.iter().flatten().find(|(k, _)| *k == HASH_LABEL).map(|(_, v)| v.clone()));
        // A new pod need not wait for the end of one that runs no more.
        let is_gone = pods::is_terminal(pod) && pod.metadata.deletion_timestamp.is_some();
        if let (Some(node), false) = (node_of(pod), is_gone) {
            by_node.entry(node).or_default().push(Arc::clone(pod));
        }
    }
    by_node.values_mut().for_each(|pods| pods.sort_by(|one, other| order(one).cmp(&order(other))));
    (plan.counts, plan.recheck) = count(desired, nodes, &by_node, now);
    if settled {
        let run = Run { desired, nodes, by_node: &by_node, now };
        run.manage(failed, &mut plan);
        if plan.create.is_empty() && plan.delete.is_empty() {
            run.update(&mut plan);
        }
        plan.create.truncate(BURST);
        plan.delete.truncate(BURST);
        plan.ended.retain(|ended| plan.delete.iter().any(|pod| Arc::ptr_eq(pod, &ended.pod)));
    }
    Plan { adopt, release, ..plan }
}

/// Bound pods first, then by age and name.
fn order(pod: &CachedPod) -> (bool, Option<Timestamp>, Option<&str>) {
    let meta = &pod.metadata;
    (pods::node_name(pod).is_none(), meta.creation_timestamp.as_ref().map(|time| time.0), meta.name.as_deref())
}

/// One run over the nodes.
struct Run<'a> {
    desired: &'a Desired<'a>,
    nodes: &'a BTreeMap<String, Fit>,
    by_node: &'a BTreeMap<&'a str, Pods>,
    now: Timestamp,
}

impl Run<'_> {
    fn is_available(&self, pod: &CachedPod) -> bool {
        pods::available_in(pod, self.desired.min_ready, self.now).is_some_and(|wait| wait.is_zero())
    }

    fn surges(&self) -> bool {
        matches!(self.desired.update, Update::Rolling { max_surge: 1.., .. })
    }

    /// One pod on each node that should have one; none that has ended, and none elsewhere. Upstream's `manage`.
    fn manage(&self, failed: &FailedPods, plan: &mut Plan) {
        for (node, fit) in self.nodes {
            match self.by_node.get(node.as_str()) {
                None if fit.run => plan.create.push(node.clone()),
                None => {}
                Some(pods) if fit.stay => self.keep_one((node, *fit), pods, failed, plan),
                Some(pods) => plan.delete.extend(pods.iter().filter(|pod| is_there(pod)).cloned()),
            }
        }
        // Their node was removed before they were bound, so that no other controller collects them.
        let lost = self.by_node.iter().filter(|(node, _)| !self.nodes.contains_key(**node));
        let lost = lost.flat_map(|(_, pods)| pods).filter(|pod| pods::node_name(pod).is_none() && is_there(pod));
        plan.delete.extend(lost.cloned());
    }

    /// Upstream's `podsShouldBeOnNode`.
    fn keep_one(&self, (node, fit): (&str, Fit), pods: &[Arc<CachedPod>], failed: &FailedPods, plan: &mut Plan) {
        let mut running: Vec<&Arc<CachedPod>> = Vec::new();
        for pod in pods.iter().filter(|pod| is_there(pod)) {
            if !pods::is_terminal(pod) {
                running.push(pod);
                continue;
            }
            let has_failed = pods::phase(pod) == "Failed";
            if has_failed && let Some(wait) = failed.wait(node, self.now) {
                plan.recheck = pods::earliest(plan.recheck, Some(wait));
                continue;
            }
            plan.delete.push(Arc::clone(pod));
            plan.ended.push(Ended { pod: Arc::clone(pod), node: node.to_owned(), failed: has_failed });
        }
        if !self.surges() {
            plan.delete.extend(running.into_iter().skip(1).cloned());
            return;
        }
        if running.len() < 2 {
            // With a surge, none waits for the end of the one before it.
            if fit.run && !pods.iter().any(is_there) {
                plan.create.push(node.to_owned());
            }
            return;
        }
        // The oldest one of each kind.
        let (mut new, mut old) = (None, None);
        for pod in running {
            let slot = if is_updated(pod, self.desired.hash) { &mut new } else { &mut old };
            match slot {
                None => *slot = Some(pod),
                Some(_) => plan.delete.push(Arc::clone(pod)),
            }
        }
        if let (Some(new), Some(old)) = (new, old)
            && (!pods::is_ready(old) || self.is_available(new))
        {
            plan.delete.push(Arc::clone(old));
        }
    }

    /// Replaces old pods, as many as may be unavailable or too many at a time.
    fn update(&self, plan: &mut Plan) {
        match self.desired.update {
            Update::OnDelete => {}
            Update::Rolling { max_surge: 1.., max_unavailable: _ } => self.update_beside(plan),
            Update::Rolling { max_unavailable, .. } => self.update_in_place(max_unavailable, plan),
        }
    }

    /// The pods of each node that should have one: the new one and the old one; `None` if it is not to be judged.
    fn versions(&self) -> impl Iterator<Item = (&String, Option<Versions<'_>>)> {
        let should = self.nodes.iter().filter(|(_, fit)| fit.stay);
        should.filter_map(|(node, fit)| {
            let pods = self.by_node.get(node.as_str());
            if pods.is_none() && !fit.run {
                return None;
            }
            Some((node, Versions::of(pods.map(Vec::as_slice).unwrap_or_default(), self.desired.hash)))
        })
    }

    /// Upstream's `rollingUpdate`.
    fn update_in_place(&self, max_unavailable: usize, plan: &mut Plan) {
        let (mut unavailable, mut replaceable, mut candidates) = (0, Vec::new(), Vec::new());
        for (_, versions) in self.versions() {
            match versions {
                Some(Versions { new: Some(new), old: None }) => unavailable += usize::from(!self.is_available(new)),
                // What is not available cannot become less so.
                Some(Versions { new: None, old: Some(old) }) if !self.is_available(old) => {
                    unavailable += 1;
                    replaceable.push(Arc::clone(old));
                }
                Some(Versions { new: None, old: Some(old) }) => candidates.push(Arc::clone(old)),
                // What is missing or too much is the business of `manage`.
                _ => unavailable += 1,
            }
        }
        candidates.truncate(max_unavailable.saturating_sub(unavailable));
        plan.delete.extend(replaceable.into_iter().chain(candidates));
    }

    fn update_beside(&self, plan: &mut Plan) {
        let Update::Rolling { max_surge, .. } = self.desired.update else { return };
        let (mut surging, mut available) = (0, 0);
        let (mut allowed, mut candidates, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for (node, versions) in self.versions() {
            let first = versions.and_then(|versions| versions.old.or(versions.new));
            available += usize::from(first.is_some_and(|pod| self.is_available(pod)));
            match versions {
                None => surging += 1,
                Some(Versions { old: None, .. }) => {}
                Some(Versions { new: None, old: Some(old) }) => {
                    let runs = self.nodes.get(node).is_some_and(|fit| fit.run);
                    match (self.is_available(old), runs) {
                        (false, true) => allowed.push(node.clone()),
                        (true, true) => candidates.push(node.clone()),
                        // A node that may keep its pod, but gets no other.
                        (false, false) => plan.delete.push(Arc::clone(old)),
                        (true, false) => leaving.push(Arc::clone(old)),
                    }
                }
                Some(Versions { new: Some(new), old: Some(old) }) => {
                    if self.is_available(new) {
                        plan.delete.push(Arc::clone(old));
                    } else {
                        surging += 1;
                    }
                }
            }
        }
        // They go as the pods of other nodes take over.
        let wanted = self.nodes.values().filter(|fit| fit.run).count();
        leaving.truncate(available.saturating_sub(wanted));
        plan.delete.extend(leaving);
        candidates.truncate(max_surge.saturating_sub(surging));
        plan.create.extend(allowed.into_iter().chain(candidates));
    }
}

fn is_there(pod: &Arc<CachedPod>) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

/// A node's pods that are not terminating.
#[derive(Debug, Clone, Copy)]
struct Versions<'a> {
    new: Option<&'a Arc<CachedPod>>,
    old: Option<&'a Arc<CachedPod>>,
}

impl<'a> Versions<'a> {
    /// `None` when there are several of one kind.
    fn of(pods: &'a [Arc<CachedPod>], hash: &str) -> Option<Self> {
        let mut versions = Self { new: None, old: None };
        for pod in pods.iter().filter(|pod| is_there(pod)) {
            let slot = if is_updated(pod, hash) { &mut versions.new } else { &mut versions.old };
            if slot.replace(pod).is_some() {
                return None;
            }
        }
        Some(versions)
    }
}
