//! One attempt to schedule a pod: what is computed once for it (upstream's PreFilter and CycleState), and how a node
//! looks to it, as it is or with pods added and removed. Pure.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    cache::Cluster,
    filters::{inter_pod_affinity, node_affinity, pod_topology_spread, volume_restrictions},
    model::{Constraints, NodeInfo, PodInfo, Usage},
    volumes::PodClaims,
};

/// What is computed once for a pod.
#[derive(Debug)]
pub(crate) struct Cycle {
    pub(crate) pod: Arc<PodInfo>,
    pub(crate) constraints: Arc<Constraints>,
    /// Labels of its namespace.
    pub(crate) namespace: BTreeMap<String, String>,
    /// The only nodes that come into question, if its affinity names them (upstream's `PreFilterResult`).
    pub(crate) nodes: Option<BTreeSet<String>>,
    pub(crate) claims: PodClaims,
    pub(crate) restrictions: volume_restrictions::PreFilter,
    pub(crate) spread: pod_topology_spread::PreFilter,
    pub(crate) affinity: inter_pod_affinity::PreFilter,
}

impl Cycle {
    /// # Errors
    /// Why no node comes into question, as upstream's message.
    pub(crate) fn new(
        cluster: &mut Cluster,
        pod: &Arc<PodInfo>,
        constraints: &Arc<Constraints>,
    ) -> Result<Self, String> {
        let nodes = node_affinity::pre_filter(constraints)?;
        let claims = cluster.storage.claims_of(pod)?;
        let restrictions = volume_restrictions::PreFilter::new(cluster, pod);
        let spread = pod_topology_spread::PreFilter::new(cluster, pod, constraints);
        let affinity = inter_pod_affinity::PreFilter::new(cluster, pod);
        let namespace = cluster.namespace_of(pod).cloned().unwrap_or_default();
        let (pod, constraints) = (Arc::clone(pod), Arc::clone(constraints));
        Ok(Self { pod, constraints, namespace, nodes, claims, restrictions, spread, affinity })
    }
}

/// A node as a pod sees it.
#[derive(Debug, Clone)]
pub(crate) struct NodeView<'a> {
    pub(crate) node: &'a NodeInfo,
    usage: Cow<'a, Usage>,
    /// What added and removed pods change of what was computed once.
    pub(crate) restrictions: volume_restrictions::Delta,
    pub(crate) spread: pod_topology_spread::Delta,
    pub(crate) affinity: inter_pod_affinity::Delta,
}

impl<'a> NodeView<'a> {
    /// The node as it is.
    pub(crate) fn of(node: &'a NodeInfo) -> Self {
        Self {
            node,
            usage: Cow::Borrowed(&node.usage),
            restrictions: volume_restrictions::Delta::default(),
            spread: pod_topology_spread::Delta::default(),
            affinity: inter_pod_affinity::Delta::default(),
        }
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// As if another pod were on the node, too (upstream's `AddPod`).
    pub(crate) fn add(&mut self, cycle: &Cycle, pod: &PodInfo) {
        self.usage.to_mut().add(pod);
        self.change(cycle, pod, 1);
    }

    /// As if a pod of the node were gone (upstream's `RemovePod`).
    pub(crate) fn remove(&mut self, cycle: &Cycle, pod: &PodInfo) {
        self.usage.to_mut().remove(pod);
        self.change(cycle, pod, -1);
    }

    fn change(&mut self, cycle: &Cycle, pod: &PodInfo, by: i64) {
        self.restrictions.change(&cycle.restrictions, pod, by);
        self.spread.change(&cycle.spread, self.node, pod, by);
        self.affinity.change(cycle, self.node, pod, by);
    }
}
