//! The scheduling queue: pods to schedule now, and pods that wait for a change that could help them. Pure: the clock is
//! a value.
//!
//! Pods with the same demands on a node form a group by their signature: if one fits nowhere, none of them does. A change
//! of a node is tried on one pod of each group, and one pod is retried; when it is bound, the next one is. So the work
//! for a change depends on how many kinds of pods wait, not on how many pods. Changes of other pods are only tried on
//! groups whose demands other pods decide: affinity and topology spread (upstream's QueueingHints).

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use windlass_kit::backoff::delay_after;

use super::{
    model::{Constraints, Key, PodInfo, WhenUnsatisfiable},
    volumes::PodClaims,
};

/// Back-off of an unschedulable pod (upstream's constants).
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// An unschedulable pod is retried after this time even without an event (upstream's constant).
pub(crate) const UNSCHEDULABLE_FLUSH_INTERVAL: Duration = Duration::from_secs(300);

/// When a pod that fits nowhere is tried again.
#[derive(Debug)]
pub(crate) struct Retries {
    /// After this time, whatever happens.
    pub(crate) flush: Duration,
    /// Whenever a change may have helped.
    pub(crate) on_changes: bool,
}

impl Default for Retries {
    fn default() -> Self {
        Self { flush: UNSCHEDULABLE_FLUSH_INTERVAL, on_changes: true }
    }
}

/// What decides whether a pod fits a node; all pods with the same text are interchangeable.
type Signature = Arc<str>;

/// A pod that was tried and is not bound.
#[derive(Debug)]
struct Attempt {
    failures: u32,
    priority: i32,
    /// The end of the back-off.
    back: Instant,
    /// When it is retried; `None` while it is active.
    due: Option<Instant>,
    /// `None` when no node was tried.
    signature: Option<Signature>,
    claims: Vec<Key>,
}

/// Waiting pods with the same signature.
#[derive(Debug)]
struct Group {
    demands: Demands,
    /// By the end of their back-off.
    waiting: BTreeSet<(Instant, Key)>,
    /// The one that is retried for all.
    retried: Option<Key>,
}

/// The demands of a pod on its node.
#[derive(Debug, Clone)]
pub(crate) struct Demands {
    pub(crate) pod: Arc<PodInfo>,
    pub(crate) constraints: Arc<Constraints>,
    pub(crate) claims: PodClaims,
    /// Its claims with ReadWriteOncePod.
    pub(crate) exclusive: Vec<Key>,
    /// The node that it is nominated to.
    pub(crate) nominated: Option<String>,
    /// Affinity terms of other pods reject it: its labels matter.
    pub(crate) unwanted: bool,
}

impl Group {
    /// Pods are waiting, and none is being retried.
    fn is_to_be_tried(&self) -> bool {
        self.retried.is_none() && !self.waiting.is_empty()
    }
}

impl Demands {
    fn signature(&self) -> Signature {
        let Self { pod, constraints, claims, exclusive, nominated, .. } = self;
        let Constraints { selector, required, tolerations, spread, features, claims_devices, preempts, .. } =
            &**constraints;
        let own = (pod.priority, preempts, &pod.requests, &pod.ports, &pod.disks, selector, required, tolerations);
        let among = self.depends_on_pods().then(|| {
            let spread: Vec<String> = spread.iter().map(|constraint| constraint.text()).collect();
            (&pod.namespace, &pod.labels, pod.affinity.as_ref().map(|affinity| affinity.required_text()), spread)
        });
        format!("{:?}", (own, features, claims_devices, claims, exclusive, nominated, among)).into()
    }

