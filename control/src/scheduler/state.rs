//! What the scheduler knows: nodes with their pods, volumes, and the queue. Pure: the clock is a value.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, NodeSelector};
use tokio::time::Instant;
use windlass_kit::objects::node_selector;

use super::{
    filters,
    messages::{self, FilterFailure},
    model::{Constraints, NodeInfo, PodInfo},
    queue::{Demands, Key, SchedulingQueue},
    scores,
    volume_binding::{self, Stored, VolumeIndex},
};

/// The decision for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Bind it to this node, where it is assumed already.
    Bind { node: String },
    /// No node fits.
    Unschedulable { message: String },
}

#[derive(Debug, Default)]
pub(crate) struct State {
    nodes: BTreeMap<String, NodeInfo>,
    pods: HashMap<Key, PodInfo>,
    /// Assumed pods: bound by us, but not yet in the cache, by UID.
    assumed: HashMap<Key, String>,
    /// Bound and assumed pods by node.
    by_node: HashMap<String, HashSet<Key>>,
    pub(crate) queue: SchedulingQueue,
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
            self.queue.activate(key.clone(), pod.priority);
        }
        self.pods.insert(key, pod);
    }

    pub(crate) fn pod_deleted(&mut self, key: &Key, now: Instant) {
        self.assumed.remove(key);
        self.remove(key, now);
    }

    /// Removes a pod from queue and cache; pods that fit into the freed resources are retried.
    fn remove(&mut self, key: &Key, now: Instant) {
        self.queue.remove(key, now);
        let Some(pod) = self.pods.remove(key) else { return };
        self.leave_node(&pod, now);
    }

    /// Adds a pod to its node.
    fn add_pod(&mut self, pod: &PodInfo) {
        let Some(name) = &pod.node else { return };
        self.by_node.entry(name.clone()).or_default().insert(pod.key());
        if !pod.terminal
            && let Some(node) = self.nodes.get_mut(name)
        {
            node.add_pod(pod);
        }
    }

    /// Takes a pod from its node.
    fn leave_node(&mut self, pod: &PodInfo, now: Instant) {
        let Some(name) = &pod.node else { return };
        if let Some(keys) = self.by_node.get_mut(name) {
            keys.remove(&pod.key());
            if keys.is_empty() {
                self.by_node.remove(name);
            }
        }
        if !pod.terminal
            && let Some(node) = self.nodes.get_mut(name)
        {
            node.remove_pod(pod);
            self.queue.node_changed(node, now);
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
                self.queue.node_changed(known, now);
            }
            return;
        }
        let mut info = NodeInfo::of(node);
        for pod in self.by_node.get(&name).into_iter().flatten().filter_map(|key| self.pods.get(key)) {
            if !pod.terminal {
                info.add_pod(pod);
            }
        }
        self.queue.node_changed(&info, now);
        self.nodes.insert(name, info);
    }

    /// A claim or volume was added or has changed; the pods that use it are retried if that matters to them.
    pub(crate) fn storage_applied<K: Stored>(&mut self, object: &K, now: Instant) {
        if object.applied(&mut self.storage) {
            for claim in object.claims(&self.storage) {
                self.queue.claim_changed(&claim, now);
            }
        }
    }

    /// A claim or volume was deleted, which helps nobody.
    pub(crate) fn storage_deleted<K: Stored>(&mut self, object: &K) {
        object.deleted(&mut self.storage);
    }

    /// Begins a new full list of claims or volumes.
    pub(crate) fn storage_cleared<K: Stored>(&mut self) {
        K::clear(&mut self.storage);
    }

    pub(crate) fn node_deleted(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Moves due pods to the active queue; returns when the next one is due.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Instant> {
        self.queue.advance(now)
    }

    /// The next pod by priority, then by age in the queue, and its decision.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(PodInfo, Arc<Constraints>, Decision)> {
        loop {
            let (key, serial) = self.queue.pop()?;
            let pod = self.pods.get(&key).filter(|p| p.node.is_none()).cloned();
            let Some((pod, constraints)) = pod.and_then(|pod| pod.constraints.clone().map(|c| (pod, c))) else {
                self.queue.remove(&key, now);
                continue;
            };
            let volumes = match self.volumes_of(&pod, &constraints) {
                Ok(volumes) => volumes,
                Err(why) => {
                    let message = messages::pre_filter_error(self.nodes.len(), &why);
                    self.queue.failed(&pod, claims_of(&pod, &constraints), None, false, now);
                    return Some((pod, constraints, Decision::Unschedulable { message }));
                }
            };
            let mut possible: Vec<&NodeInfo> = Vec::new();
            let mut failures: Vec<FilterFailure> = Vec::new();
            for node in self.nodes.values() {
                match filters::filter_failure(&pod, &constraints, node) {
                    None if !volumes.iter().all(|p| node_selector::matches(p, &node.name, &node.labels)) => {
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
                    self.queue.bound(&key, now);
                    Decision::Bind { node }
                }
                None => {
                    let demands = Demands { pod: pod.clone(), constraints: Arc::clone(&constraints), volumes };
                    self.queue.failed(&pod, claims_of(&pod, &constraints), Some(demands), false, now);
                    Decision::Unschedulable { message: messages::fit_error(&failures) }
                }
            };
            return Some((pod, constraints, decision));
        }
    }

    /// The node affinities of a pod's volumes; the error is why it cannot be scheduled yet.
    fn volumes_of(&self, pod: &PodInfo, constraints: &Constraints) -> Result<Vec<NodeSelector>, String> {
        let required = self.storage.required_node_affinity(&pod.namespace, &constraints.claims)?;
        Ok(required.into_iter().cloned().collect())
    }

    fn assume(&mut self, key: &Key, node: &str) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        pod.node = Some(node.to_owned());
        self.assumed.insert(key.clone(), pod.uid.clone());
        self.by_node.entry(node.to_owned()).or_default().insert(key.clone());
        if let Some(node) = self.nodes.get_mut(node) {
            node.add_pod(pod);
        }
    }

    /// The binding failed: the pod is forgotten on its node and retried.
    pub(crate) fn bind_failed(&mut self, bound: &PodInfo, constraints: Arc<Constraints>, now: Instant) {
        let key = bound.key();
        if self.assumed.get(&key) != Some(&bound.uid) {
            return;
        }
        self.assumed.remove(&key);
        let Some(pod) = self.pods.get(&key).cloned() else { return };
        let demands = self.volumes_of(&pod, &constraints).ok().map(|volumes| {
            let pod = PodInfo { node: None, ..pod.clone() };
            Demands { pod, constraints: Arc::clone(&constraints), volumes }
        });
        self.queue.failed(&pod, claims_of(&pod, &constraints), demands, true, now);
        self.leave_node(&pod, now);
        self.pods.insert(key, PodInfo { node: None, constraints: Some(constraints), ..pod });
    }

    #[cfg(test)]
    pub(crate) fn fits_somewhere(&self, key: &Key) -> bool {
        let Some((pod, constraints)) = self.pods.get(key).and_then(|p| Some((p, p.constraints.as_ref()?))) else {
            return false;
        };
        self.nodes.values().any(|node| filters::filter_failure(pod, constraints, node).is_none())
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

/// The claims of a pod's volumes.
fn claims_of(pod: &PodInfo, constraints: &Constraints) -> Vec<Key> {
    constraints.claims.iter().map(|claim| (pod.namespace.clone(), claim.name.clone())).collect()
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
