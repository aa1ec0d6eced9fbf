//! Messages of unschedulable pods (upstream's `FitError`). Pure.

use std::collections::BTreeMap;

/// Upstream's text for a cluster without nodes.
pub(crate) const NO_NODES: &str = "no nodes available to schedule pods";
/// Upstream's texts of DefaultPreemption.
pub(crate) const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
pub(crate) const NEVER_PREEMPTS: &str = "not eligible due to preemptionPolicy=Never.";
pub(crate) const VICTIM_TERMINATES: &str = "not eligible due to a terminating pod on the nominated node.";
/// What DynamicResources has to say to a pod without claims of devices.
const NO_DEVICES: &str = "no new claims to deallocate";

/// Why no node comes into question, and whether filters were tried.
#[derive(Debug, Clone)]
pub(crate) enum Diagnosis<'a> {
    /// A PreFilter rejected the pod for all nodes.
    PreFilter(&'a str),
    /// Reasons of nodes.
    Filters(Histogram<'a>),
}

/// How many nodes have which reason.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram<'a>(BTreeMap<&'a str, usize>);

impl<'a> Histogram<'a> {
    pub(crate) fn add(&mut self, reason: &'a str, nodes: usize) {
        if nodes > 0 {
            *self.0.entry(reason).or_default() += nodes;
        }
    }

    fn text(&self) -> String {
        let mut reasons: Vec<String> = self.0.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        // As texts: 10 nodes before 2.
        reasons.sort();
        reasons.join(", ")
    }
}

/// Why an unschedulable pod's preemption does not help, for `fit_error`: reasons of nodes that were tried, of `nodes`.
pub(crate) fn no_candidates(nodes: usize, mut tried: Histogram<'_>) -> String {
    let rest = nodes - tried.0.values().sum::<usize>().min(nodes);
    tried.add(NOT_HELPFUL, rest);
    format!("0/{nodes} nodes are available: {}.", tried.text())
}

/// The message of a pod that fits none of `nodes`; `preemption` is why preemption does not help, `None` when it does.
pub(crate) fn fit_error(nodes: usize, diagnosis: &Diagnosis<'_>, preemption: Option<&str>) -> String {
    if nodes == 0 {
        return NO_NODES.to_owned();
    }
    let why = match diagnosis {
        Diagnosis::PreFilter(why) => (*why).to_owned(),
        Diagnosis::Filters(reasons) => reasons.text(),
    };
    let post_filter = preemption.map_or_else(String::new, |preemption| match diagnosis {
        Diagnosis::PreFilter(_) => format!(" preemption: {preemption}"),
        Diagnosis::Filters(_) => format!(" {NO_DEVICES}, preemption: {preemption}"),
    });
    format!("0/{nodes} nodes are available: {why}.{post_filter}")
}

/// What an event and the condition of a pod say whose volumes could not be bound.
pub(crate) fn volumes_not_bound(why: &str) -> String {
    format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}")
}

/// The message of a preempted pod's condition DisruptionTarget.
pub(crate) fn disruption(scheduler: &str) -> String {
    format!("{scheduler}: preempting to accommodate a higher priority pod")
}

/// The event of a preempted pod.
pub(crate) fn preempted(preemptor_uid: &str, node: &str) -> String {
    format!("Preempted by pod {preemptor_uid} on node {node}")
}

/// The event of a pod that has a node now.
pub(crate) fn scheduled(namespace: &str, name: &str, node: &str) -> String {
    format!("Successfully assigned {namespace}/{name} to {node}")
}
