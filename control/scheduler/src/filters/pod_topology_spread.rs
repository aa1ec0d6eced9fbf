//! PodTopologySpread: constraints with `DoNotSchedule`. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{Failure, node_affinity, taint_toleration};
use crate::{
    cache::{Cluster, PodMatcher},
    cycle::{Cycle, NodeView},
    model::{Constraints, NodeInfo, PodInfo, SpreadConstraint, WhenUnsatisfiable},
};

pub(crate) const NAME: &str = "PodTopologySpread";
/// Upstream's `ErrReasonConstraintsNotMatch`.
const REASON: &str = "node(s) didn't match pod topology spread constraints";
/// Upstream's `ErrReasonNodeLabelNotMatch`.
const MISSING_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

/// The pods that a constraint counts: upstream's `countPodsMatchSelector` counts none for an empty selector.
pub(crate) fn counted(pod: &PodInfo, constraint: &SpreadConstraint) -> PodMatcher {
    let terms = match constraint.selector.is_empty() {
        true => Vec::new(),
        false => vec![(BTreeSet::from([pod.namespace.clone()]), constraint.selector.clone())],
    };
    PodMatcher::new(terms, true)
}

/// Whether the pods of a node count for a constraint (upstream's `matchNodeInclusionPolicies`).
pub(crate) fn includes(constraint: &SpreadConstraint, constraints: &Constraints, node: &NodeInfo) -> bool {
    (!constraint.honors_affinity || node_affinity::matches(constraints, node))
        && (!constraint.honors_taints || taint_toleration::tolerates(constraints, node))
}

#[derive(Debug, Default)]
pub(crate) struct PreFilter {
    constraints: Vec<Constraint>,
    /// For the inclusion of nodes.
    of: Arc<Constraints>,
}

#[derive(Debug)]
struct Constraint {
    spec: SpreadConstraint,
    matcher: PodMatcher,
    /// 1 if the pod itself counts.
    own: i64,
    /// Pods by domain (upstream's `TpValueToMatchNum`).
    domains: HashMap<String, i64>,
    /// The domain with the fewest pods, and what the others have at least (upstream's `criticalPaths`).
    fewest: (String, i64),
    second: i64,
}

/// What other pods on a node change, by constraint.
#[derive(Debug, Default, Clone)]
pub(crate) struct Delta(Vec<i64>);

impl PreFilter {
    pub(crate) fn new(cluster: &mut Cluster, pod: &PodInfo, constraints: &Arc<Constraints>) -> Self {
        let hard: Vec<_> =
            constraints.spread.iter().filter(|c| c.when == WhenUnsatisfiable::DoNotSchedule).cloned().collect();
        if hard.is_empty() {
            return Self::default();
        }
        let mut found: Vec<Constraint> = Vec::new();
        for spec in hard {
            let matcher = counted(pod, &spec);
            cluster.count(&matcher);
            let own = i64::from(spec.selector.matches(&pod.labels));
            let empty = (String::new(), i64::from(i32::MAX));
            let domains = HashMap::new();
            found.push(Constraint { spec, matcher, own, domains, fewest: empty, second: i64::from(i32::MAX) });
        }
        let mut all = Self { constraints: found, of: Arc::clone(constraints) };
        for node in cluster.nodes.values() {
            if !all.has_all_keys(node) {
                continue;
            }
            for constraint in &mut all.constraints {
                let Some(value) = node.labels.get(&constraint.spec.topology_key) else { continue };
                if includes(&constraint.spec, &all.of, node) {
                    let count = cluster.counts.on(&constraint.matcher, &node.name);
                    match constraint.domains.get_mut(value) {
                        Some(domain) => *domain += count,
                        None => drop(constraint.domains.insert(value.clone(), count)),
                    }
                }
            }
        }
        all.constraints.iter_mut().for_each(Constraint::find_fewest);
        all
    }

    /// Nodes without one of the keys are not part of any domain.
    fn has_all_keys(&self, node: &NodeInfo) -> bool {
        self.constraints.iter().all(|constraint| node.labels.contains_key(&constraint.spec.topology_key))
    }
}

impl Constraint {
    fn find_fewest(&mut self) {
        for (value, count) in &self.domains {
            if *count < self.fewest.1 {
                self.second = self.fewest.1;
                self.fewest = (value.clone(), *count);
            } else {
                self.second = self.second.min(*count);
            }
        }
    }

    /// The fewest pods of a domain when one of them has `delta` more (upstream's `minMatchNum`).
    fn minimum(&self, value: &str, delta: i64) -> i64 {
        if self.domains.len() < self.spec.min_domains {
            return 0;
        }
        let of_others = if self.fewest.0 == value { self.second } else { self.fewest.1 };
        self.domains.get(value).map_or(of_others, |count| of_others.min(count + delta))
    }
}

impl Delta {
    pub(crate) fn change(&mut self, pre_filter: &PreFilter, node: &NodeInfo, pod: &PodInfo, by: i64) {
        if pre_filter.constraints.is_empty() || !pre_filter.has_all_keys(node) {
            return;
        }
        self.0.resize(pre_filter.constraints.len(), 0);
        for (constraint, delta) in pre_filter.constraints.iter().zip(&mut self.0) {
            if constraint.matcher.matches(pod) && includes(&constraint.spec, &pre_filter.of, node) {
                *delta += by;
            }
        }
    }
}

pub(super) fn filter(cycle: &Cycle, view: &NodeView<'_>) -> Result<(), Failure> {
    for (i, constraint) in cycle.spread.constraints.iter().enumerate() {
        let Some(value) = view.node.labels.get(&constraint.spec.topology_key) else {
            return Err(Failure::unresolvable(NAME, MISSING_LABEL));
        };
        let delta = view.spread.0.get(i).copied().unwrap_or(0);
        let count = constraint.domains.get(value).map_or(0, |count| count + delta);
        let skew = count + constraint.own - constraint.minimum(value, delta);
        if skew > constraint.spec.max_skew {
            return Err(Failure::unschedulable(NAME, REASON));
        }
    }
    Ok(())
}
