//! Endpoints controller: EndpointSlices and Endpoints of services with a selector; `mirroring` makes slices of the Endpoints
//! of others. `metrics`, `model`, `slices`, `topology` and `legacy` are pure and may not import tokio or kube's client.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Endpoints, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::{
    Api, Client, Resource as _, ResourceExt,
    api::{DeleteParams, PostParams},
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    events::{Recorder, Severity},
    objects::label_selector::Selector,
};

use super::{
    indexes::{self, PODS_BY_LABEL, PODS_BY_NODE, selected},
    pods,
    runtime::{
        Cache, CachedNode, CachedPod, Context, Controller, During as _, Error, Index, Key, Outcome, SelectorIndex,
        Step, SyncPoint, WorkQueue, error, same_object,
    },
};

mod legacy;
mod metrics;
mod mirroring;
mod model;
mod slices;
#[cfg(test)]
mod tests;
mod topology;
mod writes;

pub(crate) use mirroring::EndpointSliceMirroringController;

use metrics::SliceMetrics;
use model::{Family, Groups};
use writes::{Actions, write_slices};

impl crate::runtime::Cached for EndpointSlice {}
impl crate::runtime::Cached for Service {}

/// How long to wait for the cache to show our own writes; the watch event itself enqueues the service earlier.
const UNHEARD: Duration = Duration::from_secs(1);

const WRITES: Actions = ["create a slice of", "update a slice of", "delete a slice of"];

/// The slices that this controller manages, by their service.
const SLICES_BY_SERVICE: Index<EndpointSlice> =
    Index::new("service", |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());

/// The services with hints by topology, all under one value.
const BY_TOPOLOGY: Index<Service> =
    Index::new("topology", |service| topology::is_wanted(service).then(String::new).into_iter().collect());

/// The controller's inputs and queue of services.
pub(crate) struct EndpointsController {
    client: Client,
    services: Cache<Service>,
    pods: Cache<CachedPod>,
    nodes: Cache<CachedNode>,
    slices: Cache<EndpointSlice>,
    endpoints: Cache<Endpoints>,
    queue: WorkQueue<Key>,
    recorder: Recorder,
    state: Arc<Mutex<HashMap<Key, Remembered>>>,
    gone: Gone,
    metrics: Arc<SliceMetrics>,
}

/// What is remembered of a service between runs.
#[derive(Debug, Default)]
struct Remembered {
    /// Our last write of a slice.
    written: Option<SyncPoint>,
    /// When the oldest change that no write reports yet was heard.
    trigger: Option<Timestamp>,
    /// The families that have hints by topology.
    hinted: BTreeSet<Family>,
}

/// Enqueues services, with the time of the first change that no write reports yet.
#[derive(Clone)]
struct Trigger {
    queue: WorkQueue<Key>,
    state: Arc<Mutex<HashMap<Key, Remembered>>>,
    services: Cache<Service>,
    /// The selectors of services that have endpoints.
    selectors: Arc<Mutex<SelectorIndex>>,
    gone: Gone,
}

/// Services that were deleted and whose Endpoints are to follow. Endpoints of a service that is still to come stay.
type Gone = Arc<Mutex<HashSet<Key>>>;

impl Trigger {
    fn enqueue(&self, key: Key) {
        let mut state = self.state.lock();
        state.entry(key.clone()).or_default().trigger.get_or_insert_with(Timestamp::now);
        drop(state);
        self.queue.add(key);
    }

    fn on_service(&self, old: Option<&Arc<Service>>, new: Option<&Arc<Service>>) {
        let Some(service) = new.or(old) else { return };
        let key = Key::of(&service.metadata);
        let selector = new.and_then(|service| service.spec.as_ref()?.selector.as_ref()).map(Selector::from);
        self.selectors.lock().set(&key, selector);
        let mut gone = self.gone.lock();
        if new.is_none() {
            gone.insert(key.clone())
        } else {
            gone.remove(&key)
        };
        drop(gone);
        self.enqueue(key);
    }

