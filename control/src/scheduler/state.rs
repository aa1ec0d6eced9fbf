//! What the scheduler knows and which pod is next. Pure: the clock is a value.

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
    claims::{self, Storage},
    filters,
    messages::{self, Refusal},
    model::{NodeInfo, PodInfo, Wants},
    scores,
};

/// Back-off of a pod that found no node (upstream's constants).
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// A pod that found no node is tried again after this time even if nothing changed.
const FLUSH: Duration = Duration::from_secs(300);

type Key = (String, String);

/// What to do with the pod that was next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Bind it; the node's room is taken already.
    Bind { node: String },
    /// No node fits.
    Unschedulable { message: String },
}

#[derive(Debug)]
struct Attempt {
    failures: u32,
    /// Not to be tried before.
    back: Instant,
    /// Tried without any change then.
    flush: Instant,
    /// Something changed that may help: tried as soon as the back-off is over.
    woken: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    nodes: BTreeMap<String, NodeInfo>,
    pods: HashMap<Key, PodInfo>,
    /// Bound by us, but the API has not yet said so: by UID.
    assumed: HashMap<Key, String>,
    active: BTreeSet<(Reverse<i32>, u64, Key)>,
    /// Where in `active` a pod stands.
    places: HashMap<Key, (Reverse<i32>, u64)>,
    waiting: HashMap<Key, Attempt>,
    serial: u64,
    storage: Storage,
}

impl State {
    /// A pod was added or changed. `mine` says whether this scheduler places it.
    pub(crate) fn pod_applied(&mut self, mut pod: PodInfo, mine: bool, now: Instant) {
        let key = pod.key();
        if pod.node.is_none() && self.assumed.get(&key) == Some(&pod.uid) {
            // Our binding is on its way: keep the pod where it will be.
            pod.node = self.pods.get(&key).and_then(|p| p.node.clone());
        } else if pod.node.is_some() {
            self.assumed.remove(&key);
        }
        if pod.node.is_some() {
            pod.wants = None;
        }
        let old = self.pods.get(&key);
        let same = old.is_some_and(|old| old.uid == pod.uid && old.node == pod.node && old.terminal == pod.terminal);
        if same && old.is_some_and(|old| asks_the_same(old, &pod)) {
            // Only its status or labels: it keeps its place and its back-off.
            self.pods.insert(key, pod);
            return;
        }
        self.remove(&key, now);
        if pod.node.is_some() {
            self.occupy(&pod);
        } else if mine && !pod.terminal && !pod.deleting && !pod.gated {
            self.activate(key.clone(), pod.priority);
        }
        self.pods.insert(key, pod);
    }

    pub(crate) fn pod_deleted(&mut self, key: &Key, now: Instant) {
        self.assumed.remove(key);
        self.remove(key, now);
    }

