//! The affinity terms of pods that have a node, each with the nodes of its pods: equal terms are looked at once, however
//! many pods have them. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::counts::change;
use crate::model::{PodInfo, Term};

/// The weight of a required affinity term of another pod (upstream's default `hardPodAffinityWeight`).
const HARD_POD_AFFINITY_WEIGHT: i64 = 1;

/// Terms by their texts.
#[derive(Debug, Default, PartialEq)]
struct Terms(BTreeMap<(i64, String), TermOnNodes>);

/// A term, and how many pods of each node have it.
#[derive(Debug)]
struct TermOnNodes {
    term: Arc<Term>,
    by_node: HashMap<String, i64>,
}

impl PartialEq for TermOnNodes {
    fn eq(&self, other: &Self) -> bool {
        self.term.text == other.term.text && self.by_node == other.by_node
    }
}

impl Terms {
    fn change(&mut self, weight: i64, term: &Arc<Term>, node: &str, by: i64) {
        let key = (weight, term.text.clone());
        let new = || TermOnNodes { term: Arc::clone(term), by_node: HashMap::new() };
        let entry = self.0.entry(key.clone()).or_insert_with(new);
        change(&mut entry.by_node, node, by);
        if entry.by_node.is_empty() {
            self.0.remove(&key);
        }
    }
}

/// What the pods that have a node want of other pods.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ExistingTerms {
    required_anti: Terms,
    /// Preferred terms and required affinity, with their weights.
    scored: Terms,
}

impl ExistingTerms {
    /// A pod has come to its node (1) or gone from it (−1).
    pub(super) fn change(&mut self, pod: &PodInfo, node: &str, by: i64) {
        let Some(affinity) = &pod.affinity else { return };
        for term in &affinity.required_anti {
            self.required_anti.change(0, term, node, by);
        }
        for term in &affinity.required {
            self.scored.change(HARD_POD_AFFINITY_WEIGHT, term, node, by);
        }
        for (weight, term) in &affinity.preferred {
            self.scored.change(*weight, term, node, by);
        }
    }

    /// The nodes of pods that must not be where `pod` is, with their numbers and the topology key.
    pub(crate) fn anti<'a>(
        &'a self,
        pod: &'a PodInfo,
        namespace: Option<&'a BTreeMap<String, String>>,
    ) -> impl Iterator<Item = (&'a str, &'a HashMap<String, i64>)> {
        let matching = self.required_anti.0.values().filter(move |entry| entry.term.matches(pod, namespace));
        matching.map(|entry| (entry.term.topology_key.as_str(), &entry.by_node))
    }

    /// The nodes of pods that like or dislike to be where `pod` is: weight, topology key, numbers.
    pub(crate) fn scored<'a>(
        &'a self,
        pod: &'a PodInfo,
        namespace: Option<&'a BTreeMap<String, String>>,
    ) -> impl Iterator<Item = (i64, &'a str, &'a HashMap<String, i64>)> {
        let matching = self.scored.0.iter().filter(move |(_, entry)| entry.term.matches(pod, namespace));
        matching.map(|((weight, _), entry)| (*weight, entry.term.topology_key.as_str(), &entry.by_node))
    }
}