    /// The services that select the pod, before or after a change.
    fn on_pod(&self, old: Option<&CachedPod>, new: Option<&CachedPod>) {
        let Some(namespace) = new.or(old).and_then(ResourceExt::namespace) else { return };
        let labels = || [old, new].into_iter().flatten().filter_map(|pod| pod.metadata.labels.as_ref());
        let candidates = self.selectors.lock().candidates(&namespace, labels());
        for key in candidates {
            let selects = self.services.get(&key).is_some_and(|service| {
                let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
                selector.is_some_and(|selector| labels().any(|labels| pods::selects(selector, Some(labels))))
            });
            if selects {
                self.enqueue(key);
            }
        }
    }
}

impl Controller for EndpointsController {
    const NAME: &'static str = "endpointslice-controller";
    const QUEUE: &'static str = "endpoint_slice";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (services, pods, nodes) =
            (context.informer::<Service>(), context.informer::<CachedPod>(), context.informer::<CachedNode>());
        let (slices, endpoints) = (context.informer::<EndpointSlice>(), context.informer::<Endpoints>());
        pods.index(&PODS_BY_LABEL).index(&PODS_BY_NODE);
        slices.index(&SLICES_BY_SERVICE);
        services.index(&BY_TOPOLOGY);
        let trigger = Trigger {
            queue: context.queue(),
            state: Arc::default(),
            services: services.cache(),
            selectors: Arc::default(),
            gone: Arc::default(),
        };
        let this = Self {
            recorder: context.recorder("endpoint-slice-controller"),
            client: context.client(),
            services: services.cache(),
            pods: pods.cache(),
            nodes: nodes.cache(),
            slices: slices.cache(),
            endpoints: endpoints.cache(),
            queue: context.queue(),
            state: Arc::clone(&trigger.state),
            gone: Arc::clone(&trigger.gone),
            metrics: context.metrics().of(),
        };
        let on_service = trigger.clone();
        services.on_change(move |old, new| on_service.on_service(old, new));
        let on_pod = trigger.clone();
        pods.on_change(move |old, new| {
            let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
            if model::matters(old, new) {
                on_pod.on_pod(old, new);
            }
        });
        let (all, by_topology) = (pods.cache(), services.cache());
        nodes.on_change(move |old, new| {
            if old.map(|node| topology::share(node)) != new.map(|node| topology::share(node)) {
                let concerned = by_topology.by_index(&BY_TOPOLOGY, "");
                concerned.iter().for_each(|service| trigger.enqueue(Key::of(&service.metadata)));
            }
            let seen = |node: Option<&Arc<CachedNode>>| node.map(|node| model::zone(node));
            if seen(old) != seen(new)
                && let Some(name) = new.or(old).and_then(|n| n.metadata.name.as_deref())
            {
                all.by_index(&PODS_BY_NODE, name).iter().for_each(|pod| trigger.on_pod(None, Some(pod)));
            }
        });
        let queue = context.queue();
        slices.on_change(move |old, new| {
            for slice in [old, new].into_iter().flatten() {
                if let Some(key) = service_of(slice) {
                    queue.add(key);
                }
            }
        });
        let queue = context.queue();
        endpoints.on_change(move |old, new| {
            if let Some(object) = new.or(old) {
                queue.add(Key::of(&object.metadata));
            }
        });
        this
    }

    /// Queues Endpoints whose service was deleted while no controller was running: upstream's `checkLeftoverEndpoints`.
    async fn prepare(&self, _: &CancellationToken) {
        let left = self.endpoints.all().into_iter().filter(|endpoints| !legacy::is_lock(endpoints));
        let left: Vec<Key> = left.map(|endpoints| Key::of(&endpoints.metadata)).collect();
        let left = left.into_iter().filter(|key| self.services.get(key).is_none());
        self.gone.lock().extend(left);
    }

    /// One run for one service.
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(service) = self.services.get(&key) else {
            self.metrics.forget(&key);
            self.state.lock().remove(&key);
            return self.service_deleted(&key).await;
        };
        let managed =
            service.metadata.deletion_timestamp.is_none() && service.spec.as_ref().is_some_and(model::has_endpoints);
        if !managed {
            self.metrics.forget(&key);
            self.state.lock().remove(&key);
            return Ok(Outcome::Done);
        }
        if self.remember(&key, |s| s.written.is_some_and(|mark| !self.slices.reached(mark))) {
            self.metrics.syncs.add(["stale"]);
            return Ok(Outcome::After(UNHEARD));
        }
        let trigger = self.remember(&key, |s| s.trigger.take()).unwrap_or_else(Timestamp::now);
        let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
        let pods = selector.map(|s| selected(&self.pods, &key.namespace, s.into())).unwrap_or_default();
        let node = |name: &str| self.nodes.get(&Key::new("", name));
        let zone = |name: &str| node(name).and_then(|node| model::zone(&node));
        let (known, unknown) = model::on_known_nodes(&service, &pods, |name| node(name).is_some());
        let mut groups = model::desired(&service, &known, zone);
        // As upstream's, this older controller asks for no node.
        let all = if unknown.is_empty() { None } else { Some(model::desired(&service, &pods, zone)) };
        let legacy = legacy::reconcile(&service, all.as_ref().unwrap_or(&groups), self.endpoints.get(&key).as_deref());
        let ours = self.slices.by_index(&SLICES_BY_SERVICE, &key.to_string());
        self.add_hints(&key, &service, &mut groups, &ours);
        let plan = slices::reconcile(&service, groups, &ours);
        self.metrics.planned(&key, &service, &plan);
        let changed = plan.create.len() + plan.update.len() + plan.delete.len();
        let result = self.write(&key, plan, legacy, trigger).await;
        if result.is_ok() {
            self.metrics.carried_out(&service, changed);
        }
        if result.is_ok() && !unknown.is_empty() {
            self.metrics.syncs.add(["error"]);
            self.tell_unknown(&key, &service, &unknown);
            return Ok(Step::waits_for(&self.nodes).into());
        }
        self.metrics.syncs.add([if result.is_ok() { "success" } else { "error" }]);
        if let Err(error) = &result {
            self.remember(&key, |s| s.trigger = Some(s.trigger.map_or(trigger, |t| t.min(trigger))));
            if let Error::Api { source, .. } = error {
                if error::is_namespace_terminating(source) {
                    return Ok(Outcome::Done);
                }
                if !error::is_conflict(source) && !error::is_not_found(source) {
                    self.tell_failure(&key, &service, &error::message(source));
                }
            }
        }
        result.map(|()| Outcome::Done)
    }
}

