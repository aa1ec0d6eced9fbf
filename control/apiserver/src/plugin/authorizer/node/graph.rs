//! The graph from objects to nodes, as reference counts, so that a query is one lookup. Pure.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use super::{Relations, references};
use crate::{
    kinds::core::pod::is_mirror,
    plugin::store_view::{Apply, View},
    store::Key,
};

/// A kind of object that may lead to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Pod,
    Secret,
    ConfigMap,
    PersistentVolumeClaim,
    PersistentVolume,
    ServiceAccount,
    /// What this API does not serve: no object of it leads anywhere.
    Unserved,
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Vertex {
    kind: Kind,
    namespace: Box<str>,
    name: Box<str>,
}

impl Vertex {
    pub(super) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

/// A pod bound to a node.
#[derive(Debug)]
struct BoundPod {
    node: Arc<str>,
    named: Vec<Arc<Vertex>>,
}

#[derive(Debug)]
struct BoundVolume {
    claim: Vertex,
    secrets: Vec<Vertex>,
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    pods: HashMap<Key, BoundPod>,
    /// For each object, how many pods of each node refer to it.
    nodes_of: HashMap<Arc<Vertex>, BTreeMap<Arc<str>, u32>>,
    volumes: HashMap<Box<str>, BoundVolume>,
    /// The volumes that refer to a secret.
    volumes_of: HashMap<Vertex, HashSet<Box<str>>>,
}

impl View for Graph {
    const RESOURCES: &'static [(&'static str, Apply<Self>)] =
        &[("pods", Self::pod), ("persistentvolumes", |graph, key, volume| graph.volume(&key.name, volume))];
}

impl Graph {
    /// Updates a pod; `None` when it was deleted.
    pub(super) fn pod(&mut self, key: &Key, pod: Option<&Value>) {
        self.remove_pod(key);
        let node = pod.and_then(|pod| pod["spec"]["nodeName"].as_str()).filter(|node| !node.is_empty());
        let Some((pod, node)) = pod.zip(node) else { return };
        let node: Arc<str> = node.into();
        // References of a mirror pod do not count: the node writes it, and could gain access to any object by them.
        let mut named = if is_mirror(pod) { Vec::new() } else { references::of_pod(pod) };
        named.sort_unstable();
        named.dedup();
        let named = named.into_iter().map(|(kind, name)| {
            let wanted = Vertex::new(kind, &key.namespace, &name);
            let vertex = self.nodes_of.get_key_value(&wanted).map_or_else(|| Arc::new(wanted), |(v, _)| Arc::clone(v));
            *self.nodes_of.entry(Arc::clone(&vertex)).or_default().entry(Arc::clone(&node)).or_default() += 1;
            vertex
        });
        let named = named.collect();
        self.pods.insert(key.clone(), BoundPod { node, named });
    }

    fn remove_pod(&mut self, key: &Key) {
        let Some(BoundPod { node, named }) = self.pods.remove(key) else { return };
        for vertex in named {
            let Some(nodes) = self.nodes_of.get_mut(&vertex) else { continue };
            if let Some(count) = nodes.get_mut(&node) {
                *count -= 1;
                if *count == 0 {
                    nodes.remove(&node);
                }
            }
            if nodes.is_empty() {
                self.nodes_of.remove(&vertex);
            }
        }
    }

    /// Updates a persistent volume; `None` when it was deleted.
    pub(super) fn volume(&mut self, name: &str, volume: Option<&Value>) {
        if let Some(old) = self.volumes.remove(name) {
            for secret in old.secrets {
                let Some(volumes) = self.volumes_of.get_mut(&secret) else { continue };
                volumes.remove(name);
                if volumes.is_empty() {
                    self.volumes_of.remove(&secret);
                }
            }
        }
        let Some((claim, secrets)) = volume.and_then(references::of_volume) else { return };
        for secret in &secrets {
            self.volumes_of.entry(secret.clone()).or_default().insert(name.into());
        }
        self.volumes.insert(name.into(), BoundVolume { claim, secrets });
    }

    fn named_on(&self, node: &str, vertex: &Vertex) -> bool {
        self.nodes_of.get(vertex).is_some_and(|nodes| nodes.contains_key(node))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.nodes_of.is_empty() && self.volumes.is_empty() && self.volumes_of.is_empty()
    }
}

impl Relations for Graph {
    fn related(&self, node: &str, object: &Vertex) -> bool {
        let claimed = |volume: &str| self.volumes.get(volume).is_some_and(|v| self.named_on(node, &v.claim));
        match object.kind {
            Kind::Pod => {
                let key = Key { namespace: object.namespace.to_string(), name: object.name.to_string() };
                self.pods.get(&key).is_some_and(|bound| &*bound.node == node)
            }
            Kind::PersistentVolume => claimed(&object.name),
            Kind::Secret => {
                self.named_on(node, object)
                    || self.volumes_of.get(object).into_iter().flatten().any(|volume| claimed(volume))
            }
            Kind::ConfigMap | Kind::PersistentVolumeClaim | Kind::ServiceAccount => self.named_on(node, object),
            Kind::Unserved => false,
        }
    }
}
