//! NodeResourcesBalancedAllocation: CPU and memory are used in more like parts than before. Pure.

use windlass_kit::objects::requests::Amounts;

use super::MAX;
use crate::model::{NodeInfo, PodInfo};

/// From 50, balance is lost, over 75, nothing changes, to 100, it is gained.
pub(super) fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let (want, used) = (&pod.requests, &node.usage.requested);
    // Many pods without requests would otherwise go to one node.
    if want.milli_cpu == 0 && want.memory == 0 {
        return 0;
    }
    let with = balance(used.milli_cpu + want.milli_cpu, used.memory + want.memory, &node.allocatable);
    let without = balance(used.milli_cpu, used.memory, &node.allocatable);
    MAX / 2 + (MAX / 2 + with - without) / 2
}

/// Upstream's `balancedResourceScore`: 100, less the deviation of the used parts.
fn balance(milli_cpu: i64, memory: i64, allocatable: &Amounts) -> i64 {
    // One resource alone has no deviation.
    if allocatable.milli_cpu <= 0 || allocatable.memory <= 0 {
        return MAX;
    }
    #[allow(clippy::cast_precision_loss)] // a score needs no more than a double holds
    let fraction = |used: i64, allocatable: i64| (used as f64 / allocatable as f64).min(1.0);
    let deviation = ((fraction(milli_cpu, allocatable.milli_cpu) - fraction(memory, allocatable.memory)) / 2.0).abs();
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // between 0 and 100
    let score = ((1.0 - deviation) * MAX as f64) as i64;
    score
}
