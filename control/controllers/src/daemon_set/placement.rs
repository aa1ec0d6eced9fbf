//! Which nodes a set's pods belong on, and the pod for one of them. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodTemplateSpec, Toleration},
};
use windlass_kit::objects::{node_selector, tolerations::untolerated};

use crate::pod_control::pod_of;
use crate::runtime::CachedNode;

pub(super) const HASH_LABEL: &str = "controller-revision-hash";
const GENERATION_LABEL: &str = "pod-template-generation";
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";

const NODE_NAME_FIELD: &str = "metadata.name";

/// Taints that a set's pods tolerate, and their effects.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const NETWORK_UNAVAILABLE: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// What a node is for a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit {
    /// It should have a pod.
    pub(super) run: bool,
    /// A pod that it has may stay.
    pub(super) stay: bool,
}

/// The tolerations of a set's pods: the template's and those for the conditions of nodes.
pub(super) fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut all = spec.tolerations.clone().unwrap_or_default();
    let of_host = (spec.host_network == Some(true)).then_some(NETWORK_UNAVAILABLE);
    for (key, effect) in TOLERATED.into_iter().chain(of_host) {
        let added = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        let same = |known: &Toleration| {
            known.key == added.key
                && known.effect == added.effect
                && known.operator == added.operator
                && known.value.as_deref().unwrap_or_default().is_empty()
        };
        match all.iter_mut().find(|known| same(known)) {
            // One with a time limit would end the pod.
            Some(known) => *known = added,
            None => all.push(added),
        }
    }
    all
}

/// Whether the node should have a pod of the template, and may keep one.
pub(super) fn fit(template: &PodTemplateSpec, node: &CachedNode) -> Fit {
    static NO_SPEC: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
    let spec = template.spec.as_ref().unwrap_or(&NO_SPEC);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let labels = node.metadata.labels.as_ref().unwrap_or(&NO_LABELS);
    let named = spec.node_name.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == name);
    if !named || !node_selector::pod_matches(spec, name, labels) {
        return Fit { run: false, stay: false };
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tolerations = tolerations(spec);
    Fit {
        run: untolerated(taints, &tolerations, &["NoSchedule", "NoExecute"]).is_none(),
        stay: untolerated(taints, &tolerations, &["NoExecute"]).is_none(),
    }
}

/// Which nodes fit a set. Nodes change it one by one; a pod that changes does not.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// The set's generation and the number of changes of nodes that it is of.
    of: Option<(Option<i64>, u64)>,
    fits: Arc<BTreeMap<String, Fit>>,
}

/// A node has come, gone or changed.
#[derive(Debug)]
pub(super) struct NodeChange<'a> {
    /// The number of this change.
    pub(super) number: u64,
    pub(super) name: &'a str,
}

impl Placement {
    /// The nodes, if they are known for this generation of the set and this number of changes.
    pub(super) fn known(&self, of: (Option<i64>, u64)) -> Option<Arc<BTreeMap<String, Fit>>> {
        (self.of == Some(of)).then(|| Arc::clone(&self.fits))
    }

    pub(super) fn set(&mut self, of: (Option<i64>, u64), fits: BTreeMap<String, Fit>) -> Arc<BTreeMap<String, Fit>> {
        (self.of, self.fits) = (Some(of), Arc::new(fits));
        Arc::clone(&self.fits)
    }

    /// Takes over a change, unless an earlier one was missed. `fit` is `None` for a node that has gone.
    pub(super) fn follow(&mut self, generation: Option<i64>, change: &NodeChange<'_>, fit: Option<Fit>) {
        if self.of.is_none_or(|of| of != (generation, change.number - 1)) {
            return;
        }
        self.of = Some((generation, change.number));
        if self.fits.get(change.name) == fit.as_ref() {
            return;
        }
        let fits = Arc::make_mut(&mut self.fits);
        match fit {
            Some(fit) => drop(fits.insert(change.name.to_owned(), fit)),
            None => drop(fits.remove(change.name)),
        }
    }
}

/// Whether something of a node has changed on which [`fit`] depends.
pub(super) fn has_changed(old: &CachedNode, new: &CachedNode) -> bool {
    let taints = |node: &CachedNode| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    old.metadata.labels != new.metadata.labels || taints(old) != taints(new)
}

/// The pod for a node, of the revision with this hash. The scheduler binds it: its affinity names the node.
pub(super) fn new_pod(set: &DaemonSet, template: &PodTemplateSpec, hash: &str, node: &str) -> Pod {
    let mut pod = pod_of(template, set);
    let labels = pod.metadata.labels.get_or_insert_with(BTreeMap::new);
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    if let Some(generation) = set.metadata.annotations.as_ref().and_then(|a| a.get(GENERATION_ANNOTATION)) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.clone());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.tolerations = Some(tolerations(spec));
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution =
        Some(for_node(affinity.required_during_scheduling_ignored_during_execution.take(), node));
    pod
}

/// A selector of one node by its name, in place of the names in each of its terms.
fn for_node(selector: Option<NodeSelector>, node: &str) -> NodeSelector {
    let named = NodeSelectorRequirement {
        key: NODE_NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let alone = || NodeSelectorTerm { match_fields: Some(vec![named.clone()]), match_expressions: None };
    let mut terms = selector.map(|selector| selector.node_selector_terms).unwrap_or_default();
    for term in &mut terms {
        term.match_fields = Some(vec![named.clone()]);
    }
    if terms.is_empty() {
        terms.push(alone());
    }
    NodeSelector { node_selector_terms: terms }
}
