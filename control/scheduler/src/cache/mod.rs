//! What the scheduler knows of the cluster (upstream's scheduler cache, with the indexes of its snapshot): nodes with
//! their pods, counts of pods by selector, affinity terms, nominated pods, volumes, budgets. Pure; imports the model
//! and the volumes only.

mod counts;
mod nominator;
mod owners;
mod terms;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

pub(crate) use counts::{PodCounts, PodMatcher};
pub(crate) use nominator::Nominator;
pub(crate) use owners::Owners;
pub(crate) use terms::ExistingTerms;

use super::{
    model::{Key, NodeInfo, PodInfo, Selector},
    volumes::VolumeIndex,
};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";

/// A PodDisruptionBudget.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    pub(crate) namespace: String,
    pub(crate) selector: Selector,
    pub(crate) disruptions_allowed: i32,
    /// Names of pods whose eviction is counted already.
    pub(crate) disrupted: BTreeSet<String>,
}

/// An image that nodes have (upstream's `imageState`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    /// In bytes, as the first of the nodes reports it.
    pub(crate) size: i64,
    /// How many have it.
    pub(crate) nodes: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) nodes: BTreeMap<String, NodeInfo>,
    /// The names of nodes in the order in which they are tried: one of each zone in turn (upstream's `nodeTree`). Empty
    /// after nodes have come, gone or moved.
    order: Vec<String>,
    pub(crate) pods: HashMap<Key, Arc<PodInfo>>,
    /// Pods that have a node and are not terminal, by node.
    by_node: HashMap<String, BTreeSet<Key>>,
    pub(crate) counts: PodCounts,
    pub(crate) terms: ExistingTerms,
    /// How many pods that have a node use a claim.
    claim_users: HashMap<Key, i64>,
    images: HashMap<String, Image>,
    /// Labels of namespaces.
    pub(crate) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    pub(crate) owners: Owners,
    pub(crate) budgets: BTreeMap<Key, Budget>,
    pub(crate) nominator: Nominator,
    pub(crate) storage: VolumeIndex,
}

impl Cluster {
    /// Adds or updates a node; its pods stay. Returns the node of before.
    pub(crate) fn set_node(&mut self, mut node: NodeInfo) -> Option<NodeInfo> {
        let name = node.name.clone();
        let old = self.nodes.remove(&name);
        match &old {
            Some(old) => node.usage = old.usage.clone(),
            None => self.pods_of(&name).for_each(|pod| node.usage.add(pod)),
        }
        let place = |node: &NodeInfo| (node.labels.get(ZONE).cloned(), node.labels.get(REGION).cloned());
        let moved = old.as_ref().is_none_or(|old| place(old) != place(&node));
        if old.as_ref().is_none_or(|old| old.images != node.images) {
            self.count_images(old.as_ref(), -1);
            self.count_images(Some(&node), 1);
        }
        self.nodes.insert(name, node);
        if moved {
            self.order.clear();
        }
        old
    }

    pub(crate) fn remove_node(&mut self, name: &str) -> Option<NodeInfo> {
        let old = self.nodes.remove(name)?;
        self.count_images(Some(&old), -1);
        self.order.clear();
        Some(old)
    }

    fn count_images(&mut self, node: Option<&NodeInfo>, by: i64) {
        for (name, size) in node.into_iter().flat_map(|node| &node.images) {
            let image = self.images.entry(name.clone()).or_insert(Image { size: *size, nodes: 0 });
            image.nodes += by;
            if image.nodes == 0 {
                self.images.remove(name);
            }
        }
    }

    /// Has the order in which nodes are tried.
    pub(crate) fn arrange(&mut self) {
        if !self.order.is_empty() {
            return;
        }
        let mut zones: BTreeMap<(Option<&String>, Option<&String>), Vec<&String>> = BTreeMap::new();
        for (name, node) in &self.nodes {
            zones.entry((node.labels.get(REGION), node.labels.get(ZONE))).or_default().push(name);
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        let order = (0..longest).flat_map(|i| zones.values().filter_map(move |names| names.get(i)));
        self.order = order.map(|name| (*name).clone()).collect();
    }

    /// All nodes, once they are arranged, beginning with the one at `start` of the order.
    pub(crate) fn nodes_from(&self, start: usize) -> impl Iterator<Item = &NodeInfo> {
        let (first, second) = self.order.split_at(start.min(self.order.len()));
        second.iter().chain(first).filter_map(|name| self.nodes.get(name))
    }

    /// An image that nodes have.
    pub(crate) fn image(&self, name: &str) -> Option<Image> {
        self.images.get(name).copied()
    }

    /// How many pods that have a node use a claim.
    pub(crate) fn users_of_claim(&self, claim: &Key) -> i64 {
        self.claim_users.get(claim).copied().unwrap_or(0)
    }

    /// The pods of a node that are not terminal.
    pub(crate) fn pods_of(&self, node: &str) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.by_node.get(node).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// Labels of a pod's namespace.
    pub(crate) fn namespace_of(&self, pod: &PodInfo) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(&pod.namespace)
    }

    /// Has counts for a selector.
    pub(crate) fn count(&mut self, matcher: &PodMatcher) {
        let pods = self.by_node.values().flatten().filter_map(|key| self.pods.get(key));
        self.counts.ensure(matcher, pods.map(|pod| &**pod));
    }

    /// Adds a new pod; returns whether it has a node now.
    pub(crate) fn add_pod(&mut self, pod: Arc<PodInfo>) -> bool {
        let placed = pod.node.clone().filter(|_| !pod.terminal);
        if let Some(node) = &placed {
            self.occupy(&pod, node, 1);
        }
        self.pods.insert(pod.key(), pod);
        placed.is_some()
    }

    /// Removes a pod, which is returned.
    pub(crate) fn remove_pod(&mut self, key: &Key) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(key)?;
        if let Some(node) = pod.node.as_ref().filter(|_| !pod.terminal) {
            self.occupy(&pod, node, -1);
        }
        Some(pod)
    }

    /// A pod has come to a node (1) or gone from it (−1).
    fn occupy(&mut self, pod: &Arc<PodInfo>, node: &str, by: i64) {
        let key = pod.key();
        if by > 0 {
            self.by_node.entry(node.to_owned()).or_default().insert(key);
        } else if let Some(keys) = self.by_node.get_mut(node) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_node.remove(node);
            }
        }
        self.counts.change(pod, node, by);
        self.terms.change(pod, node, by);
        for claim in pod.claim_keys() {
            let users = self.claim_users.entry(claim.clone()).or_insert(0);
            *users += by;
            if *users == 0 {
                self.claim_users.remove(&claim);
            }
        }
        if let Some(node) = self.nodes.get_mut(node) {
            if by > 0 { node.usage.add(pod) } else { node.usage.remove(pod) }
        }
    }

    /// Nominates a pod to a node, or to none; returns the node of before, if that is another one.
    pub(crate) fn nominate(&mut self, pod: &Key, node: Option<&str>) -> Option<String> {
        self.nominator.set(pod, node)
    }

    /// Pods that are nominated to a node and are not less important than `pod`: it must fit with them.
    pub(crate) fn nominated_beside(&self, node: &str, pod: &PodInfo) -> impl Iterator<Item = &Arc<PodInfo>> {
        let nominated = self.nominator.on(node).filter_map(|key| self.pods.get(key));
        nominated.filter(|other| other.node.is_none() && other.priority >= pod.priority && other.uid != pod.uid)
    }
}
