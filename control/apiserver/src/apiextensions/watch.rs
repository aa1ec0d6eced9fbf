//! Follows the definitions: names and establishes them, keeps the catalog, and begins their cleanup.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{cleanup, conversion_webhook::ConversionWebhooks, definition, naming};
use crate::{
    apiserver::{Api, generate::now},
    kinds::shared::conditions,
    store::{Object, ResourceId, Store},
};

/// The pause before a failed write is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Upstream's names of its controllers' start, and of their first look at all definitions.
const CONTROLLERS_HOOK: &str = "start-apiextensions-controllers";
const SYNCED_HOOK: &str = "crd-informer-synced";

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
    webhooks: ConversionWebhooks,
    resource: ResourceId,
    /// What is served: the fingerprint of each definition.
    served: Mutex<BTreeMap<String, String>>,
    /// The uid and generation of each definition whose schemas were checked.
    checked: Mutex<BTreeMap<String, (Value, Value)>>,
}

/// What is kept of a definition: each is large, and is decoded only when it, or what it waits for, has changed.
#[derive(Debug)]
struct Known {
    revision: u64,
    /// The oldest first: of two that want one name it has it.
    created: String,
    group: String,
    accepted_names: Value,
    /// It has all names that it asks for and is served as it is: nothing of others can change that.
    is_settled: bool,
}

impl Known {
    fn of(revision: u64, definition: &Value) -> Self {
        Self {
            revision,
            created: definition["metadata"]["creationTimestamp"].as_str().unwrap_or("").to_owned(),
            group: definition["spec"]["group"].as_str().unwrap_or("").to_owned(),
            accepted_names: definition["status"]["acceptedNames"].clone(),
            is_settled: false,
        }
    }
}

/// The definitions by name.
type Definitions = BTreeMap<String, Known>;

/// Reads those that have changed; gives the names of those that are not settled, the oldest first.
fn take_in(known: &mut Definitions, objects: &BTreeMap<String, Arc<Object>>) -> Vec<String> {
    for (name, object) in objects {
        if known.get(name).is_none_or(|known| known.revision != object.revision) {
            known.insert(name.clone(), Known::of(object.revision, &object.value()));
        }
    }
    let waiting = known.iter().filter(|(_, one)| !one.is_settled);
    let mut due: Vec<(&str, &str)> = waiting.map(|(name, one)| (one.created.as_str(), name.as_str())).collect();
    due.sort_unstable();
    due.into_iter().map(|(_, name)| name.to_owned()).collect()
}

impl CustomResources {
    /// Serves the definitions of the store, as they are.
    pub(crate) fn load(api: &Api, webhooks: &ConversionWebhooks) -> Self {
        let store = api.store().clone();
        let resource = store.resource(GROUP_RESOURCE);
        let all = Self {
            api: api.clone(),
            store,
            webhooks: webhooks.clone(),
            resource,
            served: Mutex::default(),
            checked: Mutex::default(),
        };
        for object in all.store.list(resource, None).0 {
            all.serve(&object.value());
        }
        [CONTROLLERS_HOOK, SYNCED_HOOK].into_iter().for_each(|hook| api.post_start_hooks().add(hook));
        all
    }

