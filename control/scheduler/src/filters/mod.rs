//! Filters: whether a pod fits a node, one plugin of upstream in each file, with its reasons. Pure; imports the model,
//! the cache, the cycle and the volumes.

use std::borrow::Cow;

use super::{
    cache::Cluster,
    cycle::{Cycle, NodeView},
    model::{Constraints, NodeInfo, PodInfo, Usage},
};

mod dynamic_resources;
pub(crate) mod inter_pod_affinity;
pub(crate) mod node_affinity;
mod node_declared_features;
mod node_ports;
mod node_resources_fit;
mod node_unschedulable;
pub(crate) mod pod_topology_spread;
mod taint_toleration;
mod volume_binding;
pub(crate) mod volume_restrictions;
mod volume_zone;

/// Why a filter rejected a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Upstream's name of the plugin.
    pub(crate) plugin: &'static str,
    pub(crate) reasons: Vec<Cow<'static, str>>,
    /// Whether preemption could help on this node (upstream's `Unschedulable` and `UnschedulableAndUnresolvable`).
    pub(crate) preemptible: bool,
}

impl Failure {
    /// Removing pods could help.
    pub(crate) fn unschedulable(plugin: &'static str, reason: &'static str) -> Self {
        Self { plugin, reasons: vec![reason.into()], preemptible: true }
    }

    /// Removing pods does not help.
    pub(crate) fn unresolvable(plugin: &'static str, reason: &'static str) -> Self {
        Self { plugin, reasons: vec![reason.into()], preemptible: false }
    }
}

/// Filters of what the node and its pods alone decide, in upstream's order. Upstream has the last one after all others,
/// which shows only where a node fails for two reasons.
pub(crate) fn on_node(pod: &PodInfo, constraints: &Constraints, node: &NodeInfo, usage: &Usage) -> Result<(), Failure> {
    node_unschedulable::filter(constraints, node)?;
    taint_toleration::filter(constraints, node)?;
    node_affinity::filter(constraints, node)?;
    node_ports::filter(pod, usage)?;
    node_resources_fit::filter(pod, node, usage)?;
    volume_restrictions::disks(pod, usage)?;
    node_declared_features::filter(constraints, node)
}

/// All filters of the default profile; the first that fails is reported alone (upstream's `RunFilterPlugins`).
pub(crate) fn run(cluster: &Cluster, cycle: &Cycle, view: &NodeView<'_>) -> Result<(), Failure> {
    on_node(&cycle.pod, &cycle.constraints, view.node, view.usage())?;
    volume_restrictions::filter(cycle, view)?;
    volume_binding::filter(cluster, cycle, view.node)?;
    volume_zone::filter(cycle, view.node)?;
    pod_topology_spread::filter(cycle, view)?;
    inter_pod_affinity::filter(cycle, view)?;
    dynamic_resources::filter(&cycle.constraints)
}

/// The same where pods are nominated to the node: the pod must fit with those of them that are not less important, and
/// without, since they may go elsewhere (upstream's `RunFilterPluginsWithNominatedPods`).
pub(crate) fn run_with_nominated(cluster: &Cluster, cycle: &Cycle, view: &NodeView<'_>) -> Result<(), Failure> {
    let mut nominated = cluster.nominated_beside(&view.node.name, &cycle.pod).peekable();
    if nominated.peek().is_some() {
        let mut with = view.clone();
        nominated.for_each(|pod| with.add(cycle, pod));
        run(cluster, cycle, &with)?;
    }
    run(cluster, cycle, view)
}