    /// Takes a pod out of everything; room that it leaves wakes those who wait.
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
                node.vacate(&pod);
            }
            self.wake(now);
        }
    }

    fn occupy(&mut self, pod: &PodInfo) {
        if !pod.terminal
            && let Some(node) = pod.node.as_ref().and_then(|name| self.nodes.get_mut(name))
        {
            node.occupy(pod);
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
                self.wake(now);
            }
            return;
        }
        let mut info = NodeInfo::of(node);
        for pod in self.pods.values().filter(|p| !p.terminal && p.node.as_deref() == Some(&name)) {
            info.occupy(pod);
        }
        self.nodes.insert(name, info);
        self.wake(now);
    }

    /// Claims or volumes changed as `change` says; those who wait are tried again if it made a difference.
    pub(crate) fn storage_changed(&mut self, now: Instant, change: impl FnOnce(&mut Storage) -> bool) {
        if change(&mut self.storage) {
            self.wake(now);
        }
    }

    pub(crate) fn node_deleted(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Something changed that may let waiting pods run.
    fn wake(&mut self, now: Instant) {
        self.waiting.values_mut().for_each(|attempt| attempt.woken = true);
        self.advance(now);
    }

    /// Moves pods whose time has come; returns when the next one's comes.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Instant> {
        let due = |attempt: &Attempt| if attempt.woken { attempt.back } else { attempt.flush };
        let ready: Vec<Key> =
            self.waiting.iter().filter(|(_, attempt)| due(attempt) <= now).map(|(key, _)| key.clone()).collect();
        for key in ready {
            // The entry stays: it holds the number of failures.
            if let Some(attempt) = self.waiting.get_mut(&key) {
                attempt.flush = now + FLUSH;
                attempt.woken = false;
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

    /// The next pod by priority, then by age in the queue, and what to do with it.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(PodInfo, Arc<Wants>, Decision)> {
        loop {
            let (_, serial, key) = self.active.pop_first()?;
            self.places.remove(&key);
            let Some(pod) = self.pods.get(&key).filter(|p| p.node.is_none()).cloned() else { continue };
            let Some(wants) = pod.wants.clone() else { continue };
            let places = match self.storage.look(&pod.namespace, &wants.claims) {
                Ok(places) => places,
                Err(why) => {
                    let message = messages::nowhere(self.nodes.len(), &why);
                    self.failed(&key, now);
                    return Some((pod, wants, Decision::Unschedulable { message }));
                }
            };
            let mut possible: Vec<&NodeInfo> = Vec::new();
            let mut refusals: Vec<Refusal> = Vec::new();
            for node in self.nodes.values() {
                match filters::refusal(&pod, &wants, node) {
                    None if !places.iter().all(|p| node_selector::matches(p, &node.name, &node.labels)) => {
                        refusals.push(Refusal { reasons: vec![claims::ELSEWHERE.to_owned()], removable: false });
                    }
                    None => possible.push(node),
                    Some(refusal) => refusals.push(refusal),
                }
            }
            let tie = usize::try_from(serial).unwrap_or(0);
            let chosen = scores::best(&pod, &wants, &possible, tie).map(|index| possible[index].name.clone());
            let decision = match chosen {
                Some(node) => {
                    self.assume(&key, &node);
                    Decision::Bind { node }
                }
                None => {
                    self.failed(&key, now);
                    Decision::Unschedulable { message: messages::unschedulable(&refusals) }
                }
            };
            return Some((pod, wants, decision));
        }
    }

    fn assume(&mut self, key: &Key, node: &str) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        pod.node = Some(node.to_owned());
        self.assumed.insert(key.clone(), pod.uid.clone());
        if let Some(node) = self.nodes.get_mut(node) {
            node.occupy(pod);
        }
    }

    fn failed(&mut self, key: &Key, now: Instant) {
        let failures = self.waiting.get(key).map_or(0, |a| a.failures);
        let back = now + delay_after(BACKOFF.0, BACKOFF.1, failures);
        let attempt = Attempt { failures: failures.saturating_add(1), back, flush: now + FLUSH, woken: false };
        self.waiting.insert(key.clone(), attempt);
    }

    /// The API refused the binding: the room is free again and the pod waits.
    pub(crate) fn bind_failed(&mut self, bound: &PodInfo, wants: Arc<Wants>, now: Instant) {
        let key = bound.key();
        if self.assumed.get(&key) != Some(&bound.uid) {
            return;
        }
        self.assumed.remove(&key);
        let Some(pod) = self.pods.get_mut(&key) else { return };
        if let Some(node) = pod.node.take().and_then(|name| self.nodes.get_mut(&name)) {
            node.vacate(pod);
        }
        pod.wants = Some(wants);
        self.failed(&key, now);
        if let Some(attempt) = self.waiting.get_mut(&key) {
            attempt.woken = true;
        }
        self.wake(now);
    }

    /// Everything of one kind that a new full list no longer holds is gone.
    pub(crate) fn retain_pods(&mut self, listed: &std::collections::HashSet<Key>, now: Instant) {
        let gone: Vec<Key> = self.pods.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| self.pod_deleted(key, now));
    }

    pub(crate) fn retain_nodes(&mut self, listed: &std::collections::HashSet<String>) {
        self.nodes.retain(|name, _| listed.contains(name));
    }
}

/// Whether a change leaves all that scheduling looks at.
fn asks_the_same(old: &PodInfo, new: &PodInfo) -> bool {
    let demands =
        |pod: &PodInfo| pod.wants.as_ref().map(|w| (w.selector.clone(), w.required.clone(), w.tolerations.clone()));
    old.requests == new.requests
        && old.gated == new.gated
        && old.deleting == new.deleting
        && old.priority == new.priority
        && old.ports == new.ports
        && (new.node.is_some() || demands(old) == demands(new))
}
