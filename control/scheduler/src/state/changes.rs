//! How changes of objects reach the cluster, and which waiting pods they help (upstream's event handlers and
//! QueueingHints). Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::LabelSelector};
use tokio::time::Instant;
use windlass_kit::objects::node_selector;

use super::State;
use crate::{
    cache::{Budget, Cluster},
    filters,
    model::{Key, NodeInfo, PodInfo, WhenUnsatisfiable},
    queue::Demands,
    volumes::Stored,
};

impl State {
    /// Adds or updates a pod. `mine` says whether this scheduler is responsible for it.
    pub(crate) fn pod_applied(&mut self, mut pod: PodInfo, mine: bool, now: Instant) {
        let key = pod.key();
        if self.cluster.pods.get(&key).is_some_and(|old| old.uid != pod.uid) {
            self.pod_deleted(&key, now);
        }
        let old = self.cluster.pods.get(&key).cloned();
        if pod.node.is_some() {
            self.assumed.remove(&key);
            self.forget_volumes(&key);
        } else if self.assumed.contains_key(&key) {
            // Our binding is in flight: the pod stays assumed on its node.
            pod.node = old.as_ref().and_then(|old| old.node.clone());
        }
        if pod.node.is_some() {
            pod.constraints = None;
        }
        self.follow_nomination(old.as_deref(), &pod, mine, now);
        let pod = Arc::new(pod);
        match old {
            Some(old) if old.node == pod.node && old.terminal == pod.terminal => match &pod.node {
                Some(node) => self.bound_pod_changed(&old, &pod, &node.clone(), now),
                None if demands_the_same(&old, &pod) => drop(self.cluster.pods.insert(key, pod)),
                None => self.pod_moved(&pod, mine, now),
            },
            _ => self.pod_moved(&pod, mine, now),
        }
    }

    /// What the API says of a waiting pod's nomination counts, but a nomination that it does not know yet is kept.
    fn follow_nomination(&mut self, old: Option<&PodInfo>, pod: &PodInfo, mine: bool, now: Instant) {
        let key = pod.key();
        let was = old.and_then(|old| old.nominated.as_deref());
        match pod.nominated.as_deref() {
            _ if pod.node.is_some() || pod.terminal || !mine => self.nominate(&key, None, pod.node.as_deref(), now),
            Some(node) => self.nominate(&key, Some(node), None, now),
            None if was.is_some() => self.nominate(&key, None, None, now),
            None => {}
        }
    }

    /// Nominates a pod to a node, or to none; a node that is free of it now, unless it is `taken` by it, is tried with
    /// other pods.
    pub(super) fn nominate(&mut self, key: &Key, node: Option<&str>, taken: Option<&str>, now: Instant) {
        if let Some(freed) = self.cluster.nominate(key, node)
            && taken != Some(freed.as_str())
        {
            self.node_has_room(&freed, now);
        }
    }

    /// A pod is new, or has got or lost its node or its demands.
    fn pod_moved(&mut self, pod: &Arc<PodInfo>, mine: bool, now: Instant) {
        let key = pod.key();
        self.remove(&key, now);
        if self.cluster.add_pod(Arc::clone(pod)) {
            self.pod_concerns(pod, now);
        } else if pod.node.is_none() && mine && !pod.terminal && !pod.deleting && !pod.gated {
            self.queue.activate(key.clone(), pod.priority);
        } else if pod.node.is_none() && mine && !pod.terminal && !pod.deleting {
            self.queue.gate(key.clone());
        }
        // It may demand less of the node that it is nominated to.
        if let Some(node) = self.cluster.nominator.node(&key).map(str::to_owned) {
            self.node_has_room(&node, now);
        }
    }

