//! The scheduling queue and the cache of nodes and pods. Pure: the clock is a value.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;
use windlass_kit::{backoff::delay_after, objects::node_selector};

use super::{
    filters,
    messages::{self, FilterFailure},
    model::{Constraints, NodeInfo, PodInfo},
    scores,
    volume_binding::{self, VolumeIndex},
};

/// Back-off of an unschedulable pod (upstream's constants).
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// An unschedulable pod is retried after this time even without an event (upstream's constant).
const UNSCHEDULABLE_FLUSH_INTERVAL: Duration = Duration::from_secs(300);

type Key = (String, String);

/// The decision for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Bind it to this node, where it is assumed already.
    Bind { node: String },
    /// No node fits.
    Unschedulable { message: String },
}

#[derive(Debug)]
struct Attempt {
    failures: u32,
    /// The end of the back-off.
    back: Instant,
    /// When it is retried without an event.
    flush: Instant,
    /// An event may have made it schedulable: it is retried after the back-off.
    triggered: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    nodes: BTreeMap<String, NodeInfo>,
    pods: HashMap<Key, PodInfo>,
    /// Assumed pods: bound by us, but not yet in the cache, by UID.
    assumed: HashMap<Key, String>,
    active: BTreeSet<(Reverse<i32>, u64, Key)>,
    /// The position of a pod in `active`.
    places: HashMap<Key, (Reverse<i32>, u64)>,
    waiting: HashMap<Key, Attempt>,
    serial: u64,
    storage: VolumeIndex,
}

impl State {
    /// Adds or updates a pod. `mine` says whether this scheduler is responsible for it.
    pub(crate) fn pod_applied(&mut self, mut pod: PodInfo, mine: bool, now: Instant) {
        let key = pod.key();
        if pod.node.is_none() && self.assumed.get(&key) == Some(&pod.uid) {
            // Our binding is in flight: the pod stays assumed on its node.
            pod.node = self.pods.get(&key).and_then(|p| p.node.clone());
        } else if pod.node.is_some() {
            self.assumed.remove(&key);
        }
        if pod.node.is_some() {
            pod.constraints = None;
        }
        let old = self.pods.get(&key);
        let same = old.is_some_and(|old| old.uid == pod.uid && old.node == pod.node && old.terminal == pod.terminal);
        if same && old.is_some_and(|old| has_same_constraints(old, &pod)) {
            // A change without effect on scheduling keeps position and back-off.
            self.pods.insert(key, pod);
            return;
        }
        self.remove(&key, now);
        if pod.node.is_some() {
            self.add_pod(&pod);
        } else if mine && !pod.terminal && !pod.deleting && !pod.gated {
            self.activate(key.clone(), pod.priority);
        }
        self.pods.insert(key, pod);
    }

    pub(crate) fn pod_deleted(&mut self, key: &Key, now: Instant) {
        self.assumed.remove(key);
        self.remove(key, now);
    }

    /// Removes a pod from queue and cache; freed resources make unschedulable pods retry.
    fn remove(&mut self, key: &Key, now: Instant) {
        self.waiting.remove(key);
        if let Some((priority, serial)) = self.places.remove(key) {
            self.active.remove(&(priority, serial, key.clone()));
        }
        let Some(pod) = self.pods.remove(key) else { return };
        if let Some(node) = &pod.node
            && !pod.terminal
        {
            if let Some(node) = self.nodes.get_mut(node) {
                node.remove_pod(&pod);
            }
            self.retry_unschedulable(now);
        }
    }

    fn add_pod(&mut self, pod: &PodInfo) {
        if !pod.terminal
            && let Some(node) = pod.node.as_ref().and_then(|name| self.nodes.get_mut(name))
        {
            node.add_pod(pod);
        }
    }

    pub(crate) fn node_applied(&mut self, node: &Node, now: Instant) {
        let name = node.metadata.name.clone().unwrap_or_default();
        if let Some(known) = self.nodes.get_mut(&name) {
            let before = (known.labels.clone(), known.taints.clone(), known.unschedulable, known.allocatable.clone());
            let max_pods = known.max_pods;
            known.update(node);
            let same = before.0 == known.labels
                && before.1 == known.taints
                && before.2 == known.unschedulable
                && before.3 == known.allocatable
                && max_pods == known.max_pods;
            if !same {
                self.retry_unschedulable(now);
            }
            return;
        }
        let mut info = NodeInfo::of(node);
        for pod in self.pods.values().filter(|p| !p.terminal && p.node.as_deref() == Some(&name)) {
            info.add_pod(pod);
        }
        self.nodes.insert(name, info);
        self.retry_unschedulable(now);
    }

    /// Applies `change` to claims and volumes; if it had an effect, unschedulable pods are retried.
    pub(crate) fn storage_changed(&mut self, now: Instant, change: impl FnOnce(&mut VolumeIndex) -> bool) {
        if change(&mut self.storage) {
            self.retry_unschedulable(now);
        }
    }

