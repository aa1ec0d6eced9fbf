//! Endpoints controller: EndpointSlices and Endpoints of services with a selector. `model`, `slices` and `legacy` are
//! pure and may not import tokio or kube's client.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Endpoints, Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource as _, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use windlass_kit::events::{Recorder, Severity};

use super::{
    cache::{Cache, Informer, SyncPoint},
    error::{self, Context, Error},
    key::Key,
    pods,
    workqueue::{Outcome, WorkQueue},
};

mod legacy;
mod model;
mod slices;
#[cfg(test)]
mod tests;

/// How long to wait for the cache to show our own writes; the watch event itself enqueues the service earlier.
const UNHEARD: Duration = Duration::from_secs(1);

/// The controller's inputs and queue of services.
pub(crate) struct EndpointsController {
    client: Client,
    services: Cache<Service>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    slices: Cache<EndpointSlice>,
    endpoints: Cache<Endpoints>,
    queue: WorkQueue<Key>,
    recorder: Recorder,
    state: Arc<Mutex<HashMap<Key, Remembered>>>,
}

/// What is remembered of a service between runs.
#[derive(Debug, Default)]
struct Remembered {
    /// Our last write of a slice.
    written: Option<SyncPoint>,
    /// When the oldest change that no write reports yet was heard.
    trigger: Option<Timestamp>,
}

/// The watches that the controller listens to.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) services: &'a mut Informer<Service>,
    pub(crate) pods: &'a mut Informer<Pod>,
    pub(crate) nodes: &'a mut Informer<Node>,
    pub(crate) slices: &'a mut Informer<EndpointSlice>,
    pub(crate) endpoints: &'a mut Informer<Endpoints>,
}