    /// A pod has changed that stays on its node.
    fn bound_pod_changed(&mut self, old: &Arc<PodInfo>, pod: &Arc<PodInfo>, node: &str, now: Instant) {
        if pod.terminal || occupies_the_same(old, pod) {
            self.cluster.pods.insert(pod.key(), Arc::clone(pod));
            return;
        }
        self.cluster.remove_pod(&pod.key());
        self.cluster.add_pod(Arc::clone(pod));
        if old.requests != pod.requests || old.ports != pod.ports {
            self.node_has_room(node, now);
        }
        self.pod_concerns(old, now);
        self.pod_concerns(pod, now);
    }

    pub(crate) fn pod_deleted(&mut self, key: &Key, now: Instant) {
        self.assumed.remove(key);
        self.preempting.remove(key);
        self.forget_volumes(key);
        self.ready.retain(|(pod, _, _)| pod.key() != *key);
        self.remove(key, now);
        self.nominate(key, None, None, now);
    }

    /// Removes a pod from queue and cluster; pods that fit into the freed resources are retried.
    pub(super) fn remove(&mut self, key: &Key, now: Instant) {
        self.queue.remove(key, now);
        if let Some(pod) = self.cluster.remove_pod(key) {
            self.pod_left(&pod, now);
        }
    }

    /// A pod was removed: pods that can have what it had are retried.
    pub(super) fn pod_left(&mut self, pod: &PodInfo, now: Instant) {
        let Some(node) = pod.node.as_deref().filter(|_| !pod.terminal) else { return };
        self.node_has_room(node, now);
        self.pod_concerns(pod, now);
        for claim in pod.claim_keys().filter(|claim| self.cluster.storage.is_of_one_pod(claim)) {
            self.queue.claim_changed(&claim, now);
        }
    }

    /// A node is new or has changed, or has room: pods that fit it are retried.
    fn node_has_room(&mut self, name: &str, now: Instant) {
        let Some(node) = self.cluster.nodes.get(name) else { return };
        let cluster = &self.cluster;
        self.queue.node_changed(&|demands| could_fit(cluster, demands, node), now);
    }

    /// A pod has come to a node, gone from it or changed there: pods that it matters to are retried.
    pub(super) fn pod_concerns(&mut self, pod: &PodInfo, now: Instant) {
        let cluster = &self.cluster;
        self.queue.pod_changed(&|demands| concerns(cluster, demands, pod), now);
    }

    pub(crate) fn node_applied(&mut self, node: &Node, now: Instant) {
        let node = NodeInfo::of(node);
        let name = node.name.clone();
        let labels = node.labels.clone();
        let old = self.cluster.set_node(node);
        let new = self.cluster.nodes.get(&name);
        if old.as_ref().zip(new).is_none_or(|(old, new)| old.differs(new)) {
            self.node_has_room(&name, now);
        }
        // It may have made a domain, changed it, or left it.
        if old.is_none_or(|old| old.labels != labels) {
            self.queue.pod_changed(&|_| true, now);
        }
    }

    pub(crate) fn node_deleted(&mut self, name: &str, now: Instant) {
        if self.cluster.remove_node(name).is_some() {
            self.node_gone(name, now);
            self.queue.pod_changed(&|_| true, now);
        }
    }

    /// A claim, volume or class was added or has changed; the pods that it may help are retried.
    pub(crate) fn storage_applied<K: Stored>(&mut self, object: &K, key: &Key, now: Instant) {
        if object.applied(&mut self.cluster.storage) {
            let concerned = K::concerns(&self.cluster.storage, key);
            if let Some(class) = concerned.class {
                self.queue.claim_changed(&(String::new(), class), now);
            }
            for claim in concerned.claims {
                self.queue.claim_changed(&claim, now);
                self.volumes_changed(&claim, now);
            }
        }
    }

    /// A claim, volume or class was deleted, which makes no pod schedulable.
    pub(crate) fn storage_removed<K: Stored>(&mut self, key: &Key, now: Instant) {
        let concerned = K::concerns(&self.cluster.storage, key);
        K::removed(&mut self.cluster.storage, key);
        concerned.claims.iter().for_each(|claim| self.volumes_changed(claim, now));
    }