impl EndpointsController {
    /// Adds topology hints for each family of a service that asks for them, and records the events about them.
    fn add_hints(&self, key: &Key, service: &Service, groups: &mut Groups, ours: &[Arc<EndpointSlice>]) {
        let had = self.remember(key, |s| std::mem::take(&mut s.hinted));
        if !topology::is_wanted(service) {
            had.iter().for_each(|family| self.tell(service, topology::disabled(topology::NOT_WANTED, *family)));
            return;
        }
        let ratios = topology::ratios(self.nodes.all().iter().map(|node| topology::share(node)));
        let mut by_family: BTreeMap<Family, Vec<&mut Endpoint>> = BTreeMap::new();
        for ((family, _), endpoints) in groups {
            by_family.entry(*family).or_default().extend(endpoints);
        }
        let before = topology::of_slices(ours);
        let mut hinted = BTreeSet::new();
        for (family, mut endpoints) in by_family {
            match topology::add_hints(&mut endpoints, &before, ratios.as_ref()) {
                Ok(()) => {
                    // As upstream, once for a service.
                    if had.is_empty() && hinted.is_empty() && before.is_empty() {
                        self.tell(service, topology::enabled(family));
                    }
                    hinted.insert(family);
                }
                Err(why) => self.tell(service, topology::disabled(&why, family)),
            }
        }
        self.remember(key, |s| s.hinted = hinted);
    }