    fn checked(&self) -> MutexGuard<'_, BTreeMap<String, (Value, Value)>> {
        self.checked.lock()
    }

    /// Keeps the catalog's entry of a definition.
    fn serve(&self, definition: &Value) {
        if !definition::is_served(definition) {
            return;
        }
        let name = definition["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let fingerprint = definition::fingerprint(definition);
        let mut served = self.served.lock();
        if served.get(&name) != Some(&fingerprint) {
            self.api.catalogs().put(&name, definition::resource_of(definition, &self.webhooks));
            served.insert(name, fingerprint);
        }
    }

    /// Follows the definitions until `shutdown`. `client` has all rights.
    pub(crate) async fn run(&self, client: Client, shutdown: CancellationToken) {
        let mut cleanups: JoinSet<String> = JoinSet::new();
        let mut ending: Vec<String> = Vec::new();
        let mut known = Definitions::new();
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
            self.api.post_start_hooks().finish(CONTROLLERS_HOOK);
            let settled = self.settle(&client, &mut known, (&mut cleanups, &mut ending), &shutdown).await;
            self.api.post_start_hooks().finish(SYNCED_HOOK);
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
        known: &mut Definitions,
        (cleanups, ending): (&mut JoinSet<String>, &mut Vec<String>),
        shutdown: &CancellationToken,
    ) -> bool {
        let objects: BTreeMap<String, Arc<Object>> = self
            .store
            .list(self.resource, None)
            .0
            .into_iter()
            .map(|object| (object.key.name.clone(), object))
            .collect();
        self.forget(known, &objects);
        let mut settled = true;
        for name in take_in(known, &objects) {
            let Some(definition) = objects.get(&name).map(|object| object.value()) else { continue };
            if !definition["metadata"]["deletionTimestamp"].is_null() {
                self.serve(&definition);
                if !ending.contains(&name) {
                    ending.push(name.clone());
                    let cleanup = cleanup::run(client.clone(), definition, shutdown.child_token());
                    cleanups.spawn(async move {
                        cleanup.await;
                        name
                    });
                }
                continue;
            }
            let changed = self.establish(client, known, &definition).await;
            match (changed, known.get_mut(&name)) {
                // Its event follows.
                (Ok(Some(changed)), Some(one)) => one.accepted_names = changed["status"]["acceptedNames"].clone(),
                (Ok(None), Some(one)) => one.is_settled = conditions::is_true(&definition, "NamesAccepted"),
                (Ok(_), None) => {}
                (Err(error), _) => {
                    tracing::warn!(name, error = %windlass_kit::client::message(&error), "failed to write status of custom resource definition; retrying");
                    settled = false;
                }
            }
            // A chart may bring a hundred of them, and there are few threads.
            tokio::task::yield_now().await;
        }
        settled
    }

    /// Takes definitions that are no longer there from the catalog.
    fn forget(&self, known: &mut Definitions, objects: &BTreeMap<String, Arc<Object>>) {
        known.retain(|name, _| objects.contains_key(name));
        let mut served = self.served.lock();
        served.retain(|name, _| {
            let there = objects.contains_key(name);
            if !there {
                self.api.catalogs().remove(name);
            }
            there
        });
        drop(served);
        self.checked().retain(|name, _| objects.contains_key(name));
    }

    /// Names and establishes one definition; the definition with its new status.
    async fn establish(
        &self,
        client: &Client,
        known: &Definitions,
        definition: &Value,
    ) -> Result<Option<Value>, kube::Error> {
        let metadata = &definition["metadata"];
        let name = metadata["name"].as_str().unwrap_or("").to_owned();
        let group = definition["spec"]["group"].as_str().unwrap_or("");
        let others = known.iter().filter(|(other, one)| **other != name && one.group == group);
        let mut named = naming::named(definition, others.map(|(_, other)| &other.accepted_names), &now());
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

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{DEFINITIONS, definition},
        *,
    };
    use crate::apiserver::tests::{call, with_namespace};

    #[tokio::test]
    async fn a_change_costs_what_changed_and_what_waits() {
        let api = with_namespace().await;
        let all = [("widgets", "Widget"), ("gadgets", "Gadget"), ("sprockets", "Sprocket")];
        for (plural, kind) in all {
            assert_eq!(call(&api, "POST", DEFINITIONS, definition(plural, kind)).await.code, 201);
        }
        let store = api.store();
        let objects = || -> BTreeMap<String, Arc<Object>> {
            let listed = store.list(store.resource(GROUP_RESOURCE), None).0;
            listed.into_iter().map(|object| (object.key.name.clone(), object)).collect()
        };
        let mut known = Definitions::new();
        assert_eq!(take_in(&mut known, &objects()).len(), all.len());
        known.values_mut().for_each(|one| one.is_settled = true);
        assert_eq!(take_in(&mut known, &objects()), [""; 0]);
        let path = format!("{DEFINITIONS}/gadgets.test.example");
        let labelled = call(&api, "PATCH", &path, json!({"metadata": {"labels": {"a": "b"}}})).await;
        assert_eq!(labelled.code, 200, "{}", labelled.body);
        assert_eq!(take_in(&mut known, &objects()), ["gadgets.test.example"]);
    }
}
