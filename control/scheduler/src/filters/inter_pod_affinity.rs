//! InterPodAffinity: required terms of the pod, and required anti-affinity of other pods. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::Failure;
use crate::{
    cache::{Cluster, PodMatcher},
    cycle::{Cycle, NodeView},
    model::{NodeInfo, PodInfo, Term},
};

pub(crate) const NAME: &str = "InterPodAffinity";
/// Upstream's `ErrReasonAffinityRulesNotMatch`.
const AFFINITY: &str = "node(s) didn't match pod affinity rules";
/// Upstream's `ErrReasonAntiAffinityRulesNotMatch`.
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
/// Upstream's `ErrReasonExistingAntiAffinityRulesNotMatch`.
pub(crate) const EXISTING_ANTI_AFFINITY: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// Pods by topology key and value (upstream's `topologyToMatchedTermCount`).
type Pairs = BTreeMap<String, HashMap<String, i64>>;

#[derive(Debug, Default)]
pub(crate) struct PreFilter {
    /// Pods that must not be where this pod is.
    existing_anti: Pairs,
    /// Pods that all affinity terms match, by the keys of the terms.
    affinity: Pairs,
    /// How many these are on nodes that have one of the keys.
    affine: i64,
    /// The pod itself matches its affinity terms: it may be the first of its kind.
    matches_itself: bool,
    all_affinity_terms: Option<PodMatcher>,
    anti: Vec<AntiTerm>,
}

#[derive(Debug)]
struct AntiTerm {
    topology_key: String,
    matcher: PodMatcher,
    values: HashMap<String, i64>,
}

/// What other pods on a node change.
#[derive(Debug, Default, Clone)]
pub(crate) struct Delta {
    existing_anti: BTreeMap<String, i64>,
    affine: i64,
    anti: Vec<i64>,
}

/// Matches the pods that all of these terms mean.
pub(crate) fn matcher_of(cluster: &Cluster, terms: &[&Arc<Term>]) -> PodMatcher {
    let terms = terms.iter().map(|term| (term.namespaces(&cluster.namespaces), term.selector.clone()));
    PodMatcher::new(terms.collect(), false)
}

/// Adds the pods of each node to the value that its label has.
pub(crate) fn add_values(
    values: &mut HashMap<String, i64>,
    cluster: &Cluster,
    key: &str,
    by_node: &HashMap<String, i64>,
    weight: i64,
) {
    for (node, count) in by_node {
        let value = cluster.nodes.get(node).and_then(|node| node.labels.get(key));
        match value.map(|value| (values.get_mut(value), value)) {
            Some((Some(known), _)) => *known += count * weight,
            Some((None, value)) => drop(values.insert(value.clone(), count * weight)),
            None => {}
        }
    }
}

impl PreFilter {
    pub(crate) fn new(cluster: &mut Cluster, pod: &PodInfo) -> Self {
        let mut found = Self::default();
        for (key, by_node) in cluster.terms.anti(pod, cluster.namespace_of(pod)) {
            let values = found.existing_anti.entry(key.to_owned()).or_default();
            add_values(values, cluster, key, by_node, 1);
        }
        let Some(affinity) = pod.affinity.clone() else { return found };
        if !affinity.required.is_empty() {
            let matcher = matcher_of(cluster, &affinity.required.iter().collect::<Vec<_>>());
            found.matches_itself = matcher.matches(pod);
            cluster.count(&matcher);
            let keys: BTreeSet<&str> = affinity.required.iter().map(|term| term.topology_key.as_str()).collect();
            if let Some(by_node) = cluster.counts.by_node(&matcher) {
                for key in &keys {
                    let values = found.affinity.entry((*key).to_owned()).or_default();
                    add_values(values, cluster, key, by_node, 1);
                }
                let on = |node: &String| cluster.nodes.get(node);
                let has_key = |node: &NodeInfo| keys.iter().any(|key| node.labels.contains_key(*key));
                let counted = by_node.iter().filter(|(node, _)| on(node).is_some_and(has_key));
                found.affine = counted.map(|(_, count)| count).sum();
            }
            found.all_affinity_terms = Some(matcher);
        }
        for term in &affinity.required_anti {
            let matcher = matcher_of(cluster, &[term]);
            cluster.count(&matcher);
            let mut values = HashMap::new();
            if let Some(by_node) = cluster.counts.by_node(&matcher) {
                add_values(&mut values, cluster, &term.topology_key, by_node, 1);
            }
            found.anti.push(AntiTerm { topology_key: term.topology_key.clone(), matcher, values });
        }
        found
    }

