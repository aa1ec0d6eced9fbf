//! NodeResourcesFit: LeastAllocated over CPU and memory, with the defaults for unset requests. Pure.

use super::MAX;
use crate::model::{NodeInfo, PodInfo};

pub(super) fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let used = (node.usage.scored.0 + pod.scored.0, node.usage.scored.1 + pod.scored.1);
    let resources = [(used.0, node.allocatable.milli_cpu), (used.1, node.allocatable.memory)];
    let (mut sum, mut weights) = (0, 0);
    for (requested, allocatable) in resources.into_iter().filter(|(_, allocatable)| *allocatable > 0) {
        sum += least_requested(requested, allocatable);
        weights += 1;
    }
    if weights == 0 { 0 } else { sum / weights }
}

/// Upstream's `leastRequestedScore`.
fn least_requested(requested: i64, capacity: i64) -> i64 {
    if requested > capacity { 0 } else { (capacity - requested).saturating_mul(MAX) / capacity }
}