    pub(crate) fn node_deleted(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// An event may have made unschedulable pods schedulable.
    fn retry_unschedulable(&mut self, now: Instant) {
        self.waiting.values_mut().for_each(|attempt| attempt.triggered = true);
        self.advance(now);
    }

    /// Moves due pods to the active queue; returns when the next one is due.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Instant> {
        let due = |attempt: &Attempt| if attempt.triggered { attempt.back } else { attempt.flush };
        let ready: Vec<Key> =
            self.waiting.iter().filter(|(_, attempt)| due(attempt) <= now).map(|(key, _)| key.clone()).collect();
        for key in ready {
            // The entry stays: it has the number of failures.
            if let Some(attempt) = self.waiting.get_mut(&key) {
                attempt.flush = now + UNSCHEDULABLE_FLUSH_INTERVAL;
                attempt.triggered = false;
            }
            if let Some(priority) = self.pods.get(&key).map(|p| p.priority) {
                self.activate(key, priority);
            }
        }
        self.waiting.values().map(due).min()
    }

    fn activate(&mut self, key: Key, priority: i32) {
        if !self.places.contains_key(&key) {
            self.serial += 1;
            let place = (Reverse(priority), self.serial);
            self.places.insert(key.clone(), place);
            self.active.insert((place.0, place.1, key));
        }
    }

    /// The next pod by priority, then by age in the queue, and its decision.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(PodInfo, Arc<Constraints>, Decision)> {
        loop {
            let (_, serial, key) = self.active.pop_first()?;
            self.places.remove(&key);
            let Some(pod) = self.pods.get(&key).filter(|p| p.node.is_none()).cloned() else { continue };
            let Some(constraints) = pod.constraints.clone() else { continue };
            let places = match self.storage.required_node_affinity(&pod.namespace, &constraints.claims) {
                Ok(places) => places,
                Err(why) => {
                    let message = messages::pre_filter_error(self.nodes.len(), &why);
                    self.failed(&key, now);
                    return Some((pod, constraints, Decision::Unschedulable { message }));
                }
            };
            let mut possible: Vec<&NodeInfo> = Vec::new();
            let mut failures: Vec<FilterFailure> = Vec::new();
            for node in self.nodes.values() {
                match filters::filter_failure(&pod, &constraints, node) {
                    None if !places.iter().all(|p| node_selector::matches(p, &node.name, &node.labels)) => {
                        failures.push(FilterFailure {
                            reasons: vec![volume_binding::NODE_AFFINITY_CONFLICT.to_owned()],
                            preemptible: false,
                        });
                    }
                    None => possible.push(node),
                    Some(failure) => failures.push(failure),
                }
            }
            let tie = usize::try_from(serial).unwrap_or(0);
            let chosen = scores::best(&pod, &constraints, &possible, tie).map(|index| possible[index].name.clone());
            let decision = match chosen {
                Some(node) => {
                    self.assume(&key, &node);
                    Decision::Bind { node }
                }
                None => {
                    self.failed(&key, now);
                    Decision::Unschedulable { message: messages::fit_error(&failures) }
                }
            };
            return Some((pod, constraints, decision));
        }
    }

    fn assume(&mut self, key: &Key, node: &str) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        pod.node = Some(node.to_owned());
        self.assumed.insert(key.clone(), pod.uid.clone());
        if let Some(node) = self.nodes.get_mut(node) {
            node.add_pod(pod);
        }
    }

    fn failed(&mut self, key: &Key, now: Instant) {
        let failures = self.waiting.get(key).map_or(0, |a| a.failures);
        let back = now + delay_after(BACKOFF.0, BACKOFF.1, failures);
        let attempt = Attempt {
            failures: failures.saturating_add(1),
            back,
            flush: now + UNSCHEDULABLE_FLUSH_INTERVAL,
            triggered: false,
        };
        self.waiting.insert(key.clone(), attempt);
    }

    /// The binding failed: the pod is forgotten on its node and retried.
    pub(crate) fn bind_failed(&mut self, bound: &PodInfo, constraints: Arc<Constraints>, now: Instant) {
        let key = bound.key();
        if self.assumed.get(&key) != Some(&bound.uid) {
            return;
        }
        self.assumed.remove(&key);
        let Some(pod) = self.pods.get_mut(&key) else { return };
        if let Some(node) = pod.node.take().and_then(|name| self.nodes.get_mut(&name)) {
            node.remove_pod(pod);
        }
        pod.constraints = Some(constraints);
        self.failed(&key, now);
        if let Some(attempt) = self.waiting.get_mut(&key) {
            attempt.triggered = true;
        }
        self.retry_unschedulable(now);
    }

    /// Removes the pods that a full list does not have.
    pub(crate) fn retain_pods(&mut self, listed: &std::collections::HashSet<Key>, now: Instant) {
        let deleted: Vec<Key> = self.pods.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        deleted.iter().for_each(|key| self.pod_deleted(key, now));
    }

    pub(crate) fn retain_nodes(&mut self, listed: &std::collections::HashSet<String>) {
        self.nodes.retain(|name, _| listed.contains(name));
    }
}

/// Whether a change has no effect on scheduling.
fn has_same_constraints(old: &PodInfo, new: &PodInfo) -> bool {
    let demands = |pod: &PodInfo| {
        pod.constraints.as_ref().map(|w| (w.selector.clone(), w.required.clone(), w.tolerations.clone()))
    };
    old.requests == new.requests
        && old.gated == new.gated
        && old.deleting == new.deleting
        && old.priority == new.priority
        && old.ports == new.ports
        && (new.node.is_some() || demands(old) == demands(new))
}
