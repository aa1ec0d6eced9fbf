//! How many pods the owners of pods are to have: from the caches of the built-in kinds, of others through their scale
//! subresource. Upstream's `finders`.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, StatefulSet},
        core::v1::ReplicationController,
    },
    apimachinery::pkg::apis::meta::v1::{APIResourceList, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};

use super::expected::{Scale, Uncountable};
use crate::controllers::{
    pods,
    runtime::{Cache, Context, Key, error, kinds::group_resource},
};

/// Where scales are looked up.
pub(super) struct Scales {
    client: Client,
    controllers: Cache<ReplicationController>,
    replica_sets: Cache<ReplicaSet>,
    deployments: Cache<Deployment>,
    stateful_sets: Cache<StatefulSet>,
}

/// The group of an API version; empty for the core group.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Upstream's `verifyGroupKind`.
fn is(owner: &OwnerReference, kind: &str, groups: &[&str]) -> bool {
    owner.kind == kind && groups.contains(&group(&owner.api_version))
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
        let version = owner.api_version.as_str();
        let list = if version.contains('/') {
            self.client.list_api_group_resources(version).await
        } else {
            self.client.list_core_api_resources(version).await
        };
        let list = match list {
            Err(error) if error::is_not_found(&error) => APIResourceList::default(),
            list => list?,
        };
        let resource = resource_of(&list, owner)?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
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

/// The resource of an owner's kind, by the discovery document of its group and version. Pure.
pub(super) fn resource_of(list: &APIResourceList, owner: &OwnerReference) -> Result<ApiResource, Uncountable> {
    let (api_version, kind) = (&owner.api_version, &owner.kind);
    let of_kind = list.resources.iter().find(|resource| resource.kind == *kind && !resource.name.contains('/'));
    let Some(of_kind) = of_kind else {
        return Err(Uncountable::UnknownKind { kind: kind.clone(), api_version: api_version.clone() });
    };
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let resource = ApiResource {
        group: group(api_version).to_owned(),
        version: version.to_owned(),
        api_version: api_version.clone(),
        kind: kind.clone(),
        plural: of_kind.name.clone(),
    };
    let subresource = format!("{}/scale", of_kind.name);
    if list.resources.iter().any(|resource| resource.name == subresource && resource.kind == "Scale") {
        Ok(resource)
    } else {
        Err(Uncountable::NoScale(group_resource(&resource)))
    }
}
