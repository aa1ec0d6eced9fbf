//! DefaultPreemption: which less important pods make room for a pod, and on which node (upstream's
//! `framework/preemption` and `plugins/defaultpreemption`). Pure.

use std::{cmp::Reverse, sync::Arc};

use jiff::Timestamp;

use super::{
    cache::Cluster,
    cycle::{Cycle, NodeView},
    filters::{Failure, run_with_nominated},
    messages::NO_VICTIMS,
    model::{NodeInfo, PodInfo},
};

const NAME: &str = "DefaultPreemption";
/// Upstream's defaults for the number of nodes that are tried: a part of them, and at least so many.
const MIN_CANDIDATE_NODES_PERCENTAGE: usize = 10;
const MIN_CANDIDATE_NODES_ABSOLUTE: usize = 100;

/// A node where the pod fits when the victims are gone.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) node: String,
    /// The most important one first; never empty.
    pub(crate) victims: Vec<Arc<PodInfo>>,
    /// Victims that a PodDisruptionBudget would keep.
    pub(crate) violations: usize,
}

/// What of a pod decides how important it is: its priority, then how long it runs (upstream's `MoreImportantPod`).
fn importance(pod: &PodInfo) -> (Reverse<i32>, Timestamp) {
    (Reverse(pod.priority), started(pod))
}

/// A pod that has not been started yet starts now.
fn started(pod: &PodInfo) -> Timestamp {
    pod.started.unwrap_or(Timestamp::MAX)
}

/// Candidates among `nodes`, from the `offset`-th on, and why other nodes are none (upstream's `DryRunPreemption`).
/// Enough are enough, but not without one that violates no budget.
pub(crate) fn candidates<'a>(
    cluster: &Cluster,
    cycle: &Cycle,
    nodes: &[&'a NodeInfo],
    offset: usize,
) -> (Vec<Candidate>, Vec<(&'a str, Failure)>) {
    let wanted = (nodes.len() * MIN_CANDIDATE_NODES_PERCENTAGE / 100).max(MIN_CANDIDATE_NODES_ABSOLUTE);
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    let mut keeps_budgets = false;
    let (before, after) = nodes.split_at(if nodes.is_empty() { 0 } else { offset % nodes.len() });
    for node in after.iter().chain(before) {
        if keeps_budgets && found.len() >= wanted {
            break;
        }
        match select_victims(cluster, cycle, node) {
            Ok(candidate) => {
                keeps_budgets |= candidate.violations == 0;
                found.push(candidate);
            }
            Err(failure) => failures.push((node.name.as_str(), failure)),
        }
    }
    (found, failures)
}

/// The fewest victims on a node: all less important pods go, and as many as possible come back, those first that a
/// budget keeps, and of each sort the most important ones first (upstream's `SelectVictimsOnNode`).
///
/// # Errors
/// Why no victims help.
pub(crate) fn select_victims(cluster: &Cluster, cycle: &Cycle, node: &NodeInfo) -> Result<Candidate, Failure> {
    let lower = cluster.pods_of(&node.name).filter(|pod| pod.priority < cycle.pod.priority);
    let mut potential: Vec<Arc<PodInfo>> = lower.cloned().collect();
    if potential.is_empty() {
        return Err(Failure::unresolvable(NAME, NO_VICTIMS));
    }
    let mut view = NodeView::of(node);
    potential.iter().for_each(|pod| view.remove(cycle, pod));
    run_with_nominated(cluster, cycle, &view)?;
    potential.sort_by_cached_key(|pod| importance(pod));
    let (violating, others) = by_budget(cluster, potential);
    let mut victims = Vec::new();
    let mut reprieve = |pods: Vec<Arc<PodInfo>>| {
        let before = victims.len();
        for pod in pods {
            view.add(cycle, &pod);
            if run_with_nominated(cluster, cycle, &view).is_err() {
                view.remove(cycle, &pod);
                victims.push(pod);
            }
        }
        victims.len() - before
    };
    let violations = reprieve(violating);
    reprieve(others);
    victims.sort_by_cached_key(|pod| importance(pod));
    if victims.is_empty() {
        // The filters did not want this node, though it fits as it is.
        return Err(Failure::unresolvable(NAME, NO_VICTIMS));
    }
    Ok(Candidate { node: node.name.clone(), victims, violations })
}

/// Pods whose eviction would violate a budget, and the others (upstream's `filterPodsWithPDBViolation`).
fn by_budget(cluster: &Cluster, pods: Vec<Arc<PodInfo>>) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut budgets: Vec<_> = cluster.budgets.values().map(|budget| (budget, budget.disruptions_allowed)).collect();
    pods.into_iter().partition(|pod| {
        let mut violated = false;
        for (budget, allowed) in &mut budgets {
            let selects = budget.namespace == pod.namespace
                && !pod.labels.is_empty()
                && !budget.selector.is_empty()
                && budget.selector.matches(&pod.labels)
                && !budget.disrupted.contains(&pod.name);
            if selects {
                *allowed -= 1;
                violated |= *allowed < 0;
            }
        }
        violated
    })
}

/// The best candidate (upstream's `pickOneNodeForPreemption`): the fewest violated budgets, the least important top
/// victim, the smallest sum of priorities, the fewest victims, the top victims that run for the shortest time; of equal
/// ones the first.
pub(crate) fn pick(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|candidate| {
        let highest = candidate.victims.first().map_or(i32::MIN, |pod| pod.priority);
        // With an offset no priority is negative: more victims are never less.
        let sum: i64 = candidate.victims.iter().map(|pod| i64::from(pod.priority) + i64::from(i32::MAX) + 1).sum();
        let top = candidate.victims.iter().filter(|pod| pod.priority == highest);
        let earliest = top.map(|pod| started(pod)).min();
        (candidate.violations, highest, sum, candidate.victims.len(), Reverse(earliest))
    })
}
