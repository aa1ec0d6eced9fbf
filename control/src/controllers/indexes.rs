//! Indexes that several controllers use. Pure.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    pods,
    runtime::{Cache, CachedPod, Index, Key},
};

/// Pods by the node that they are bound to.
pub(crate) const PODS_BY_NODE: Index<CachedPod> =
    Index::new("node", |pod| pods::node_name(pod).map(str::to_owned).into_iter().collect());

/// Pods by the UID of the owner that controls them.
pub(crate) const PODS_BY_CONTROLLER: Index<CachedPod> = Index::new("controller", |pod| {
    pods::controller_of(&pod.metadata).map(|owner| owner.uid.clone()).into_iter().collect()
});

/// Pods by the claims of their volumes, as `namespace/claim`.
pub(crate) const PODS_BY_CLAIM: Index<CachedPod> = Index::new("claim", |pod| {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    pod.claims().map(|claim| Key::new(namespace, claim.name).to_string()).collect()
});

/// Pods by each of their labels, within their namespace.
pub(crate) const PODS_BY_LABEL: Index<CachedPod> = Index::new("label", |pod| {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    pod.metadata.labels.iter().flatten().map(|pair| label(namespace, pair)).collect()
});

/// No namespace holds a slash, and no value an equals sign.
fn label(namespace: &str, (key, value): (&String, &String)) -> String {
    format!("{namespace}/{key}={value}")
}

/// The pods of a namespace that a map selector matches, ordered by name; an empty one matches none.
pub(crate) fn selected(
    cache: &Cache<CachedPod>,
    namespace: &str,
    selector: &BTreeMap<String, String>,
) -> Vec<Arc<CachedPod>> {
    let values: Vec<String> = selector.iter().map(|pair| label(namespace, pair)).collect();
    let mut found = cache.by_rarest(&PODS_BY_LABEL, &values);
    found.retain(|pod| pods::selects(selector, pod.metadata.labels.as_ref()));
    found
}
