//! Finalizers by which controllers hold objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::runtime::{During as _, Error, Proof, error};

/// The finalizers of an object with one of them, or without it.
pub(super) fn with_finalizer<'a>(meta: &'a ObjectMeta, finalizer: &'a str, wanted: bool) -> Vec<&'a str> {
    let others = meta.finalizers.iter().flatten().map(String::as_str).filter(|one| *one != finalizer);
    others.chain(wanted.then_some(finalizer)).collect()
}

/// Puts a finalizer on an object, unless the object changed meanwhile.
pub(super) async fn hold<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    write(api, object, finalizer, true).await
}

/// Removes a finalizer from an object, unless the object changed meanwhile: what it protected may be deleted. The
/// `Proof` that it is no longer needed comes from the API, not from a cache.
pub(super) async fn let_go<K>(api: &Api<K>, object: &K, finalizer: &str, _: Proof) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    write(api, object, finalizer, false).await
}

async fn write<K>(api: &Api<K>, object: &K, finalizer: &str, wanted: bool) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let metadata = object.meta();
    let before = metadata.finalizers.as_deref().unwrap_or_default();
    if before.iter().any(|one| one == finalizer) == wanted {
        return Ok(());
    }
    let finalizers = with_finalizer(metadata, finalizer, wanted);
    let name = metadata.name.clone().unwrap_or_default();
    let patch = json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}});
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    error::ignore_deleted(patched).during("write the finalizers of", &name).map(drop)
}
