//! Scores of feasible nodes, with upstream's weights and integer arithmetic, one plugin of upstream in each file. Pure;
//! imports the model, the cache, the cycle and filters.

use super::{cache::Cluster, cycle::Cycle, model::NodeInfo};

mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod pod_topology_spread;
mod taint_toleration;

/// Upstream's `MaxNodeScore`.
const MAX: i64 = 100;

/// The index of the best node of `nodes`; of equal ones the `tie`-th, modulo their number.
pub(crate) fn best(cluster: &mut Cluster, cycle: &Cycle, nodes: &[String], tie: usize) -> Option<usize> {
    if nodes.len() < 2 {
        return (!nodes.is_empty()).then_some(0);
    }
    let totals = totals(cluster, cycle, nodes);
    let top = totals.iter().max()?;
    let equal: Vec<usize> = (0..totals.len()).filter(|i| totals[*i] == *top).collect();
    equal.get(tie % equal.len()).copied()
}

/// The weighted sums of all plugins.
pub(crate) fn totals(cluster: &mut Cluster, cycle: &Cycle, names: &[String]) -> Vec<i64> {
    let spread = pod_topology_spread::PreScore::new(cluster, cycle);
    let affinity = inter_pod_affinity::PreScore::new(cluster, cycle);
    let cluster = &*cluster;
    let nodes: Vec<&NodeInfo> = names.iter().filter_map(|name| cluster.nodes.get(name)).collect();
    let each = |score: &dyn Fn(&NodeInfo) -> i64| nodes.iter().map(|node| score(node)).collect::<Vec<i64>>();
    let (pod, constraints) = (&cycle.pod, &cycle.constraints);
    let plugins = [
        (3, taint_toleration::scores(constraints, &nodes)),
        (2, node_affinity::scores(constraints, &nodes)),
        (1, each(&|node| node_resources_fit::score(pod, node))),
        (2, spread.scores(cluster, cycle, &nodes)),
        (2, affinity.scores(cluster, cycle, &nodes)),
        (1, each(&|node| node_resources_balanced_allocation::score(pod, node))),
        (1, each(&|node| image_locality::score(cluster, constraints, node))),
    ];
    let mut totals = vec![0; nodes.len()];
    for (weight, scores) in plugins {
        totals.iter_mut().zip(scores).for_each(|(total, score)| *total += weight * score);
    }
    totals
}

/// To 0…100; reversed when less is better (upstream's `DefaultNormalizeScore`).
fn normalise(values: &[i64], reversed: bool) -> Vec<i64> {
    let most = values.iter().copied().max().unwrap_or(0);
    let scale = |v: i64| if most == 0 { 0 } else { v * MAX / most };
    values.iter().map(|v| if reversed { MAX - scale(*v) } else { scale(*v) }).collect()
}
