//! Garbage collector: deletes objects without owners; foreground deletion waits for dependents, orphaning removes their
//! owner references. `graph` is pure and may not import tokio or kube's client.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    events::{Recorder, Severity},
    metrics::{Counter, Metrics},
    prometheus::Text,
};

use super::runtime::{
    Context, Controller, Discovery, During as _, Error, Informers, Life, MetadataSource, Outcome, WorkQueue, error,
    rest_mapper::{self, Kind, RestMapper},
};

mod graph;
#[cfg(test)]
mod tests;

use graph::{FOREGROUND, Graph, ORPHAN, Object, Owner, Policy, Step, Uid, uid};

/// Time for the first lists of all kinds; owners that are not known by then are asked for (upstream's
/// `initialSyncTimeout`).
const FIRST_LISTS_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects in each page of a list (client-go's pager).
const LIST_PAGE_SIZE: u32 = 500;
/// Size of the cache of owners known to be absent.
const ABSENT_OWNER_CACHE_SIZE: usize = 500;
/// Verbs that a kind must support to be collected.
const REQUIRED_VERBS: [&str; 4] = ["list", "watch", "delete", "patch"];

/// A queue key that can be displayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id(Uid);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug, Default)]
struct AbsentOwnerCache {
    order: VecDeque<Uid>,
    set: HashSet<Uid>,
}

impl AbsentOwnerCache {
    fn insert(&mut self, id: Uid) {
        if self.set.insert(id) {
            self.order.push_back(id);
            if self.order.len() > ABSENT_OWNER_CACHE_SIZE
                && let Some(old) = self.order.pop_front()
            {
                self.set.remove(&old);
            }
        }
    }
}

/// A kind whose objects are in the graph.
struct Monitor {
    kind: Arc<Kind>,
    source: Arc<dyn MetadataSource>,
    life: Life,
}

/// Metrics by upstream's names (`pkg/controller/garbagecollector/metrics`).
struct SyncMetrics(Counter<0>);

impl Default for SyncMetrics {
    fn default() -> Self {
        let name = "garbagecollector_controller_resources_sync_error_total";
        Self(Counter::new(name, "Times that kinds could not be discovered or listed.", []))
    }
}

impl Metrics for SyncMetrics {
    fn write(&self, page: &mut Text) {
        self.0.write(page);
    }
}

pub(crate) struct GarbageCollector {
    client: Client,
    informers: Informers,
    life: Life,
    discovery: Discovery,
    graph: Arc<Mutex<Graph>>,
    queue: WorkQueue<Id>,
    recorder: Recorder,
    absent_owners: Mutex<AbsentOwnerCache>,
    /// By plural and group.
    monitors: Mutex<BTreeMap<String, Monitor>>,
    metrics: Arc<SyncMetrics>,
}

impl Controller for GarbageCollector {
    const NAME: &'static str = "garbage-collector-controller";
    const QUEUE: &'static str = "garbage_collector_attempt_to_delete";
    /// Mostly they wait.
    const WORKERS: usize = 10;
    type Key = Id;
    type Config = ();

    /// Subscribes to nothing yet: which kinds there are is known after discovery.
    fn subscribe(context: &mut Context<Id>, (): ()) -> Self {
        Self {
            client: context.client(),
            informers: context.informers(),
            life: context.life(),
            discovery: context.discovery(),
            graph: Arc::default(),
            queue: context.queue(),
            recorder: context.recorder("garbage-collector-controller"),
            absent_owners: Mutex::default(),
            monitors: Mutex::default(),
            metrics: context.metrics().of(),
        }
    }

    /// The graph must be whole before anything is decided by it.
    async fn prepare(&self, shutdown: &CancellationToken) {
        let mut discovery = self.discovery.clone();
        tokio::select! {
            () = shutdown.cancelled() => return,
            found = discovery.next() => self.sync_monitors(&found),
        }
        let synced: Vec<_> = self.monitors.lock().values().map(|monitor| monitor.source.synced()).collect();
        let lists = async {
            for mut synced in synced {
                // An informer that has ended has no list.
                let _ = synced.wait_for(|synced| *synced).await.is_ok();
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = lists => {}
            () = tokio::time::sleep(FIRST_LISTS_TIMEOUT) => {
                self.metrics.0.add([]);
                tracing::warn!("some kinds could not be listed; their objects are collected when they can be");
            }
        }
        self.graph.lock().with_unknown_owners().into_iter().for_each(|id| self.queue.add(Id(id)));
    }

    /// Reconciles one object.
    async fn reconcile(&self, id: Id) -> Result<Outcome, Error> {
        let Some(known) = self.graph.lock().get(id.0).cloned() else { return Ok(Outcome::Done) };
        let api = known.kind.api(&self.client, &known.namespace);
        // The cache may be stale, and deleting is final.
        let fresh = api.get_metadata_opt(&known.name).await.during("read", &describe(&known))?;
        let Some(fresh) = fresh.filter(|f| f.metadata.uid.as_deref() == Some(&known.uid_text)) else {
            return Ok(Outcome::Done);
        };
        let object = Object::of(&known.kind, &fresh.metadata);
        let step = self.graph.lock().plan_deleting_owner(&object);
        match step {
            Step::Orphan => return self.orphan(&api, &object, &fresh.metadata).await,
            Step::RemoveForegroundFinalizer => {
                return self.remove_finalizer(&api, &object, &fresh.metadata, FOREGROUND).await;
            }
            Step::AwaitDependents(dependents) => {
                dependents.into_iter().for_each(|d| self.queue.add(Id(d)));
                return Ok(Outcome::Done);
            }
            _ => {}
        }
        let mut states = Vec::with_capacity(object.owners.len());
        for owner in &object.owners {
            states.push(self.owner_state(&object, owner).await?);
        }
        let step = self.graph.lock().plan_dependent(&object, &states);
        match step {
            Step::RemoveOwnerReferences(absent) => {
                let mut owners = object.owners.clone();
                owners.retain(|o| !absent.contains(&o.uid));
                self.patch_owners(&api, &object, &fresh.metadata, &owners).await?;
            }
            Step::Delete(policy) => self.delete(&api, &object, &fresh.metadata, policy).await?,
            _ => {}
        }
        Ok(Outcome::Done)
    }

    /// Follows discovery, beginning with what [`prepare`](Self::prepare) had, so that nothing in between is missed.
    async fn run(&self, shutdown: CancellationToken) {
        let mut discovery = self.discovery.clone();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                found = discovery.next() => self.sync_monitors(&found),
            }
        }
    }
}

