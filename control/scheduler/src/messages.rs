//! Messages of unschedulable pods (upstream's `FitError`). Pure.

use std::collections::BTreeMap;

/// Upstream's text for a cluster without nodes.
pub(crate) const NO_NODES: &str = "no nodes available to schedule pods";
/// Upstream's texts of DefaultPreemption.
pub(crate) const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
pub(crate) const NEVER_PREEMPTS: &str = "not eligible due to preemptionPolicy=Never.";
pub(crate) const VICTIM_TERMINATES: &str = "not eligible due to a terminating pod on the nominated node.";
/// What DynamicResources has to say to a pod without claims of devices, and to one with some.
const NO_DEVICES: &str = "no new claims to deallocate";
const NOTHING_TO_DEALLOCATE: &str = "still not schedulable";
/// What it says after a PreFilter has rejected the pod, since it has not come to its own; preemption is not tried then.
const NO_STATE: &str = "not found";

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

/// Why preemption helps on none of `nodes`, for [`fit_error`]; `tried` of them have `reasons`.
pub(crate) fn no_candidates(nodes: usize, tried: usize, mut reasons: Histogram<'_>) -> String {
    reasons.add(NOT_HELPFUL, nodes - tried);
    format!("0/{nodes} nodes are available: {}.", reasons.text())
}

/// The message of a pod that a PreFilter rejects for all nodes.
pub(crate) fn pre_filter_error(nodes: usize, why: &str) -> String {
    match nodes {
        0 => NO_NODES.to_owned(),
        _ => format!("0/{nodes} nodes are available: {why}. {NO_STATE}"),
    }
}

/// The message of a pod that fits none of `nodes`; `preemption` is why preemption does not help, `None` when it does.
pub(crate) fn fit_error(
    nodes: usize,
    reasons: &Histogram<'_>,
    claims_devices: bool,
    preemption: Option<&str>,
) -> String {
    if nodes == 0 {
        return NO_NODES.to_owned();
    }
    let devices = if claims_devices { NOTHING_TO_DEALLOCATE } else { NO_DEVICES };
    let why_not = preemption.map_or_else(String::new, |why| format!(" {devices}, preemption: {why}"));
    format!("0/{nodes} nodes are available: {}.{why_not}", reasons.text())
}

/// What is said of a pod whose volumes could not be bound.
pub(crate) fn volumes_not_bound(why: &str) -> String {
    format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}")
}

/// What is said of a pod that could not be bound.
pub(crate) fn not_bound(why: &str) -> String {
    format!("running Bind plugin \"DefaultBinder\": {why}")
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
