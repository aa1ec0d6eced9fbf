//! What informers cache, and what of it is kept. What a controller must not read of a type is not in the type: see [`CachedPod`],
//! [`CachedNode`], [`CachedSecret`]. A type that is cached as k8s-openapi has it says so in the file of the controller that owns
//! it. Pure.
//!
//! [`CachedPod`]: super::CachedPod
//! [`CachedNode`]: super::CachedNode
//! [`CachedSecret`]: super::CachedSecret

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, api::DynamicObject, core::PartialObjectMeta};
use serde::de::DeserializeOwned;

/// A type that informers cache: one of k8s-openapi or a form of one, `PartialObjectMeta` of one, or either dynamic form.
pub(crate) trait Cached: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    /// Drops what no controller reads; by default the long parts of the metadata.
    fn trim(&mut self) {
        trim_meta(self.meta_mut());
    }
}

impl Cached for DynamicObject {}

/// Keeps identity, version, owners and finalizers.
impl<K> Cached for PartialObjectMeta<K>
where
    K: Resource + Clone + Debug + Send + Sync + 'static,
{
    fn trim(&mut self) {
        trim_meta(&mut self.metadata);
        self.types = None;
        self.metadata.labels = None;
        self.metadata.annotations = None;
    }
}

/// Drops what only clients that write whole objects need.
pub(super) fn trim_meta(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    meta.self_link = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        annotations.remove("windlass.io/last-applied");
        if annotations.is_empty() {
            meta.annotations = None;
        }
    }
}
