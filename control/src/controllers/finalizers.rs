//! Finalizers by which controllers hold objects.

use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::runtime::{During as _, Error, error};

/// Puts one finalizer on an object or takes it off, unless the object changed meanwhile.
pub(super) async fn write_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str, wanted: bool) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let metadata = object.meta();
    let before = metadata.finalizers.as_deref().unwrap_or_default();
    if before.iter().any(|one| one == finalizer) == wanted {
        return Ok(());
    }
    let others = before.iter().map(String::as_str).filter(|one| *one != finalizer);
    let finalizers: Vec<&str> = others.chain(wanted.then_some(finalizer)).collect();
    let name = metadata.name.clone().unwrap_or_default();
    let patch = json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": finalizers}});
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    error::ignore_deleted(patched).during("write the finalizers of", &name).map(drop)
}
