//! Adopts and releases objects of any kind for an owner.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::Namespaced;
use crate::{
    finalizers::with_finalizer,
    runtime::{During as _, Error, Key, bounded_join, error},
};

/// The reference that makes `owner` the controller of an object.
pub(crate) fn owner_reference<O: Namespaced>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::api_version(&()).into_owned(),
        kind: O::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Makes `owner` the controller of the objects to adopt, and of those to release no longer.
///
/// # Errors
/// When the owner is terminating or another by now, when an object has changed meanwhile, and when the API refuses.
pub(crate) async fn take_over<O: Namespaced, T: Namespaced>(
    client: &Client,
    owner: &O,
    adopt: &[Arc<T>],
    release: &[Arc<T>],
) -> Result<(), Error> {
    take_over_held(client, owner, None, adopt, release).await
}

/// The same; the objects also get `finalizer` when they are adopted, and lose it when they are released.
///
/// # Errors
/// As [`take_over`].
pub(crate) async fn take_over_held<O: Namespaced, T: Namespaced>(
    client: &Client,
    owner: &O,
    finalizer: Option<&str>,
    adopt: &[Arc<T>],
    release: &[Arc<T>],
) -> Result<(), Error> {
    if adopt.is_empty() && release.is_empty() {
        return Ok(());
    }
    let key = Key::of(owner.meta());
    let objects: Api<T> = Api::namespaced(client.clone(), &key.namespace);
    if !adopt.is_empty() {
        // The cache may be stale: a terminating owner must not adopt.
        let api: Api<O> = Api::namespaced(client.clone(), &key.namespace);
        let fresh = api.get_metadata_opt(&key.name).await.during("read", &key)?;
        if !fresh.is_some_and(|f| f.uid() == owner.uid() && f.metadata.deletion_timestamp.is_none()) {
            return Err(Error::Changed(key.to_string()));
        }
    }
    let reference = owner_reference(owner);
    let owners = |object: &T, ours: bool| {
        let others = object.owner_references().iter().filter(|o| o.uid != reference.uid).cloned();
        others.chain(ours.then(|| reference.clone())).collect::<Vec<_>>()
    };
    let held =
        |object: &T, ours: bool| finalizer.map(|finalizer| owned(with_finalizer(object.meta(), finalizer, ours)));
    let adopted = bounded_join(adopt.iter().map(|object| {
        let (objects, owners, held) = (&objects, owners(object, true), held(object, true));
        async move { replace_owners(objects, &**object, &owners, held).await }
    }));
    let released = bounded_join(release.iter().map(|object| {
        let (objects, owners, held) = (&objects, owners(object, false), held(object, false));
        async move {
            match replace_owners(objects, &**object, &owners, held).await {
                // It is another's by now.
                Err(error) if error::is_invalid(&error) => Ok(()),
                answer => answer,
            }
        }
    }));
    // One that cannot be written does not keep the others.
    let (adopted, released) = tokio::join!(adopted, released);
    adopted.into_iter().collect::<Result<(), _>>().during("adopt an object for", &key)?;
    released.into_iter().collect::<Result<(), _>>().during("release an object of", &key)
}

fn owned(finalizers: Vec<&str>) -> Vec<String> {
    finalizers.into_iter().map(str::to_owned).collect()
}

/// Replaces the owner references of exactly this object, and its finalizers where given; one that is deleted is ignored.
async fn replace_owners<T: Namespaced>(
    api: &Api<T>,
    object: &T,
    owners: &[OwnerReference],
    finalizers: Option<Vec<String>>,
) -> Result<(), kube::Error> {
    let mut patch = json!({"metadata": {
        "uid": object.meta().uid,
        "resourceVersion": object.meta().resource_version,
        "ownerReferences": owners,
    }});
    if let Some(finalizers) = finalizers {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(error) if !error::is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}
