//! InterPodAffinity: preferred terms of the pod, and of existing pods. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::MAX;
use crate::{
    cache::{Cluster, PodMatcher},
    cycle::Cycle,
    filters::inter_pod_affinity::{add_values, matcher_of},
    model::{NodeInfo, Term},
};

/// The preferred terms of the pod with their weights, whose pods are counted.
pub(super) struct PreScore(Vec<(i64, Arc<Term>, PodMatcher)>);

impl PreScore {
    pub(super) fn new(cluster: &mut Cluster, cycle: &Cycle) -> Self {
        let preferred = cycle.pod.affinity.iter().flat_map(|affinity| &affinity.preferred);
        let counted = preferred.map(|(weight, term)| {
            let matcher = matcher_of(cluster, &[term]);
            cluster.count(&matcher);
            (*weight, Arc::clone(term), matcher)
        });
        Self(counted.collect())
    }

    pub(super) fn scores(&self, cluster: &Cluster, cycle: &Cycle, nodes: &[&NodeInfo]) -> Vec<i64> {
        // Sums by topology key and value (upstream's `topologyScore`).
        let mut sums: BTreeMap<&str, HashMap<String, i64>> = BTreeMap::new();
        for (weight, term, matcher) in &self.0 {
            if let Some(by_node) = cluster.counts.by_node(matcher) {
                let values = sums.entry(term.topology_key.as_str()).or_default();
                add_values(values, cluster, &term.topology_key, by_node, *weight);
            }
        }
        for (weight, key, by_node) in cluster.terms.scored(&cycle.pod, Some(&cycle.namespace)) {
            add_values(sums.entry(key).or_default(), cluster, key, by_node, weight);
        }
        if sums.is_empty() {
            return vec![0; nodes.len()];
        }
        let of_node = |node: &&NodeInfo| -> i64 {
            let values = sums.iter().filter_map(|(key, values)| values.get(node.labels.get(*key)?));
            values.sum()
        };
        normalise(&nodes.iter().map(of_node).collect::<Vec<_>>())
    }
}

/// From the least to the most, as 0…100.
fn normalise(raw: &[i64]) -> Vec<i64> {
    let least = raw.iter().copied().min().unwrap_or(0);
    let difference = raw.iter().copied().max().unwrap_or(0) - least;
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // as upstream's arithmetic
    let scale = |score: i64| (MAX as f64 * ((score - least) as f64 / difference as f64)) as i64;
    raw.iter().map(|score| if difference > 0 { scale(*score) } else { 0 }).collect()
}
