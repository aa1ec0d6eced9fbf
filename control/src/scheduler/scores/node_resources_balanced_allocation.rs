//! NodeResourcesBalancedAllocation: CPU and memory are used in like parts. Pure.

use super::MAX;
use crate::scheduler::model::{NodeInfo, PodInfo};

pub(super) fn score(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let (want, used, all) = (&pod.requests, &node.usage.requested, &node.allocatable);
    // Many pods without requests would otherwise go to one node.
    if want.milli_cpu == 0 && want.memory == 0 {
        return 0;
    }
    #[allow(clippy::cast_precision_loss)] // a score needs no more than a double holds
    let fraction = |used: i64, allocatable: i64| (used as f64 / allocatable as f64).min(1.0);
    // One resource alone has no deviation.
    if all.milli_cpu <= 0 || all.memory <= 0 {
        return MAX;
    }
    let cpu = fraction(used.milli_cpu + want.milli_cpu, all.milli_cpu);
    let memory = fraction(used.memory + want.memory, all.memory);
    let deviation = ((cpu - memory) / 2.0).abs();
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // between 0 and 100
    let score = ((1.0 - deviation) * MAX as f64) as i64;
    score
}