    pub(crate) fn namespace_applied(&mut self, name: &str, labels: BTreeMap<String, String>, now: Instant) {
        if self.cluster.namespaces.insert(name.to_owned(), labels.clone()).is_none_or(|old| old != labels) {
            self.queue.pod_changed(&|demands| demands.pod.affinity.is_some() || demands.unwanted, now);
        }
    }

    pub(crate) fn namespace_removed(&mut self, name: &str) {
        self.cluster.namespaces.remove(name);
    }

    /// A budget was changed or deleted. Budgets only decide who is preempted: no pod is retried.
    pub(crate) fn budget(&mut self, key: Key, budget: Option<Budget>) {
        match budget {
            Some(budget) => drop(self.cluster.budgets.insert(key, budget)),
            None => drop(self.cluster.budgets.remove(&key)),
        }
    }

    /// A service, or its end.
    pub(crate) fn service(&mut self, key: &Key, selector: Option<BTreeMap<String, String>>) {
        self.cluster.owners.set_service(&key.0, &key.1, selector);
    }

    /// A controller of pods, or its end.
    pub(crate) fn controller(&mut self, kind: &'static str, key: &Key, selector: Option<LabelSelector>) {
        self.cluster.owners.set_controller(kind, &key.0, &key.1, selector);
    }
}

/// Whether a node could have room for a pod, as far as the node alone decides, if need be by preemption.
fn could_fit(cluster: &Cluster, demands: &Demands, node: &NodeInfo) -> bool {
    let (pod, constraints) = (&demands.pod, &demands.constraints);
    let reached = demands.claims.node_affinities().all(|a| node_selector::matches(a, &node.name, &node.labels));
    if !reached {
        return false;
    }
    match filters::on_node(pod, constraints, node, &node.usage) {
        Ok(()) => true,
        Err(failure) if failure.preemptible && constraints.preempts => {
            let mut usage = node.usage.clone();
            let mut lower = cluster.pods_of(&node.name).filter(|other| other.priority < pod.priority).peekable();
            lower.peek().is_some() && {
                lower.for_each(|other| usage.remove(other));
                filters::on_node(pod, constraints, node, &usage).is_ok()
            }
        }
        Err(_) => false,
    }
}

/// Whether a change of a pod that has a node may help a waiting one.
fn concerns(cluster: &Cluster, demands: &Demands, changed: &PodInfo) -> bool {
    let waiting = &demands.pod;
    let own = waiting.affinity.iter().flat_map(|affinity| affinity.required.iter().chain(&affinity.required_anti));
    let others = changed.affinity.iter().flat_map(|affinity| &affinity.required_anti);
    let hard = demands.constraints.spread.iter().filter(|c| c.when == WhenUnsatisfiable::DoNotSchedule);
    own.into_iter().any(|term| term.matches(changed, cluster.namespace_of(changed)))
        || others.into_iter().any(|term| term.matches(waiting, cluster.namespace_of(waiting)))
        || (waiting.namespace == changed.namespace && hard.into_iter().any(|c| c.selector.matches(&changed.labels)))
}

/// Whether a change of a waiting pod has no effect on where it fits; it keeps position and back-off.
fn demands_the_same(old: &PodInfo, new: &PodInfo) -> bool {
    let same = match (&old.constraints, &new.constraints) {
        (Some(old), Some(new)) => {
            old.selector == new.selector
                && old.required == new.required
                && old.tolerations == new.tolerations
                && old.spread == new.spread
        }
        (None, None) => true,
        _ => false,
    };
    same && old.gated == new.gated && occupies_the_same(old, new)
}

/// Whether a change of a pod has no effect on others where it is.
fn occupies_the_same(old: &PodInfo, new: &PodInfo) -> bool {
    old.requests == new.requests
        && old.scored == new.scored
        && old.deleting == new.deleting
        && old.priority == new.priority
        && old.ports == new.ports
        && old.labels == new.labels
        && old.affinity == new.affinity
}
