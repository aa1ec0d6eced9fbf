//! Scores of feasible nodes. Pure.

use windlass_kit::objects::{node_selector, tolerations};

use super::model::{Constraints, NodeInfo, PodInfo};

/// Weights of upstream's default profile.
const WEIGHT_TAINTS: i64 = 3;
const WEIGHT_AFFINITY: i64 = 2;

/// The index of the best node of `nodes`; of equal ones the `tie`-th, modulo their number.
pub(crate) fn best(pod: &PodInfo, constraints: &Constraints, nodes: &[&NodeInfo], tie: usize) -> Option<usize> {
    let count = |f: &dyn Fn(&NodeInfo) -> i64| nodes.iter().map(|node| f(node)).collect::<Vec<i64>>();
    let taints = normalise(&count(&|node| intolerable(constraints, node)), true);
    let affinity = normalise(&count(&|node| preferred(constraints, node)), false);
    let totals: Vec<i64> = nodes
        .iter()
        .zip(taints.iter().zip(&affinity))
        .map(|(node, (taint, affinity))| {
            taint * WEIGHT_TAINTS + affinity * WEIGHT_AFFINITY + least_allocated(pod, node) + balanced(pod, node)
        })
        .collect();
    let top = totals.iter().max()?;
    let equal: Vec<usize> = (0..totals.len()).filter(|i| totals[*i] == *top).collect();
    equal.get(tie % equal.len()).copied()
}

/// PreferNoSchedule taints that the pod does not tolerate.
fn intolerable(constraints: &Constraints, node: &NodeInfo) -> i64 {
    let count = node
        .taints
        .iter()
        .filter(|t| {
            t.effect == "PreferNoSchedule" && !constraints.tolerations.iter().any(|o| tolerations::tolerates(o, t))
        })
        .count();
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn preferred(constraints: &Constraints, node: &NodeInfo) -> i64 {
    constraints
        .preferred
        .iter()
        .filter(|p| node_selector::term_matches(&p.preference, &node.name, &node.labels))
        .map(|p| i64::from(p.weight))
        .sum()
}

/// To 0…100; reversed when less is better.
fn normalise(values: &[i64], reversed: bool) -> Vec<i64> {
    let most = values.iter().copied().max().unwrap_or(0);
    let scale = |v: i64| if most == 0 { 0 } else { v * 100 / most };
    values.iter().map(|v| if reversed { 100 - scale(*v) } else { scale(*v) }).collect()
}

fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let free = |allocatable: i64, used: i64| {
        if allocatable <= 0 || used > allocatable { 0 } else { (allocatable - used).saturating_mul(100) / allocatable }
    };
    let cpu = free(node.allocatable.milli_cpu, node.scored.0 + pod.scored.0);
    let memory = free(node.allocatable.memory, node.scored.1 + pod.scored.1);
    (cpu + memory) / 2
}

fn balanced(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let share = |allocatable: i64, used: i64| {
        #[allow(clippy::cast_precision_loss)] // a score needs no more than a double holds
        let share = if allocatable <= 0 { 1.0 } else { used as f64 / allocatable as f64 };
        share.min(1.0)
    };
    let cpu = share(node.allocatable.milli_cpu, node.used.milli_cpu + pod.requests.milli_cpu);
    let memory = share(node.allocatable.memory, node.used.memory + pod.requests.memory);
    #[allow(clippy::cast_possible_truncation)] // between 0 and 100
    let score = ((1.0 - (cpu - memory).abs() / 2.0) * 100.0) as i64;
    score
}