impl GarbageCollector {
    /// An owner in another namespace, or a namespaced one of a cluster-scoped object; upstream's event.
    fn report_invalid_namespace(&self, object: &Object, owner: &OwnerReference) {
        let about = ObjectReference {
            api_version: Some(object.kind.resource.api_version.clone()),
            kind: Some(object.kind.resource.kind.clone()),
            namespace: (!object.namespace.is_empty()).then(|| object.namespace.clone()),
            name: Some(object.name.clone()),
            uid: Some(object.uid_text.clone()),
            ..ObjectReference::default()
        };
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        let namespace = &object.namespace;
        let text = format!(
            "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace {namespace:?}"
        );
        self.recorder.record(&about, Severity::Warning, "OwnerRefInvalidNamespace", text);
    }

    /// Starts monitors of new kinds, and stops those of kinds that are no longer served; `found` includes those of a
    /// group whose discovery failed.
    fn sync_monitors(&self, found: &RestMapper) {
        let served: BTreeMap<String, Arc<Kind>> =
            rest_mapper::by_name(found).into_iter().filter(|(_, kind)| is_collected(kind)).collect();
        if !found.failed.is_empty() {
            self.metrics.0.add([]);
        }
        let mut monitors = self.monitors.lock();
        let gone: Vec<String> = monitors.keys().filter(|name| !served.contains_key(*name)).cloned().collect();
        for monitor in gone.iter().filter_map(|name| monitors.remove(name)) {
            monitor.life.end();
            for uid in monitor.source.uids() {
                self.graph.lock().deleted(&uid).into_iter().for_each(|id| self.queue.add(Id(id)));
            }
        }
        for (name, kind) in served {
            if monitors.get(&name).is_some_and(|monitor| monitor.kind == kind) {
                continue;
            }
            // Before another version is watched, the watch of the one before must be over.
            if let Some(other_version) = monitors.remove(&name) {
                other_version.life.end();
            }
            monitors.insert(name, self.monitor(kind));
        }
    }

