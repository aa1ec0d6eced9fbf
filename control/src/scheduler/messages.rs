//! What users read when a pod finds no node. Pure.

use std::collections::BTreeMap;

/// Upstream's text for a cluster without nodes.
pub(crate) const NO_NODES: &str = "no nodes available to schedule pods";

/// Why one node was refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reasons: Vec<String>,
    /// Whether removing pods from the node could make room.
    pub(crate) removable: bool,
}

/// The text for a pod that can run nowhere, whatever the nodes have.
pub(crate) fn nowhere(nodes: usize, why: &str) -> String {
    if nodes == 0 {
        return NO_NODES.to_owned();
    }
    format!(
        "0/{nodes} nodes are available: {why}. preemption: 0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
    )
}

/// `refusals` holds one entry for each node that was examined.
pub(crate) fn unschedulable(refusals: &[Refusal]) -> String {
    let nodes = refusals.len();
    if nodes == 0 {
        return NO_NODES.to_owned();
    }
    let mut histogram: BTreeMap<&str, usize> = BTreeMap::new();
    refusals.iter().flat_map(|r| &r.reasons).for_each(|reason| *histogram.entry(reason).or_default() += 1);
    let mut reasons: Vec<String> = histogram.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    let helpless = refusals.iter().filter(|refusal| !refusal.removable).count();
    let mut preemption = Vec::new();
    if nodes > helpless {
        preemption.push(format!("{} No preemption victims found for incoming pod", nodes - helpless));
    }
    if helpless > 0 {
        preemption.push(format!("{helpless} Preemption is not helpful for scheduling"));
    }
    preemption.sort();
    format!(
        "0/{nodes} nodes are available: {}. no new claims to deallocate, preemption: 0/{nodes} nodes are available: {}.",
        reasons.join(", "),
        preemption.join(", ")
    )
}