    /// Whether pods of other nodes decide where it fits.
    fn depends_on_pods(&self) -> bool {
        let affinity = self.pod.affinity.as_ref();
        self.unwanted
            || affinity.is_some_and(|affinity| !(affinity.required.is_empty() && affinity.required_anti.is_empty()))
            || self.constraints.spread.iter().any(|c| c.when == WhenUnsatisfiable::DoNotSchedule)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SchedulingQueue {
    active: BTreeSet<(Reverse<i32>, u64, Key)>,
    /// The position of a pod in `active`.
    places: HashMap<Key, (Reverse<i32>, u64)>,
    attempts: HashMap<Key, Attempt>,
    due: BTreeSet<(Instant, Key)>,
    /// Those of `due` that a change may have helped, and that wait for the end of their back-off alone.
    woken: BTreeSet<(Reverse<i32>, Instant, Key)>,
    /// Those of `due` whose binding failed.
    erred: HashSet<Key>,
    /// Pods with scheduling gates, which are not tried.
    gated: HashSet<Key>,
    /// When pods were tried first, and how often.
    tried: HashMap<Key, (Instant, u32)>,
    groups: HashMap<Signature, Group>,
    /// The groups for which other pods matter.
    dependent: HashSet<Signature>,
    /// Tried pods by their claims, and by the classes of unbound ones, without a namespace.
    by_claim: HashMap<Key, BTreeSet<Key>>,
    retries: Retries,
    serial: u64,
    /// Groups and pods that events were tried on.
    #[cfg(test)]
    pub(crate) examined: usize,
}

impl SchedulingQueue {
    /// A queue with this retry configuration.
    pub(crate) fn new(retries: Retries) -> Self {
        Self { retries, ..Self::default() }
    }

    /// Adds a pod to be scheduled now.
    pub(crate) fn activate(&mut self, key: Key, priority: i32) {
        if !self.places.contains_key(&key) {
            self.serial += 1;
            let place = (Reverse(priority), self.serial);
            self.places.insert(key.clone(), place);
            self.active.insert((place.0, place.1, key));
        }
    }

    /// A pod has scheduling gates.
    pub(crate) fn gate(&mut self, key: Key) {
        self.gated.insert(key);
    }

    /// Takes the next pod by priority, then by age in the queue, with a number that differs from pod to pod. When there
    /// is none, one that a change may have helped does not wait for the end of its back-off (upstream's
    /// `SchedulerPopFromBackoffQ`). One of [`bound`](Self::bound), [`failed`](Self::failed) and
    /// [`remove`](Self::remove) follows.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Key, u64)> {
        if self.active.is_empty()
            && let Some((_, back, key)) = self.woken.first().cloned()
        {
            self.due.remove(&(back, key.clone()));
            self.make_active(&key);
        }
        let (_, serial, key) = self.active.pop_first()?;
        self.places.remove(&key);
        self.tried.entry(key.clone()).or_insert((now, 0)).1 += 1;
        Some((key, serial))
    }

    /// When a pod was tried first, and how often; `None` if it was not.
    pub(crate) fn tried(&self, key: &Key) -> Option<(Instant, u32)> {
        self.tried.get(key).copied()
    }

    /// How many pods are to be tried now, wait for the end of their back-off, wait for a change, and have gates.
    pub(crate) fn pending(&self) -> [usize; 4] {
        let backoff = self.woken.len() + self.erred.len();
        [self.active.len(), backoff, self.due.len().saturating_sub(backoff), self.gated.len()]
    }

    /// Moves due pods to the active ones; returns when the next one is due.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Instant> {
        while let Some((at, _)) = self.due.first() {
            if *at > now {
                return Some(*at);
            }
            let Some((_, key)) = self.due.pop_first() else { break };
            self.make_active(&key);
        }
        None
    }

    /// A pod that is no longer among the due ones is to be tried now.
    fn make_active(&mut self, key: &Key) {
        let Some(attempt) = self.attempts.get_mut(key) else { return };
        attempt.due = None;
        let (priority, back) = (attempt.priority, attempt.back);
        self.woken.remove(&(Reverse(priority), back, key.clone()));
        self.erred.remove(key);
        self.leave_group(key, false);
        self.activate(key.clone(), priority);
    }

