//! The terms of inter-pod affinity. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, WeightedPodAffinityTerm};

use super::{PodInfo, Selector};

/// A term of affinity or anti-affinity (upstream's `AffinityTerm`). The API has merged `matchLabelKeys` and
/// `mismatchLabelKeys` into its selector.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Term {
    namespaces: BTreeSet<String>,
    namespace_selector: Selector,
    pub(crate) selector: Selector,
    pub(crate) topology_key: String,
    /// The same for terms that mean the same.
    pub(crate) text: String,
}

impl Term {
    fn of(term: &PodAffinityTerm, pod_namespace: &str) -> Arc<Self> {
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(pod_namespace.to_owned());
        }
        let namespace_selector = Selector::of(term.namespace_selector.as_ref());
        let selector = Selector::of(term.label_selector.as_ref());
        let topology_key = term.topology_key.clone();
        let text = format!("{topology_key} {namespaces:?} {} {}", namespace_selector.text(), selector.text());
        Arc::new(Self { namespaces, namespace_selector, selector, topology_key, text })
    }

    /// Whether a pod, whose namespace has these labels, is one of those that the term means.
    pub(crate) fn matches(&self, pod: &PodInfo, namespace_labels: Option<&BTreeMap<String, String>>) -> bool {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        (self.namespaces.contains(&pod.namespace) || self.namespace_selector.matches(namespace_labels.unwrap_or(&NONE)))
            && self.selector.matches(&pod.labels)
    }

    /// The namespaces of the term, of all that there are (upstream's `mergeAffinityTermNamespacesIfNotEmpty`).
    pub(crate) fn namespaces(&self, all: &BTreeMap<String, BTreeMap<String, String>>) -> BTreeSet<String> {
        let selected = all.iter().filter(|(_, labels)| self.namespace_selector.matches(labels));
        self.namespaces.iter().cloned().chain(selected.map(|(name, _)| name.clone())).collect()
    }
}

/// The inter-pod affinity of a pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PodAffinity {
    pub(crate) required: Vec<Arc<Term>>,
    pub(crate) required_anti: Vec<Arc<Term>>,
    /// With their weights; those of anti-affinity are negative.
    pub(crate) preferred: Vec<(i64, Arc<Term>)>,
}

impl PodAffinity {
    /// `None` without terms of either kind.
    pub(crate) fn of(affinity: Option<&Affinity>, namespace: &str) -> Option<Arc<Self>> {
        let (with, apart) = (affinity?.pod_affinity.as_ref(), affinity?.pod_anti_affinity.as_ref());
        let terms = |terms: Option<&Vec<PodAffinityTerm>>| -> Vec<_> {
            terms.into_iter().flatten().map(|term| Term::of(term, namespace)).collect()
        };
        let weighted = |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<_> {
            let weigh = |term: &WeightedPodAffinityTerm| {
                (sign * i64::from(term.weight), Term::of(&term.pod_affinity_term, namespace))
            };
            terms.into_iter().flatten().map(weigh).collect()
        };
        let mut preferred =
            weighted(with.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()), 1);
        preferred
            .extend(weighted(apart.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()), -1));
        let found = Self {
            required: terms(with.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            required_anti: terms(apart.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
            preferred,
        };
        let has_any = !(found.required.is_empty() && found.required_anti.is_empty() && found.preferred.is_empty());
        has_any.then(|| Arc::new(found))
    }

    /// A text of the required terms.
    pub(crate) fn required_text(&self) -> String {
        let texts = |terms: &[Arc<Term>]| terms.iter().map(|term| term.text.clone()).collect::<Vec<_>>();
        format!("{:?}", (texts(&self.required), texts(&self.required_anti)))
    }
}
