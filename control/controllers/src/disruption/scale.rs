//! How many pods the owners of pods are to have: from the caches of the built-in kinds, of others through their scale
//! subresource. Upstream's `finders`.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::ReplicationController,
    },
    apimachinery::pkg::apis::meta::v1::{APIResourceList, ObjectMeta, OwnerReference},
};
use kube::{Api, Client, api::DynamicObject};

use super::expected::{Scale, Uncountable};
use crate::{
    pods,
    runtime::{
        Cache, Context, Key, error,
        rest_mapper::{self, Kind, RestMapper},
    },
};

/// Where scales are looked up.
pub(super) struct Scales {
    client: Client,
    controllers: Cache<ReplicationController>,
    replica_sets: Cache<ReplicaSet>,
    deployments: Cache<Deployment>,
    stateful_sets: Cache<StatefulSet>,
}

/// Upstream's `verifyGroupKind`.
fn is(owner: &OwnerReference, kind: &str, groups: &[&str]) -> bool {
    owner.kind == kind && groups.contains(&rest_mapper::group_of(&owner.api_version))
}

/// The scale of the object that an owner reference means, and not of another one of its name.
fn scale(meta: &ObjectMeta, owner: &OwnerReference, replicas: Option<i32>) -> Option<Scale> {
    (meta.uid.as_deref() == Some(&owner.uid)).then(|| Scale { uid: owner.uid.clone(), replicas: replicas.unwrap_or(1) })
}

impl Scales {
    pub(super) fn subscribe(context: &mut Context<Key>) -> Self {
        Self {
            client: context.client(),
            controllers: context.informer().cache(),
            replica_sets: context.informer().cache(),
            deployments: context.informer().cache(),
            stateful_sets: context.informer().cache(),
        }
    }

    /// The scale of an owner in a namespace; `None` when it does not exist.
    pub(super) async fn of(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<Scale>, Uncountable> {
        match self.cached(namespace, owner) {
            Some(scale) => Ok(Some(scale)),
            None => self.served(namespace, owner).await,
        }
    }

    fn cached(&self, namespace: &str, owner: &OwnerReference) -> Option<Scale> {
        let key = Key::new(namespace, &owner.name);
        if is(owner, "ReplicationController", &[""]) {
            let found = self.controllers.get(&key)?;
            return scale(&found.metadata, owner, found.spec.as_ref()?.replicas);
        }
        if is(owner, "StatefulSet", &["apps"]) {
            let found = self.stateful_sets.get(&key)?;
            return scale(&found.metadata, owner, found.spec.as_ref()?.replicas);
        }
        if !is(owner, "ReplicaSet", &["apps", "extensions"]) {
            return None;
        }
        let set = self.replica_sets.get(&key)?;
        let own = scale(&set.metadata, owner, set.spec.as_ref()?.replicas)?;
        match pods::controller_of(&set.metadata) {
            Some(above) if is(above, "Deployment", &["apps", "extensions"]) => {
                let deployment = self.deployments.get(&Key::new(namespace, &above.name))?;
                scale(&deployment.metadata, above, deployment.spec.as_ref()?.replicas)
            }
            // A Deployment of a group that is not known says itself how many pods it wants.
            Some(above) if above.kind == "Deployment" => None,
            _ => Some(own),
        }
    }

    /// Asks the API. Upstream's `getScaleController`.
    async fn served(&self, namespace: &str, owner: &OwnerReference) -> Result<Option<Scale>, Uncountable> {
        let kind = kind_of(&rest_mapper::document(&self.client, &owner.api_version).await?, owner)?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind.resource);
        match api.get_scale(&owner.name).await {
            Err(error) if error::is_not_found(&error) => Ok(None),
            found => {
                let found = found?;
                let replicas = found.spec.and_then(|spec| spec.replicas).unwrap_or(0);
                Ok(scale(&found.metadata, owner, Some(replicas)))
            }
        }
    }
}

/// An owner's kind, if it has a scale, by the discovery document of its group and version. Pure.
pub(super) fn kind_of(list: &APIResourceList, owner: &OwnerReference) -> Result<Arc<Kind>, Uncountable> {
    let (api_version, kind) = (&owner.api_version, &owner.kind);
    let found = RestMapper::of_document(api_version, list).find(api_version, kind);
    let found =
        found.ok_or_else(|| Uncountable::UnknownKind { kind: kind.clone(), api_version: api_version.clone() })?;
    let scale = format!("{}/scale", found.resource.plural);
    if list.resources.iter().any(|resource| resource.name == scale && resource.kind == "Scale") {
        Ok(found)
    } else {
        Err(Uncountable::NoScale(found.group_resource()))
    }
}