    /// That pods are on nodes that the API does not know. Their nodes wake the service.
    fn tell_unknown(&self, key: &Key, service: &Service, pods: &[Arc<CachedPod>]) {
        let why = |pod: &Arc<CachedPod>| {
            let node = pods::node_name(pod).unwrap_or_default();
            format!("skipping Pod {} for Service {key}: Node {node} Not Found", pod.name_any())
        };
        let all: Vec<String> = pods.iter().map(why).collect();
        let text = if let [one] = all.as_slice() { one.clone() } else { format!("[{}]", all.join(", ")) };
        self.tell_failure(key, service, &text);
    }

    fn tell_failure(&self, key: &Key, service: &Service, why: &str) {
        let text = format!("Error updating Endpoint Slices for Service {key}: {why}");
        let about = service.object_ref(&());
        self.recorder.record(&about, Severity::Warning, "FailedToUpdateEndpointSlices", text);
    }

    fn tell(&self, service: &Service, note: topology::Note) {
        self.recorder.record(&service.object_ref(&()), note.severity, note.reason, note.message);
    }

    fn remember<T>(&self, key: &Key, f: impl FnOnce(&mut Remembered) -> T) -> T {
        f(self.state.lock().entry(key.clone()).or_default())
    }

    async fn write(
        &self,
        key: &Key,
        mut plan: slices::Plan,
        legacy: Option<Endpoints>,
        trigger: Timestamp,
    ) -> Result<(), Error> {
        // Traffic depends on slices: they go first.
        if !plan.is_empty() {
            for slice in plan.create.iter_mut().chain(&mut plan.update) {
                slice.annotations_mut().insert(slices::TRIGGER.to_owned(), trigger.to_string());
            }
            let wrote = |operation: &str, slice: Option<&EndpointSlice>| {
                self.metrics.changes.add([operation]);
                if let Some(slice) = slice {
                    let mark = self.slices.sync_point(slice.metadata.resource_version.as_deref());
                    self.remember(key, |s| s.written = Some(mark));
                }
            };
            write_slices(&self.client, key, &plan, WRITES, &wrote).await?;
        }
        if let Some(mut object) = legacy {
            object.annotations_mut().insert(slices::TRIGGER.to_owned(), trigger.to_string());
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

    /// Slices are garbage collected by owner reference; Endpoints have none and are deleted with their service, whoever
    /// created them: a later service of the same name must not start with them.
    async fn service_deleted(&self, key: &Key) -> Result<Outcome, Error> {
        let is_gone = self.gone.lock().remove(key);
        if !is_gone && !self.endpoints.get(key).is_some_and(|e| legacy::is_ours(&e)) {
            return Ok(Outcome::Done);
        }
        let deleted = self.delete_endpoints(key).await;
        // Unless there is another service by now, the next run continues.
        if deleted.is_err() && is_gone && self.services.get(key).is_none() {
            self.gone.lock().insert(key.clone());
        }
        deleted.map(|()| Outcome::Done)
    }

    async fn delete_endpoints(&self, key: &Key) -> Result<(), Error> {
        let api: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.namespace);
        // They may be so new that the cache does not show them.
        let Some(endpoints) = api.get_metadata_opt(&key.name).await.during("read the Endpoints of", key)? else {
            return Ok(());
        };
        let params = DeleteParams::default().preconditions(same_object(&endpoints.metadata));
        let deleted = api.delete(&key.name, &params).await;
        error::ignore_deleted(deleted).during("delete the Endpoints of", key).map(drop)
    }
}

/// The service of a slice that `manager` manages.
fn managed_service(slice: &EndpointSlice, manager: &str) -> Option<Key> {
    let label = slice.metadata.labels.as_ref()?.get(slices::MANAGED_BY);
    indexes::service_of(slice).filter(|_| label.is_some_and(|label| label == manager))
}

/// The service of a slice that this controller manages.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    managed_service(slice, slices::MANAGER)
}