impl EndpointsController {
    pub(crate) fn new(client: Client, sources: Sources<'_>) -> Self {
        let Sources { services, pods, nodes, slices, endpoints } = sources;
        let queue = WorkQueue::new();
        let state: Arc<Mutex<HashMap<Key, Remembered>>> = Arc::default();
        let this = Self {
            recorder: Recorder::new(client.clone(), "endpoint-slice-controller", ""),
            client,
            services: services.cache(),
            pods: pods.cache(),
            nodes: nodes.cache(),
            slices: slices.cache(),
            endpoints: endpoints.cache(),
            queue: queue.clone(),
            state: Arc::clone(&state),
        };
        let enqueue = move |key: Key| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.entry(key.clone()).or_default().trigger.get_or_insert_with(Timestamp::now);
            drop(state);
            queue.add(key);
        };
        let on_service = enqueue.clone();
        services.on_change(move |old, new| {
            if let Some(service) = new.or(old) {
                on_service(Key::of(&service.metadata));
            }
        });
        let (all, on_pod) = (this.services.clone(), enqueue.clone());
        pods.on_change(move |old, new| {
            if !model::matters(old.map(AsRef::as_ref), new.map(AsRef::as_ref)) {
                return;
            }
            let Some(namespace) = new.or(old).and_then(|p| p.namespace()) else { return };
            for service in all.in_namespace(&namespace) {
                let Some(selector) = service.spec.as_ref().and_then(|s| s.selector.as_ref()) else { continue };
                if [old, new].into_iter().flatten().any(|p| pods::selects(selector, p.metadata.labels.as_ref())) {
                    on_pod(Key::of(&service.metadata));
                }
            }
        });
        let (all, on_node) = (this.services.clone(), enqueue);
        nodes.on_change(move |old, new| {
            if old.and_then(|n| model::zone(n)) != new.and_then(|n| model::zone(n)) {
                all.all().iter().for_each(|service| on_node(Key::of(&service.metadata)));
            }
        });
        let queue = this.queue.clone();
        slices.on_change(move |old, new| {
            for slice in [old, new].into_iter().flatten() {
                if let Some(key) = service_of(slice) {
                    queue.add(key);
                }
            }
        });
        let queue = this.queue.clone();
        endpoints.on_change(move |old, new| {
            if let Some(object) = new.or(old) {
                queue.add(Key::of(&object.metadata));
            }
        });
        this
    }

    pub(crate) fn queue(&self) -> &WorkQueue<Key> {
        &self.queue
    }

    fn remember<T>(&self, key: &Key, f: impl FnOnce(&mut Remembered) -> T) -> T {
        f(self.state.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default())
    }

    /// One run for one service.
    pub(crate) async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(service) = self.services.get(&key) else {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            return self.service_deleted(&key).await;
        };
        let managed =
            service.metadata.deletion_timestamp.is_none() && service.spec.as_ref().is_some_and(model::has_endpoints);
        if !managed {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            return Ok(Outcome::Done);
        }
        if self.remember(&key, |s| s.written.is_some_and(|mark| !self.slices.reached(mark))) {
            return Ok(Outcome::After(UNHEARD));
        }
        let trigger = self.remember(&key, |s| s.trigger.take()).unwrap_or_else(Timestamp::now);
        let pods = self.pods.in_namespace(&key.namespace);
        let zone = |node: &str| self.nodes.get(&Key::new("", node)).and_then(|n| model::zone(&n));
        let groups = model::desired(&service, &pods, zone);
        let legacy = legacy::reconcile(&service, &groups, self.endpoints.get(&key).as_deref());
        let ours: Vec<Arc<EndpointSlice>> = self
            .slices
            .in_namespace(&key.namespace)
            .into_iter()
            .filter(|slice| service_of(slice).as_ref() == Some(&key))
            .collect();
        let plan = slices::reconcile(&service, groups, &ours);
        let result = self.write(&key, plan, legacy, trigger).await;
        if let Err(error) = &result {
            self.remember(&key, |s| s.trigger = Some(s.trigger.map_or(trigger, |t| t.min(trigger))));
            if let Error::Api { source, .. } = error {
                if error::is_namespace_terminating(source) {
                    return Ok(Outcome::Done);
                }
                if !error::is_conflict(source) && !error::is_not_found(source) {
                    let text = format!("Error updating Endpoint Slices for Service {key}: {}", error::message(source));
                    self.recorder.record(
                        &service.object_ref(&()),
                        Severity::Warning,
                        "FailedToUpdateEndpointSlices",
                        text,
                    );
                }
            }
        }
        result.map(|()| Outcome::Done)
    }

    async fn write(
        &self,
        key: &Key,
        plan: slices::Plan,
        legacy: Option<Endpoints>,
        trigger: Timestamp,
    ) -> Result<(), Error> {
        // Traffic depends on slices: they go first.
        if !plan.is_empty() {
            let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.namespace);
            let params = PostParams::default();
            let wrote = |slice: &EndpointSlice| {
                let mark = self.slices.sync_point(slice.metadata.resource_version.as_deref());
                self.remember(key, |s| s.written = Some(mark));
            };
            let stamp = |mut slice: EndpointSlice| {
                slice.annotations_mut().insert(slices::TRIGGER.to_owned(), trigger.to_string());
                slice
            };
            let creates = plan.create.into_iter().map(stamp).map(|slice| {
                let (api, params, wrote) = (&api, &params, &wrote);
                async move { api.create(params, &slice).await.map(|s| wrote(&s)).during("create a slice of", key) }
            });
            try_join_all(creates).await?;
            let updates = plan.update.into_iter().map(stamp).map(|slice| {
                let (api, params, wrote) = (&api, &params, &wrote);
                async move {
                    api.replace(&slice.name_any(), params, &slice)
                        .await
                        .map(|s| wrote(&s))
                        .during("update a slice of", key)
                }
            });
            try_join_all(updates).await?;
            let deletes = plan.delete.iter().map(|slice| {
                let api = &api;
                async move {
                    let params = DeleteParams {
                        preconditions: Some(Preconditions { uid: slice.uid(), resource_version: None }),
                        ..DeleteParams::default()
                    };
                    error::ignore_deleted(api.delete(&slice.name_any(), &params).await).during("delete a slice of", key)
                }
            });
            try_join_all(deletes).await?;
        }
        if let Some(object) = legacy {
            let api: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.namespace);
            let params = PostParams::default();
            let written = if object.metadata.resource_version.is_some() {
                api.replace(&key.name, &params, &object).await
            } else {
                match api.create(&params, &object).await {
                    // The cache has not heard of our own last write: its event wakes us.
                    Err(error) if error::is_already_exists(&error) => return Ok(()),
                    other => other,
                }
            };
            match written {
                // The same: somebody's newer write, perhaps our own, is on its way to the cache.
                Err(error) if error::is_conflict(&error) => {
                    self.queue.add_after(key.clone(), Duration::from_millis(20));
                }
                other => drop(other.during("write the Endpoints of", key)?),
            }
        }
        Ok(())
    }

    /// Slices go through their owner reference; Endpoints have none.
    async fn service_deleted(&self, key: &Key) -> Result<Outcome, Error> {
        let ours = self.endpoints.get(key).is_some_and(|e| legacy::is_ours(&e));
        if ours {
            let api: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.namespace);
            let deleted = api.delete(&key.name, &DeleteParams::default()).await;
            error::ignore_deleted(deleted).during("delete the Endpoints of", key)?;
        }
        Ok(Outcome::Done)
    }
}

/// The service of a slice that this controller manages.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let labels = slice.metadata.labels.as_ref()?;
    if labels.get(slices::MANAGED_BY).map(String::as_str) != Some(slices::MANAGER) {
        return None;
    }
    Some(Key::new(slice.namespace().unwrap_or_default(), labels.get(slices::SERVICE_NAME)?))
}