    /// The pod fits no node, or, with `retry`, its binding failed. `demands` are `None` when no node was tried.
    pub(crate) fn failed(
        &mut self,
        pod: &PodInfo,
        claims: Vec<Key>,
        demands: Option<Demands>,
        retry: bool,
        now: Instant,
    ) {
        let key = pod.key();
        let failures = self.attempts.get(&key).map_or(0, |attempt| attempt.failures);
        let before = self.attempts.get(&key).and_then(|attempt| attempt.signature.clone());
        let was_retried = before.as_ref().filter(|before| self.is_retried(&key, before)).cloned();
        // As a member of its group it is one among others again.
        self.forget(&key);
        let back = now + delay_after(BACKOFF.0, BACKOFF.1, failures);
        let due = if retry { back } else { now + self.retries.flush };
        let signature = demands.map(|demands| self.join_group(&key, demands, back));
        for claim in &claims {
            self.by_claim.entry(claim.clone()).or_default().insert(key.clone());
        }
        self.due.insert((due, key.clone()));
        if retry {
            self.erred.insert(key.clone());
        }
        // Its failure says nothing of a group that it has left.
        let left = was_retried.filter(|before| Some(before) != signature.as_ref());
        let failures = failures.saturating_add(1);
        let attempt = Attempt { failures, priority: pod.priority, back, due: Some(due), signature, claims };
        self.attempts.insert(key, attempt);
        if let Some(left) = left {
            self.retry_one(&left);
            self.advance(now);
        }
    }

    fn is_retried(&self, key: &Key, signature: &Signature) -> bool {
        self.groups.get(signature).is_some_and(|group| group.retried.as_ref() == Some(key))
    }

    fn join_group(&mut self, key: &Key, demands: Demands, back: Instant) -> Signature {
        let signature = demands.signature();
        let known = self.groups.get_key_value(&signature).map(|(known, _)| Arc::clone(known));
        let signature = known.unwrap_or(signature);
        if demands.depends_on_pods() {
            self.dependent.insert(Arc::clone(&signature));
        }
        let new = || Group { demands, waiting: BTreeSet::new(), retried: None };
        self.groups.entry(Arc::clone(&signature)).or_insert_with(new).waiting.insert((back, key.clone()));
        signature
    }

    /// The pod has a node now. Another one of its group is tried; the number of failures is kept.
    pub(crate) fn bound(&mut self, key: &Key, now: Instant) {
        let Some(attempt) = self.attempts.get(key) else { return };
        if let Some(signature) = attempt.signature.clone() {
            self.release(key, &signature);
            self.retry_one(&signature);
            self.advance(now);
        }
    }

    /// Removes a pod; what it was retried for is tried with another one of its group.
    pub(crate) fn remove(&mut self, key: &Key, now: Instant) {
        if let Some((priority, serial)) = self.places.remove(key) {
            self.active.remove(&(priority, serial, key.clone()));
        }
        self.gated.remove(key);
        self.tried.remove(key);
        let signature = self.attempts.get(key).and_then(|attempt| attempt.signature.clone());
        let was_retried = signature.filter(|signature| self.is_retried(key, signature));
        self.forget(key);
        if let Some(signature) = was_retried {
            self.retry_one(&signature);
            self.advance(now);
        }
    }

    /// A node is new, has changed, or has room: of each group that `fits` it, one pod is retried after its back-off.
    pub(crate) fn node_changed(&mut self, fits: &dyn Fn(&Demands) -> bool, now: Instant) {
        let groups = self.groups.iter();
        let waiting = groups.filter(|(_, group)| group.is_to_be_tried()).map(|(signature, _)| Arc::clone(signature));
        let waiting: Vec<Signature> = waiting.collect();
        self.retry_groups(waiting, fits, now);
    }

    /// A pod has come to a node, gone from it, or has other labels: of each group that it `concerns`, one pod is retried
    /// after its back-off.
    pub(crate) fn pod_changed(&mut self, concerns: &dyn Fn(&Demands) -> bool, now: Instant) {
        let groups: Vec<Signature> = self.dependent.iter().cloned().collect();
        self.retry_groups(groups, concerns, now);
    }

