//! VolumeZone: volumes whose labels name zones and regions. Pure.

use super::Failure;
use crate::{cycle::Cycle, model::NodeInfo};

const NAME: &str = "VolumeZone";
/// Upstream's `ErrReasonConflict`.
const REASON: &str = "node(s) had no available volume zone";
/// Labels of volumes and nodes, with the names of both before and after they were promoted.
const TOPOLOGY_LABELS: [(&str, &str); 4] = [
    ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
];

pub(super) fn filter(cycle: &Cycle, node: &NodeInfo) -> Result<(), Failure> {
    let zones = cycle.claims.zones();
    // A node without any of these labels is of a cluster without zones.
    let has_none = || TOPOLOGY_LABELS.iter().all(|(label, _)| !node.labels.contains_key(*label));
    if zones.is_empty() || has_none() {
        return Ok(());
    }
    let fits = zones.iter().all(|(label, values)| {
        let other = TOPOLOGY_LABELS.iter().find(|(name, _)| name == label).map(|(_, other)| *other);
        let value = node.labels.get(label).or_else(|| node.labels.get(other?));
        value.is_some_and(|value| values.contains(value))
    });
    if fits { Ok(()) } else { Err(Failure::unresolvable(NAME, REASON)) }
}
