//! Which waiting pods are nominated to which nodes: preemption makes room for them there (upstream's `nominator`). Pure.

use std::collections::{BTreeSet, HashMap};

use crate::model::Key;

#[derive(Debug, Default)]
pub(crate) struct Nominator {
    by_pod: HashMap<Key, String>,
    by_node: HashMap<String, BTreeSet<Key>>,
}

impl Nominator {
    /// Nominates a pod to a node, or to none; returns the node of before, if that is another one.
    pub(super) fn set(&mut self, pod: &Key, node: Option<&str>) -> Option<String> {
        if self.node(pod) == node {
            return None;
        }
        let old = self.by_pod.remove(pod);
        if let Some(pods) = old.as_ref().and_then(|old| self.by_node.get_mut(old)) {
            pods.remove(pod);
        }
        if let Some(old) = &old
            && self.by_node.get(old).is_some_and(BTreeSet::is_empty)
        {
            self.by_node.remove(old);
        }
        if let Some(node) = node {
            self.by_pod.insert(pod.clone(), node.to_owned());
            self.by_node.entry(node.to_owned()).or_default().insert(pod.clone());
        }
        old
    }

    /// The node that a pod is nominated to.
    pub(crate) fn node(&self, pod: &Key) -> Option<&str> {
        self.by_pod.get(pod).map(String::as_str)
    }

    /// The pods that are nominated to a node.
    pub(crate) fn on(&self, node: &str) -> impl Iterator<Item = &Key> {
        self.by_node.get(node).into_iter().flatten()
    }
}
