//! The end of a definition: its objects are deleted first, then its finalizer is removed.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_apimachinery::group_version::GroupVersion;

use crate::{
    apiserver::generate::now,
    kinds::{
        apiextensions::custom_resource_definition::{CLEANUP_FINALIZER, storage_version},
        shared::conditions,
    },
};

/// Interval of checks for remaining objects, and of retries.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Objects that are looked at and deleted at a time.
const PAGE: u32 = 500;
/// The first checks come sooner: most objects have no finalizers.
const FIRST_RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Deletes all objects of a terminating definition and removes its finalizer, until `shutdown`.
pub(super) async fn run(client: Client, definition: Value, shutdown: CancellationToken) {
    let name = definition["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let mut pause = FIRST_RECHECK_INTERVAL;
    loop {
        match delete_objects(&client, &definition).await {
            Ok(false) => match finish(&client, &name).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(name, error = %windlass_kit::client::message(&error), "failed to remove finalizer of custom resource definition; retrying")
                }
            },
            Ok(true) => tracing::debug!(name, "waiting for custom objects to be deleted"),
            Err(error) => {
                tracing::warn!(name, error = %windlass_kit::client::message(&error), "failed to delete objects of custom resource definition; retrying");
                pause = RECHECK_INTERVAL;
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(RECHECK_INTERVAL),
        }
    }
}

/// Deletes the objects. Whether some remain.
async fn delete_objects(client: &Client, definition: &Value) -> Result<bool, kube::Error> {
    let Some(resource) = resource(definition) else { return Ok(false) };
    let all: KubeApi<DynamicObject> = KubeApi::all_with(client.clone(), &resource);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let found = match all.list_metadata(&page).await {
            Ok(found) => found,
            // It was never served.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(error) => return Err(error),
        };
        for object in found.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
            delete(client, &resource, &object.metadata).await?;
        }
        match found.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    Ok(!all.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty())
}

async fn delete(client: &Client, resource: &ApiResource, metadata: &ObjectMeta) -> Result<(), kube::Error> {
    let api: KubeApi<DynamicObject> = match &metadata.namespace {
        Some(namespace) => KubeApi::namespaced_with(client.clone(), namespace, resource),
        None => KubeApi::all_with(client.clone(), resource),
    };
    match api.delete(metadata.name.as_deref().unwrap_or(""), &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// The resource in a served version.
fn resource(definition: &Value) -> Option<ApiResource> {
    let (spec, accepted) = (&definition["spec"], &definition["status"]["acceptedNames"]);
    let served = |version: &&Value| version["served"] == true;
    let versions = spec["versions"].as_array()?;
    let stored = versions.iter().filter(served).find(|version| version["name"] == storage_version(definition));
    let version = stored.or_else(|| versions.iter().find(served))?["name"].as_str()?.to_owned();
    let group = spec["group"].as_str()?.to_owned();
    Some(ApiResource {
        api_version: GroupVersion { group: &group, version: &version }.to_string(),
        group,
        version,
        kind: accepted["kind"].as_str()?.to_owned(),
        plural: accepted["plural"].as_str()?.to_owned(),
    })
}

/// Says that no object is left, and removes the finalizer.
async fn finish(client: &Client, name: &str) -> Result<(), kube::Error> {
    let definitions = super::watch::definitions(client);
    let Some(found) = definitions.get_opt(name).await? else { return Ok(()) };
    let mut current = serde_json::to_value(&found).map_err(kube::Error::SerdeError)?;
    if !conditions::get(&current, "Terminating").is_some_and(|c| c["reason"] == "InstanceDeletionCompleted") {
        let why = "removed all instances";
        conditions::set(&mut current, "Terminating", "False", "InstanceDeletionCompleted", why, &now());
        super::watch::write_status(client, &current).await?;
    }
    let Some(found) = definitions.get_opt(name).await? else { return Ok(()) };
    let mut finalizers = found.metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|finalizer| finalizer != CLEANUP_FINALIZER);
    let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": found.metadata.resource_version}});
    match definitions.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        patched => patched.map(drop),
    }
}
