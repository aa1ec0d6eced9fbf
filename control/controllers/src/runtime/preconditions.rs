//! Preconditions of deletions: what a cache has shown may have changed since. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Preconditions;

/// Exactly this object, and not another of its name.
pub(crate) fn same_object(meta: &ObjectMeta) -> Preconditions {
    Preconditions { uid: meta.uid.clone(), resource_version: None }
}

/// This object as it was seen.
pub(crate) fn same_version(meta: &ObjectMeta) -> Preconditions {
    Preconditions { resource_version: meta.resource_version.clone(), ..same_object(meta) }
}
