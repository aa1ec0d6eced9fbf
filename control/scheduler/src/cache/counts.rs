//! How many pods of each node a selector selects: counted once, then kept up to date with each pod, so that a pod with
//! topology spread constraints or affinity costs no look at all other pods. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::model::{PodInfo, Selector};

/// Selectors that are kept; of more, those that were not used for the longest time are dropped.
const MAX_KEPT: usize = 1024;

/// Selects pods.
#[derive(Debug, Clone)]
pub(crate) struct PodMatcher {
    /// Namespaces and selectors, all of which a pod must satisfy; none select nothing.
    terms: Vec<(BTreeSet<String>, Selector)>,
    /// Not those that are being deleted.
    living: bool,
    text: Arc<str>,
}

impl PodMatcher {
    pub(crate) fn new(terms: Vec<(BTreeSet<String>, Selector)>, living: bool) -> Self {
        let texts: Vec<_> = terms.iter().map(|(namespaces, selector)| (namespaces, selector.text())).collect();
        let text = format!("{living} {texts:?}").into();
        Self { terms, living, text }
    }

    pub(crate) fn matches(&self, pod: &PodInfo) -> bool {
        if self.terms.is_empty() || (self.living && pod.deleting) {
            return false;
        }
        let selects = |(namespaces, selector): &(BTreeSet<String>, Selector)| {
            namespaces.contains(&pod.namespace) && selector.matches(&pod.labels)
        };
        self.terms.iter().all(selects)
    }

    /// The namespaces of pods that it may select.
    fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.terms.first().into_iter().flat_map(|(namespaces, _)| namespaces)
    }
}

#[derive(Debug)]
struct Entry {
    matcher: PodMatcher,
    /// Without nodes that have none.
    by_node: HashMap<String, i64>,
    used: u64,
}

/// Counts by selector.
#[derive(Debug, Default)]
pub(crate) struct PodCounts {
    entries: HashMap<Arc<str>, Entry>,
    by_namespace: HashMap<String, Vec<Arc<str>>>,
    clock: u64,
}

impl PodCounts {
    /// Has counts for a selector from now on; `pods` are all pods that have a node.
    pub(crate) fn ensure<'a>(&mut self, matcher: &PodMatcher, pods: impl Iterator<Item = &'a PodInfo>) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&matcher.text) {
            entry.used = self.clock;
            return;
        }
        if self.entries.len() >= MAX_KEPT {
            self.drop_oldest();
        }
        let mut by_node = HashMap::new();
        for pod in pods.filter(|pod| matcher.matches(pod)) {
            if let Some(node) = &pod.node {
                *by_node.entry(node.clone()).or_insert(0) += 1;
            }
        }
        for namespace in matcher.namespaces() {
            self.by_namespace.entry(namespace.clone()).or_default().push(Arc::clone(&matcher.text));
        }
        let entry = Entry { matcher: matcher.clone(), by_node, used: self.clock };
        self.entries.insert(Arc::clone(&matcher.text), entry);
    }

    /// The counts by node of a selector that [`ensure`](Self::ensure) was called with.
    pub(crate) fn by_node(&self, matcher: &PodMatcher) -> Option<&HashMap<String, i64>> {
        self.entries.get(&matcher.text).map(|entry| &entry.by_node)
    }

    /// How many pods of a node are selected.
    pub(crate) fn on(&self, matcher: &PodMatcher, node: &str) -> i64 {
        self.by_node(matcher).and_then(|counts| counts.get(node)).copied().unwrap_or(0)
    }

    /// A pod has come to its node (1) or gone from it (−1).
    pub(super) fn change(&mut self, pod: &PodInfo, node: &str, by: i64) {
        for text in self.by_namespace.get(&pod.namespace).into_iter().flatten() {
            let Some(entry) = self.entries.get_mut(text).filter(|entry| entry.matcher.matches(pod)) else { continue };
            change(&mut entry.by_node, node, by);
        }
    }

    fn drop_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(text, _)| Arc::clone(text));
        let Some(entry) = oldest.and_then(|text| self.entries.remove(&text)) else { return };
        for namespace in entry.matcher.namespaces() {
            if let Some(texts) = self.by_namespace.get_mut(namespace) {
                texts.retain(|text| *text != entry.matcher.text);
                if texts.is_empty() {
                    self.by_namespace.remove(namespace);
                }
            }
        }
    }

    /// Every selector with its counts.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&PodMatcher, &HashMap<String, i64>)> {
        self.entries.values().map(|entry| (&entry.matcher, &entry.by_node))
    }
}

/// Changes a count by node; those that become zero are removed.
pub(super) fn change(by_node: &mut HashMap<String, i64>, node: &str, by: i64) {
    match by_node.get_mut(node) {
        Some(count) if *count + by == 0 => drop(by_node.remove(node)),
        Some(count) => *count += by,
        None => drop(by_node.insert(node.to_owned(), by)),
    }
}
