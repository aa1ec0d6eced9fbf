//! Garbage collector: deletes objects without owners; foreground deletion waits for dependents, orphaning removes their
//! owner references. `graph` is pure and may not import tokio or kube's client.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, Preconditions},
    core::PartialObjectMeta,
    runtime::watcher,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    cache::{Informer, trim_metadata},
    error::{self, Context, Error},
    kinds::{self, Kind, Kinds},
    workqueue::{Outcome, WorkQueue},
};

mod graph;
#[cfg(test)]
mod tests;

use graph::{FOREGROUND, Graph, ORPHAN, Object, Owner, Policy, Step, Uid, uid};

/// Interval of discovery.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
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

pub(crate) struct GarbageCollector {
    client: Client,
    graph: Arc<Mutex<Graph>>,
    queue: WorkQueue<Id>,
    absent_owners: Mutex<AbsentOwnerCache>,
    kinds: Mutex<Kinds>,
    /// Kinds monitored by a shared informer, by group and plural.
    shared: Mutex<HashSet<String>>,
}

impl GarbageCollector {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            graph: Arc::default(),
            queue: WorkQueue::new(),
            absent_owners: Mutex::default(),
            kinds: Mutex::default(),
            shared: Mutex::default(),
        }
    }

    pub(crate) fn queue(&self) -> &WorkQueue<Id> {
        &self.queue
    }

    /// Monitors a kind by a shared informer instead of a watch of its own.
    pub(crate) fn monitor<K>(&self, informer: &mut Informer<K>, resource: ApiResource, namespaced: bool)
    where
        K: Resource + Clone + Send + Sync + 'static,
    {
        let kind = Arc::new(Kind { resource, namespaced, verbs: REQUIRED_VERBS.map(str::to_owned).to_vec() });
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(kind.group_resource());
        self.add_handler(informer, kind);
    }

    fn add_handler<K: Resource + Clone + Send + Sync + 'static>(&self, informer: &mut Informer<K>, kind: Arc<Kind>) {
        let (graph, queue) = (Arc::clone(&self.graph), self.queue.clone());
        informer.on_change(move |old: Option<&Arc<K>>, new| {
            let mut graph = lock(&graph);
            let enqueued = match (old, new) {
                (_, Some(object)) => graph.applied(&kind, object.meta()),
                (Some(object), None) => graph.deleted(object.meta().uid.as_deref().unwrap_or_default()),
                (None, None) => Vec::new(),
            };
            drop(graph);
            enqueued.into_iter().for_each(|id| queue.add(Id(id)));
        });
    }

    /// Starts and stops metadata watches for all kinds without a shared informer, as discovery changes.
    pub(crate) async fn sync_monitors(&self, shutdown: CancellationToken) {
        let mut watches: BTreeMap<String, CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            match Kinds::discover(&self.client).await {
                Ok(found) => {
                    let collected: BTreeMap<String, Arc<Kind>> = kinds::by_name(&found)
                        .into_iter()
                        .filter(|(name, kind)| self.is_unmonitored(name, kind))
                        .collect();
                    let complete = found.failed.is_empty();
                    *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = found;
                    for (name, kind) in &collected {
                        if !watches.contains_key(name) {
                            let token = shutdown.child_token();
                            watches.insert(name.clone(), token.clone());
                            tasks.spawn(self.watch(Arc::clone(kind), token));
                        }
                    }
                    // Kinds that are no longer served; a group whose discovery failed keeps its watches.
                    if complete {
                        watches.retain(|name, token| {
                            let served = collected.contains_key(name);
                            if !served {
                                token.cancel();
                            }
                            served
                        });
                    }
                }
                Err(error) => tracing::debug!(%error, "failed to discover served types; retrying"),
            }
            while tasks.try_join_next().is_some() {}
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(DISCOVERY_INTERVAL) => {}
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    fn is_unmonitored(&self, name: &str, kind: &Kind) -> bool {
        let events = kind.resource.plural == "events" && matches!(&*kind.resource.group, "" | "events.k8s.io");
        kind.has(&REQUIRED_VERBS)
            && !events
            && !self.shared.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    fn watch(&self, kind: Arc<Kind>, shutdown: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
        let mut informer: Informer<PartialObjectMeta<DynamicObject>> = Informer::new(keep_owners);
        self.add_handler(&mut informer, Arc::clone(&kind));
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), &kind.resource);
        informer.run(watcher(api, watcher::Config::default()), shutdown)
    }

    /// Enqueues all objects with unknown owners; called once the first lists are complete.
    pub(crate) fn start(&self) {
        lock(&self.graph).with_unknown_owners().into_iter().for_each(|id| self.queue.add(Id(id)));
    }

    /// Reconciles one object.
    pub(crate) async fn reconcile(&self, id: Id) -> Result<Outcome, Error> {
        let Some(known) = lock(&self.graph).get(id.0).cloned() else { return Ok(Outcome::Done) };
        let api = known.kind.api(&self.client, &known.namespace);
        // The cache may be stale, and deleting is final.
        let fresh = api.get_metadata_opt(&known.name).await.during("read", &describe(&known))?;
        let Some(fresh) = fresh.filter(|f| f.metadata.uid.as_deref() == Some(&known.uid_text)) else {
            return Ok(Outcome::Done);
        };
        let object = Object::of(&known.kind, &fresh.metadata);
        let step = lock(&self.graph).plan_deleting_owner(&object);
        match step {
            Step::Orphan(dependents) => return self.orphan(&api, &object, &fresh.metadata, &dependents).await,
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
        let step = lock(&self.graph).plan_dependent(&object, &states);
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

    async fn owner_state(&self, object: &Object, owner: &OwnerReference) -> Result<Owner, Error> {
        let known = lock(&self.graph).owner(&object.namespace, owner);
        if known != Owner::Unknown {
            return Ok(known);
        }
        let id = uid(&owner.uid);
        if self.absent_owners.lock().unwrap_or_else(PoisonError::into_inner).set.contains(&id) {
            return Ok(Owner::Absent);
        }
        let kind = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).find(&owner.api_version, &owner.kind);
        let Some(kind) = kind else {
            // Not served (yet): the owner may exist.
            return Err(Error::Changed(format!("kind {} {}", owner.api_version, owner.kind)));
        };
        if kind.namespaced && !object.kind.namespaced {
            return Ok(Owner::Invalid);
        }
        let api = kind.api(&self.client, &object.namespace);
        let found = api.get_metadata_opt(&owner.name).await.during("look for the owner", &owner.name)?;
        match found.filter(|f| f.metadata.uid.as_deref() == Some(&owner.uid)) {
            None => {
                self.absent_owners.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
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

    async fn orphan(
        &self,
        api: &Api<DynamicObject>,
        object: &Object,
        meta: &ObjectMeta,
        dependents: &[Uid],
    ) -> Result<Outcome, Error> {
        for dependent in dependents {
            let Some(known) = lock(&self.graph).get(*dependent).cloned() else { continue };
            let api = known.kind.api(&self.client, &known.namespace);
            let Some(fresh) = api.get_metadata_opt(&known.name).await.during("read", &describe(&known))? else {
                continue;
            };
            let mut owners = fresh.metadata.owner_references.clone().unwrap_or_default();
            let before = owners.len();
            owners.retain(|o| o.uid != object.uid_text);
            if fresh.metadata.uid.as_deref() == Some(&known.uid_text) && owners.len() != before {
                self.patch_owners(&api, &known, &fresh.metadata, &owners).await?;
            }
        }
        self.remove_finalizer(api, object, meta, ORPHAN).await
    }
}

/// Keeps what the graph and a relist need.
fn keep_owners(object: &mut PartialObjectMeta<DynamicObject>) {
    trim_metadata(object);
    object.types = None;
    object.metadata.labels = None;
    object.metadata.annotations = None;
}

fn lock(graph: &Mutex<Graph>) -> MutexGuard<'_, Graph> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

fn describe(object: &Object) -> String {
    let place = if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
    format!("{} {place}{}", object.kind.resource.kind, object.name)
}