    /// Whether every node has what the affinity terms want (upstream's `satisfyPodAffinity`).
    fn is_beside_wanted(&self, view: &NodeView<'_>) -> bool {
        let mut all = true;
        for (key, values) in &self.affinity {
            let Some(value) = view.node.labels.get(key) else { return false };
            all &= values.get(value).copied().unwrap_or(0) + view.affinity.affine > 0;
        }
        // The first of a series of pods that want to be together: there is no other yet, anywhere.
        all || (self.affine + view.affinity.affine == 0 && self.matches_itself)
    }

    /// Upstream's `satisfyPodAntiAffinity`.
    fn is_beside_unwanted(&self, view: &NodeView<'_>) -> bool {
        self.anti.iter().enumerate().any(|(i, term)| {
            let value = view.node.labels.get(&term.topology_key);
            let delta = view.affinity.anti.get(i).copied().unwrap_or(0);
            value.is_some_and(|value| term.values.get(value).copied().unwrap_or(0) + delta > 0)
        })
    }

    /// Upstream's `satisfyExistingPodsAntiAffinity`.
    fn is_unwanted(&self, view: &NodeView<'_>) -> bool {
        let is_more = |key: &str, count: i64| count + view.affinity.existing_anti.get(key).copied().unwrap_or(0) > 0;
        let known = self.existing_anti.iter().any(|(key, values)| {
            let value = view.node.labels.get(key);
            value.is_some_and(|value| is_more(key, values.get(value).copied().unwrap_or(0)))
        });
        known || view.affinity.existing_anti.keys().any(|key| !self.existing_anti.contains_key(key) && is_more(key, 0))
    }
}

impl Delta {
    pub(crate) fn change(&mut self, cycle: &Cycle, node: &NodeInfo, pod: &PodInfo, by: i64) {
        let known = &cycle.affinity;
        for term in pod.affinity.iter().flat_map(|affinity| &affinity.required_anti) {
            if node.labels.contains_key(&term.topology_key) && term.matches(&cycle.pod, Some(&cycle.namespace)) {
                *self.existing_anti.entry(term.topology_key.clone()).or_default() += by;
            }
        }
        if known.all_affinity_terms.as_ref().is_some_and(|terms| terms.matches(pod))
            && known.affinity.keys().any(|key| node.labels.contains_key(key))
        {
            self.affine += by;
        }
        if !known.anti.is_empty() {
            self.anti.resize(known.anti.len(), 0);
            for (term, delta) in known.anti.iter().zip(&mut self.anti) {
                *delta += if term.matcher.matches(pod) { by } else { 0 };
            }
        }
    }
}

pub(super) fn filter(cycle: &Cycle, view: &NodeView<'_>) -> Result<(), Failure> {
    let known = &cycle.affinity;
    if known.all_affinity_terms.is_some() && !known.is_beside_wanted(view) {
        return Err(Failure::unresolvable(NAME, AFFINITY));
    }
    if known.is_beside_unwanted(view) {
        return Err(Failure::unschedulable(NAME, ANTI_AFFINITY));
    }
    if known.is_unwanted(view) {
        return Err(Failure::unschedulable(NAME, EXISTING_ANTI_AFFINITY));
    }
    Ok(())
}