    fn monitor(&self, kind: Arc<Kind>) -> Monitor {
        let (source, life) = (self.informers.metadata(&kind.resource), self.life.child());
        let (graph, queue, of) = (Arc::clone(&self.graph), self.queue.clone(), Arc::clone(&kind));
        source.on_metadata(
            &life,
            Box::new(move |old, new| {
                let mut graph = graph.lock();
                let enqueued = match (old, new) {
                    (_, Some(object)) => graph.applied(&of, object),
                    (Some(object), None) => graph.deleted(object.uid.as_deref().unwrap_or_default()),
                    (None, None) => Vec::new(),
                };
                drop(graph);
                enqueued.into_iter().for_each(|id| queue.add(Id(id)));
            }),
        );
        Monitor { kind, source, life }
    }

    async fn owner_state(&self, object: &Object, owner: &OwnerReference) -> Result<Owner, Error> {
        let known = self.graph.lock().owner(&object.namespace, owner);
        let id = uid(&owner.uid);
        match known {
            Owner::Unknown if !self.graph.lock().is_live(id) && self.absent_owners.lock().set.contains(&id) => {
                return Ok(Owner::Absent);
            }
            Owner::Unknown => {}
            Owner::Invalid => {
                self.report_invalid_namespace(object, owner);
                return Ok(if object.kind.namespaced { Owner::Absent } else { Owner::Invalid });
            }
            known => return Ok(known),
        }
        let kind = self.discovery.latest().and_then(|kinds| kinds.find(&owner.api_version, &owner.kind));
        let Some(kind) = kind else {
            // Not served (yet): the owner may exist.
            return Err(Error::Changed(format!("kind {} {}", owner.api_version, owner.kind)));
        };
        if kind.namespaced && !object.kind.namespaced {
            self.report_invalid_namespace(object, owner);
            return Ok(Owner::Invalid);
        }
        let api = kind.api(&self.client, &object.namespace);
        let found = api.get_metadata_opt(&owner.name).await.during("look for the owner", &owner.name)?;
        match found.filter(|f| f.metadata.uid.as_deref() == Some(&owner.uid)) {
            None => {
                // A UID that lives elsewhere is absent for this reference only.
                if !self.graph.lock().is_live(id) {
                    self.absent_owners.lock().insert(id);
                }
                Ok(Owner::Absent)
            }
            Some(found) if Object::of(&kind, &found.metadata).is_deleting_dependents() => Ok(Owner::Waiting),
            Some(_) => Ok(Owner::Solid),
        }
    }

    async fn delete(
        &self,
        api: &Api<DynamicObject>,
        object: &Object,
        meta: &ObjectMeta,
        policy: Policy,
    ) -> Result<(), Error> {
        let mut version = meta.resource_version.clone();
        let params = match policy {
            Policy::Background => DeleteParams::background(),
            Policy::Foreground => DeleteParams::foreground(),
            Policy::Orphan => DeleteParams::orphan(),
            Policy::ForegroundUnblocked => {
                let mut owners = object.owners.clone();
                owners.iter_mut().for_each(|o| o.block_owner_deletion = Some(false));
                version = self.patch_owners(api, object, meta, &owners).await?;
                DeleteParams::foreground()
            }
        };
        // The version as well: owners may be added concurrently.
        let preconditions = Preconditions { uid: Some(object.uid_text.clone()), resource_version: version };
        let params = DeleteParams { preconditions: Some(preconditions), ..params };
        match api.delete(&object.name, &params).await {
            Err(error) if error::is_not_found(&error) => Ok(()),
            other => {
                other.during("collect", &describe(object))?;
                tracing::debug!(object = describe(object), ?policy, "garbage collected object without owners");
                Ok(())
            }
        }
    }

