//! Messages of unschedulable pods. Pure.

use std::collections::BTreeMap;

/// Upstream's text for a cluster without nodes.
pub(crate) const NO_NODES: &str = "no nodes available to schedule pods";

/// Why the filters rejected a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FilterFailure {
    pub(crate) reasons: Vec<String>,
    /// Whether preemption could help on this node.
    pub(crate) preemptible: bool,
}

/// The message of a pod that a PreFilter rejects for all nodes.
pub(crate) fn pre_filter_error(nodes: usize, why: &str) -> String {
    if nodes == 0 {
        return NO_NODES.to_owned();
    }
    format!(
        "0/{nodes} nodes are available: {why}. preemption: 0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
    )
}

/// The message of a pod that fits no node; `failures` has one entry for each node.
pub(crate) fn fit_error(failures: &[FilterFailure]) -> String {
    let nodes = failures.len();
    if nodes == 0 {
        return NO_NODES.to_owned();
    }
    let mut histogram: BTreeMap<&str, usize> = BTreeMap::new();
    failures.iter().flat_map(|r| &r.reasons).for_each(|reason| *histogram.entry(reason).or_default() += 1);
    let mut reasons: Vec<String> = histogram.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    let unpreemptible = failures.iter().filter(|failure| !failure.preemptible).count();
    let mut preemption = Vec::new();
    if nodes > unpreemptible {
        preemption.push(format!("{} No preemption victims found for incoming pod", nodes - unpreemptible));
    }
    if unpreemptible > 0 {
        preemption.push(format!("{unpreemptible} Preemption is not helpful for scheduling"));
    }
    preemption.sort();
    format!(
        "0/{nodes} nodes are available: {}. no new claims to deallocate, preemption: 0/{nodes} nodes are available: {}.",
        reasons.join(", "),
        preemption.join(", ")
    )
}
