//! A node and what its pods use. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Node, Taint};
use windlass_kit::{
    objects::requests::{Amounts, HostPort},
    quantity::Quantity,
};

use super::{Disk, PodInfo};

/// A node of the API, and what its pods use.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    /// What its agent says that it supports.
    pub(crate) declared_features: Vec<String>,
    pub(crate) allocatable: Amounts,
    pub(crate) max_pods: i64,
    /// Bytes of its images by each of their names.
    pub(crate) images: BTreeMap<String, i64>,
    pub(crate) usage: Usage,
}

/// What the pods of a node use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) requested: Amounts,
    /// Milli-CPU and bytes with the defaults for unset requests, for scoring.
    pub(crate) scored: (i64, i64),
    /// Host ports, by pod UID.
    pub(crate) ports: HashMap<String, Vec<HostPort>>,
    /// Disks that are named in pods themselves, by pod UID.
    pub(crate) disks: HashMap<String, Vec<Disk>>,
    pub(crate) pods: i64,
}

impl NodeInfo {
    pub(crate) fn of(node: &Node) -> Self {
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        let pods = allocatable.and_then(|a| a.get("pods")).and_then(|q| q.0.parse::<Quantity>().ok());
        let images = status.and_then(|s| s.images.as_ref()).into_iter().flatten();
        let images = images.flat_map(|image| {
            let size = image.size_bytes.unwrap_or(0);
            image.names.iter().flatten().map(move |name| (name.clone(), size))
        });
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            unschedulable: spec.and_then(|s| s.unschedulable) == Some(true),
            declared_features: status.and_then(|s| s.declared_features.clone()).unwrap_or_default(),
            allocatable: Amounts::of(allocatable),
            max_pods: pods.map_or(0, Quantity::units),
            images: images.collect(),
            usage: Usage::default(),
        }
    }

    /// Whether pods that fitted one node may not fit the other, or the other way round.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        self.labels != other.labels
            || self.taints != other.taints
            || self.unschedulable != other.unschedulable
            || self.declared_features != other.declared_features
            || self.allocatable != other.allocatable
            || self.max_pods != other.max_pods
    }
}

impl Usage {
    pub(crate) fn add(&mut self, pod: &PodInfo) {
        self.requested.add(&pod.requests);
        self.scored = (self.scored.0 + pod.scored.0, self.scored.1 + pod.scored.1);
        if !pod.ports.is_empty() {
            self.ports.insert(pod.uid.clone(), pod.ports.clone());
        }
        if !pod.disks.is_empty() {
            self.disks.insert(pod.uid.clone(), pod.disks.clone());
        }
        self.pods += 1;
    }

    pub(crate) fn remove(&mut self, pod: &PodInfo) {
        self.requested.subtract(&pod.requests);
        self.scored = (self.scored.0 - pod.scored.0, self.scored.1 - pod.scored.1);
        self.ports.remove(&pod.uid);
        self.disks.remove(&pod.uid);
        self.pods -= 1;
    }
}