    async fn patch_owners(
        &self,
        api: &Api<DynamicObject>,
        object: &Object,
        meta: &ObjectMeta,
        owners: &[OwnerReference],
    ) -> Result<Option<String>, Error> {
        let patch = json!({"metadata": {
            "uid": object.uid_text,
            "resourceVersion": meta.resource_version,
            "ownerReferences": owners,
        }});
        match api.patch_metadata(&object.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if error::is_not_found(&error) => Ok(None),
            other => Ok(other.during("change the owners of", &describe(object))?.metadata.resource_version),
        }
    }

    async fn remove_finalizer(
        &self,
        api: &Api<DynamicObject>,
        object: &Object,
        meta: &ObjectMeta,
        finalizer: &str,
    ) -> Result<Outcome, Error> {
        let mut finalizers = meta.finalizers.clone().unwrap_or_default();
        finalizers.retain(|f| f != finalizer);
        let patch = json!({"metadata": {
            "uid": object.uid_text,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }});
        match api.patch_metadata(&object.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if error::is_not_found(&error) => {}
            other => drop(other.during("let go", &describe(object))?),
        }
        Ok(Outcome::Done)
    }

    async fn orphan(&self, api: &Api<DynamicObject>, object: &Object, meta: &ObjectMeta) -> Result<Outcome, Error> {
        let kinds: Vec<Arc<Kind>> = self.monitors.lock().values().map(|monitor| Arc::clone(&monitor.kind)).collect();
        // What is in a namespace owns nothing outside of it.
        let is_namespaced = !object.namespace.is_empty();
        for kind in kinds.iter().filter(|kind| kind.namespaced || !is_namespaced) {
            let all = if is_namespaced { kind.api(&self.client, &object.namespace) } else { kind.all(&self.client) };
            for dependent in owned(&all, object).await.during("look for what is owned, as", &kind.resource.plural)? {
                let known = Object::of(kind, &dependent);
                let mut owners = known.owners.clone();
                owners.retain(|o| o.uid != object.uid_text);
                self.patch_owners(&kind.api(&self.client, &known.namespace), &known, &dependent, &owners).await?;
            }
        }
        self.remove_finalizer(api, object, meta, ORPHAN).await
    }
}

/// The objects of a kind that an object owns, as the API has them: of those that the graph does not know yet, or whose kind could
/// not be listed, the owner would go, and they with it.
async fn owned(api: &Api<DynamicObject>, owner: &Object) -> kube::Result<Vec<ObjectMeta>> {
    let (mut found, mut page) = (Vec::new(), ListParams::default().limit(LIST_PAGE_SIZE));
    loop {
        let list = match api.list_metadata(&page).await {
            // The kind is not served any more.
            Err(error) if error::is_not_found(&error) => return Ok(found),
            list => list?,
        };
        let is_owned = |meta: &ObjectMeta| meta.owner_references.iter().flatten().any(|o| o.uid == owner.uid_text);
        found.extend(list.items.into_iter().map(|item| item.metadata).filter(is_owned));
        match list.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page.continue_token = Some(next),
            None => return Ok(found),
        }
    }
}

/// Whether objects of a kind can be owners or be collected; events are neither, and many.
fn is_collected(kind: &Kind) -> bool {
    let events = kind.resource.plural == "events" && matches!(&*kind.resource.group, "" | "events.k8s.io");
    kind.has(&REQUIRED_VERBS) && !events
}

fn describe(object: &Object) -> String {
    let place = if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
    format!("{} {place}{}", object.kind.resource.kind, object.name)
}