    fn retry_groups(&mut self, groups: Vec<Signature>, helps: &dyn Fn(&Demands) -> bool, now: Instant) {
        if !self.retries.on_changes {
            return;
        }
        for signature in groups {
            #[cfg(test)]
            {
                self.examined += 1;
            }
            if self.groups.get(&signature).is_some_and(|group| group.is_to_be_tried() && helps(&group.demands)) {
                self.retry_one(&signature);
            }
        }
        self.advance(now);
    }

    /// The pod is retried after its back-off.
    pub(crate) fn retry(&mut self, key: &Key, now: Instant) {
        self.wake(key);
        self.advance(now);
    }

    /// A claim, or its volume, has changed: the pods that use it are retried after their back-off.
    pub(crate) fn claim_changed(&mut self, claim: &Key, now: Instant) {
        if !self.retries.on_changes {
            return;
        }
        let pods: Vec<Key> = self.by_claim.get(claim).into_iter().flatten().cloned().collect();
        for key in pods {
            #[cfg(test)]
            {
                self.examined += 1;
            }
            self.wake(&key);
        }
        self.advance(now);
    }

    /// Retries the pod of a group whose back-off ends first, unless one is retried already.
    fn retry_one(&mut self, signature: &Signature) {
        let Some(group) = self.groups.get_mut(signature).filter(|group| group.retried.is_none()) else { return };
        let Some((_, key)) = group.waiting.first().cloned() else { return };
        group.retried = Some(key.clone());
        self.wake(&key);
    }

    /// A waiting pod is due at the end of its back-off.
    fn wake(&mut self, key: &Key) {
        let Some(attempt) = self.attempts.get_mut(key) else { return };
        if let Some(due) = attempt.due.filter(|due| *due > attempt.back) {
            self.due.remove(&(due, key.clone()));
            self.due.insert((attempt.back, key.clone()));
            attempt.due = Some(attempt.back);
            self.woken.insert((Reverse(attempt.priority), attempt.back, key.clone()));
        }
    }

    /// Forgets all about a pod that was tried.
    fn forget(&mut self, key: &Key) {
        self.leave_group(key, true);
        let Some(attempt) = self.attempts.remove(key) else { return };
        if let Some(due) = attempt.due {
            self.due.remove(&(due, key.clone()));
        }
        self.woken.remove(&(Reverse(attempt.priority), attempt.back, key.clone()));
        self.erred.remove(key);
        for claim in &attempt.claims {
            if let Some(pods) = self.by_claim.get_mut(claim) {
                pods.remove(key);
                if pods.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
    }

    /// Takes a pod out of its group's waiting ones; `fully`, also if it is retried for all.
    fn leave_group(&mut self, key: &Key, fully: bool) {
        let Some(attempt) = self.attempts.get(key) else { return };
        let Some(signature) = attempt.signature.clone() else { return };
        let waiting = (attempt.back, key.clone());
        if let Some(group) = self.groups.get_mut(&signature) {
            group.waiting.remove(&waiting);
        }
        if fully {
            self.release(key, &signature);
        }
    }

    /// The pod is no longer retried for its group; an empty group is removed.
    fn release(&mut self, key: &Key, signature: &Signature) {
        let Some(group) = self.groups.get_mut(signature) else { return };
        if group.retried.as_ref() == Some(key) {
            group.retried = None;
        }
        if group.waiting.is_empty() && group.retried.is_none() {
            self.groups.remove(signature);
            self.dependent.remove(signature);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
            && self.places.is_empty()
            && self.attempts.is_empty()
            && self.due.is_empty()
            && self.woken.is_empty()
            && self.erred.is_empty()
            && self.gated.is_empty()
            && self.tried.is_empty()
            && self.groups.is_empty()
            && self.dependent.is_empty()
            && self.by_claim.is_empty()
    }
}
