//! Follows the definitions: names and establishes them, keeps the catalog, and begins their cleanup.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{cleanup, definition, naming};
use crate::{
    apiserver::{Api, generate::now},
    store::{ResourceId, Store},
};

/// The pause before a failed write is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

const GROUP_RESOURCE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The definitions, as objects of the API.
pub(super) fn definitions(client: &Client) -> KubeApi<DynamicObject> {
    let resource = ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    };
    KubeApi::all_with(client.clone(), &resource)
}

/// Writes the status of a definition, as it was read.
pub(super) async fn write_status(client: &Client, definition: &Value) -> Result<(), kube::Error> {
    let metadata = &definition["metadata"];
    let name = metadata["name"].as_str().unwrap_or("");
    let patch = json!({"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": definition["status"]});
    match definitions(client).patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        // Changed or deleted meanwhile: its event follows.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        written => written.map(drop),
    }
}

/// Serves custom resources.
#[derive(Debug)]
pub(crate) struct CustomResources {
    api: Api,
    store: Store,
    resource: ResourceId,
    /// What is served: the fingerprint of each definition.
    served: Mutex<BTreeMap<String, String>>,
    /// The uid and generation of each definition whose schemas were checked.
    checked: Mutex<BTreeMap<String, (Value, Value)>>,
}

impl CustomResources {
    /// Serves the definitions of the store, as they are.
    pub(crate) fn load(api: &Api) -> Self {
        let store = api.store().clone();
        let resource = store.resource(GROUP_RESOURCE);
        let all = Self { api: api.clone(), store, resource, served: Mutex::default(), checked: Mutex::default() };
        for definition in all.list() {
            all.serve(&definition);
        }
        all
    }

    fn checked(&self) -> MutexGuard<'_, BTreeMap<String, (Value, Value)>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> Vec<Value> {
        self.store.list(self.resource, None).0.iter().map(|object| object.value()).collect()
    }

    /// Keeps the catalog's entry of a definition.
    fn serve(&self, definition: &Value) {
        if !definition::is_served(definition) {
            return;
        }
        let name = definition["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let fingerprint = definition::fingerprint(definition);
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if served.get(&name) != Some(&fingerprint) {
            self.api.catalogs().put(&name, definition::resource_of(definition));
            served.insert(name, fingerprint);
        }
    }

    /// Follows the definitions until `shutdown`. `client` has all rights.
    pub(crate) async fn run(&self, client: Client, shutdown: CancellationToken) {
        let mut cleanups: JoinSet<String> = JoinSet::new();
        let mut ending: Vec<String> = Vec::new();
        let mut revision = 0;
        let mut watch = None;
        loop {
            // From a full list at first, and after a watch that was too slow.
            let mut following = match watch.take() {
                Some(following) => following,
                None => {
                    let at = self.store.revision();
                    match self.store.watch(self.resource, at) {
                        Ok(following) => following,
                        Err(_) => return,
                    }
                }
            };
            let settled = self.settle(&client, &mut cleanups, &mut ending, &shutdown).await;
            let pause = if settled { Duration::MAX } else { RETRY_INTERVAL };
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(done) = cleanups.join_next(), if !cleanups.is_empty() => {
                    if let Ok(name) = done {
                        ending.retain(|one| *one != name);
                    }
                }
                events = following.next() => match events {
                    Ok(_) => revision = following.revision(),
                    Err(crate::store::Error::Closed) => break,
                    Err(error) => {
                        tracing::warn!(%error, revision, "watch of custom resource definitions was too slow; listing again");
                        continue;
                    }
                },
                () = tokio::time::sleep(pause.min(Duration::from_secs(3600))) => {}
            }
            watch = Some(following);
        }
        cleanups.abort_all();
    }

    /// Brings names, conditions and the catalog to what the definitions say. Whether nothing is left to retry.
    async fn settle(
        &self,
        client: &Client,
        cleanups: &mut JoinSet<String>,
        ending: &mut Vec<String>,
        shutdown: &CancellationToken,
    ) -> bool {
        let mut all = self.list();
        // The oldest first: of two that want one name it has it.
        all.sort_by_key(|definition| {
            let metadata = &definition["metadata"];
            (metadata["creationTimestamp"].to_string(), metadata["name"].to_string())
        });
        self.forget(&all);
        let mut settled = true;
        for at in 0..all.len() {
            let definition = &all[at];
            let name = definition["metadata"]["name"].as_str().unwrap_or("").to_owned();
            if !definition["metadata"]["deletionTimestamp"].is_null() {
                self.serve(definition);
                if !ending.contains(&name) {
                    ending.push(name.clone());
                    let cleanup = cleanup::run(client.clone(), definition.clone(), shutdown.child_token());
                    cleanups.spawn(async move {
                        cleanup.await;
                        name
                    });
                }
                continue;
            }
            match self.establish(client, &all, at).await {
                Ok(Some(changed)) => all[at] = changed,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(name, %error, "failed to write status of custom resource definition; retrying");
                    settled = false;
                }
            }
        }
        settled
    }

    /// Takes definitions that are no longer there from the catalog.
    fn forget(&self, all: &[Value]) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.retain(|name, _| {
            let there = all.iter().any(|definition| definition["metadata"]["name"] == name.as_str());
            if !there {
                self.api.catalogs().remove(name);
            }
            there
        });
        drop(served);
        self.checked().retain(|name, _| all.iter().any(|definition| definition["metadata"]["name"] == name.as_str()));
    }

    /// Names and establishes one definition; the definition with its new status.
    async fn establish(&self, client: &Client, all: &[Value], at: usize) -> Result<Option<Value>, kube::Error> {
        let definition = &all[at];
        let group = &definition["spec"]["group"];
        let same_group = |(other, _): &(usize, &Value)| *other != at;
        let others: Vec<Value> = all
            .iter()
            .enumerate()
            .filter(same_group)
            .filter(|(_, other)| other["spec"]["group"] == *group)
            .map(|(_, other)| other.clone())
            .collect();
        let mut named = naming::named(definition, &others, &now());
        let metadata = &definition["metadata"];
        let name = metadata["name"].as_str().unwrap_or("").to_owned();
        let state = (metadata["uid"].clone(), metadata["generation"].clone());
        let is_checked = self.checked().get(&name) == Some(&state);
        if !is_checked {
            naming::check_structure(&mut named, &now());
        }
        let changed = named != *definition;
        if changed {
            write_status(client, &named).await?;
        }
        if !is_checked {
            self.checked().insert(name, state);
        }
        if changed {
            // Established by the event of this write.
            return Ok(Some(named));
        }
        // Served before it says so: clients begin when they see the condition.
        self.serve(definition);
        if let Some(established) = naming::established(definition, &now()) {
            write_status(client, &established).await?;
            return Ok(Some(established));
        }
        Ok(None)
    }
}
