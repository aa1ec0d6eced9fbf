//! PodTopologySpread: constraints with `ScheduleAnyway`, and the default ones of pods of services and controllers. Pure.

use std::collections::HashMap;

use super::MAX;
use crate::{
    cache::{Cluster, PodMatcher},
    cycle::Cycle,
    filters::pod_topology_spread::{counted, includes},
    model::{HOSTNAME, NodeInfo, SpreadConstraint, WhenUnsatisfiable},
};

/// The constraints, and whether a node without one of their keys is left out.
fn constraints(cluster: &Cluster, cycle: &Cycle) -> (Vec<SpreadConstraint>, bool) {
    let own = &cycle.constraints.spread;
    if !own.is_empty() {
        let soft = own.iter().filter(|c| c.when == WhenUnsatisfiable::ScheduleAnyway).cloned();
        return (soft.collect(), true);
    }
    let selector = cluster.owners.default_selector(&cycle.pod, cycle.constraints.owner.as_ref());
    (selector.map_or_else(Vec::new, |selector| SpreadConstraint::system_defaults(&selector)), false)
}

/// The constraints, whose pods are counted.
pub(super) struct PreScore {
    constraints: Vec<(SpreadConstraint, PodMatcher)>,
    /// Whether a node without one of their keys is left out (upstream's `requireAllTopologies`).
    all_keys: bool,
}

/// Upstream's `preScoreState` of one constraint.
struct Soft<'a> {
    spec: &'a SpreadConstraint,
    matcher: &'a PodMatcher,
    /// Pods by domain that a feasible node is of.
    domains: HashMap<&'a str, i64>,
    /// More domains make the difference of a pod count more.
    weight: f64,
}

impl PreScore {
    pub(super) fn new(cluster: &mut Cluster, cycle: &Cycle) -> Self {
        let (specs, all_keys) = constraints(cluster, cycle);
        let counted = specs.into_iter().map(|spec| {
            let matcher = counted(&cycle.pod, &spec);
            cluster.count(&matcher);
            (spec, matcher)
        });
        Self { constraints: counted.collect(), all_keys }
    }

    pub(super) fn scores(&self, cluster: &Cluster, cycle: &Cycle, nodes: &[&NodeInfo]) -> Vec<i64> {
        let specs = &self.constraints;
        if specs.is_empty() {
            return vec![0; nodes.len()];
        }
        let has_keys =
            |node: &NodeInfo| !self.all_keys || specs.iter().all(|(c, _)| node.labels.contains_key(&c.topology_key));
        let is_scored: Vec<bool> = nodes.iter().map(|node| has_keys(node)).collect();
        let scored = || nodes.iter().zip(&is_scored).filter(|(_, is_scored)| **is_scored).map(|(node, _)| *node);
        let size = scored().count();
        let soft: Vec<Soft<'_>> = specs
            .iter()
            .map(|(spec, matcher)| {
                let mut domains: HashMap<&str, i64> = HashMap::new();
                if spec.topology_key != HOSTNAME {
                    for node in scored() {
                        domains.insert(node.labels.get(&spec.topology_key).map_or("", String::as_str), 0);
                    }
                    let counts = cluster.counts.by_node(matcher).into_iter().flatten();
                    for (node, count) in counts {
                        let Some(node) = cluster.nodes.get(node).filter(|node| has_keys(node)) else { continue };
                        let value = node.labels.get(&spec.topology_key).map_or("", String::as_str);
                        if let Some(domain) = domains.get_mut(value)
                            && includes(spec, &cycle.constraints, node)
                        {
                            *domain += count;
                        }
                    }
                }
                let size = if spec.topology_key == HOSTNAME { size } else { domains.len() };
                #[allow(clippy::cast_precision_loss)] // numbers of nodes
                let weight = ((size + 2) as f64).ln();
                Soft { spec, matcher, domains, weight }
            })
            .collect();
        let raw: Vec<Option<i64>> = nodes
            .iter()
            .zip(&is_scored)
            .map(|(node, is_scored)| is_scored.then(|| soft.iter().map(|soft| soft.score(cluster, node)).sum::<f64>()))
            .map(|score| {
                #[allow(clippy::cast_possible_truncation)] // numbers of pods
                score.map(|score| score.round() as i64)
            })
            .collect();
        normalise(&raw)
    }
}

impl Soft<'_> {
    /// Upstream's `scoreForCount` for a node.
    fn score(&self, cluster: &Cluster, node: &NodeInfo) -> f64 {
        let Some(value) = node.labels.get(&self.spec.topology_key) else { return 0.0 };
        let count = if self.spec.topology_key == HOSTNAME {
            cluster.counts.on(self.matcher, &node.name)
        } else {
            self.domains.get(value.as_str()).copied().unwrap_or(0)
        };
        #[allow(clippy::cast_precision_loss)] // numbers of pods
        let (count, skew) = (count as f64, (self.spec.max_skew - 1) as f64);
        count * self.weight + skew
    }
}

/// The fewer, the better; nodes that are not scored have 0.
fn normalise(raw: &[Option<i64>]) -> Vec<i64> {
    let least = raw.iter().flatten().copied().min().unwrap_or(0);
    let most = raw.iter().flatten().copied().max().unwrap_or(0);
    raw.iter()
        .map(|score| match score {
            None => 0,
            Some(_) if most == 0 => MAX,
            Some(score) => MAX * (most + least - score) / most,
        })
        .collect()
}
