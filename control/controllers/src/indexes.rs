//! Indexes that several controllers use. Pure.

use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Resource;
use windlass_kit::objects::label_selector::Selector;

use super::{
    pods,
    runtime::{Cache, CachedPod, Index, Key},
};

/// Pods by the node that they are bound to.
pub(crate) const PODS_BY_NODE: Index<CachedPod> =
    Index::new("node", |pod| pods::node_name(pod).map(str::to_owned).into_iter().collect());

/// Pods by the UID of the owner that controls them.
pub(crate) const PODS_BY_CONTROLLER: Index<CachedPod> = Index::new("controller", controller_uid);

/// Label of a slice with the name of its service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The service that a slice belongs to, by its label.
pub(crate) fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name))
}

/// The UID of the owner that controls an object.
pub(crate) fn controller_uid<T: Resource>(object: &T) -> Vec<String> {
    pods::controller_of(object.meta()).map(|owner| owner.uid.clone()).into_iter().collect()
}

/// The same, and for an object without such an owner its namespace.
pub(crate) fn owner_or_namespace<T: Resource>(object: &T) -> Vec<String> {
    let meta = object.meta();
    vec![match pods::controller_of(meta) {
        Some(owner) => owner.uid.clone(),
        None => ownerless(meta.namespace.as_deref().unwrap_or_default()),
    }]
}

/// No UID holds a slash.
fn ownerless(namespace: &str) -> String {
    format!("/{namespace}")
}

/// The objects of a namespace that the owner with this UID controls, and those without a controller. `index`: by
/// [`owner_or_namespace`].
pub(crate) fn owned_or_ownerless<T: Resource>(
    cache: &Cache<T>,
    index: &Index<T>,
    namespace: &str,
    uid: &str,
) -> Vec<Arc<T>> {
    let mut found = cache.by_index(index, uid);
    found.retain(|object| object.meta().namespace.as_deref() == Some(namespace));
    found.extend(cache.by_index(index, &ownerless(namespace)));
    found
}

/// Pods by the claims of their volumes, as `namespace/claim`.
pub(crate) const PODS_BY_CLAIM: Index<CachedPod> = Index::new("claim", |pod| {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    pod.claims().map(|claim| Key::new(namespace, claim.name).to_string()).collect()
});

/// Pods by each of their labels, within their namespace.
pub(crate) const PODS_BY_LABEL: Index<CachedPod> = Index::new("label", |pod| {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    pod.metadata.labels.iter().flatten().map(|(k, v)| label(namespace, (k, v))).collect()
});

/// No namespace holds a slash, and no value an equals sign.
fn label(namespace: &str, (key, value): (&str, &str)) -> String {
    format!("{namespace}/{key}={value}")
}

/// The pods of a namespace that a selector matches, ordered by name; an empty one matches none.
///
/// A selector that requires no value of any label is compared with all pods of the namespace.
pub(crate) fn selected(cache: &Cache<CachedPod>, namespace: &str, selector: Selector<'_>) -> Vec<Arc<CachedPod>> {
    if selector.is_empty() {
        return Vec::new();
    }
    let values: Vec<String> = selector.pairs().map(|(k, v)| label(namespace, (k, v))).collect();
    let mut found = if !values.is_empty() {
        cache.by_rarest(&PODS_BY_LABEL, &values)
    } else if let Some((key, values)) = selector.one_of() {
        let with = |value: &str| cache.by_index(&PODS_BY_LABEL, &label(namespace, (key, value)));
        let mut found: Vec<Arc<CachedPod>> = values.iter().flat_map(|value| with(value)).collect();
        found.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        found.dedup_by(|one, other| one.metadata.name == other.metadata.name);
        found
    } else {
        cache.in_namespace(namespace)
    };
    found.retain(|pod| selector.matches(pod.metadata.labels.as_ref()));
    found
}
