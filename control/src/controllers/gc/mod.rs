//! The garbage collector: what lost its owners goes; foreground deletion waits for dependents,
//! orphaning sets them free. `graph` is pure and may not import tokio or kube's client.

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
    queue::{Outcome, Queue},
};

mod graph;
#[cfg(test)]
mod tests;

use graph::{FOREGROUND, Graph, ORPHAN, Object, Owner, Policy, Step, Uid, uid};

/// How often new kinds are looked for.
const DISCOVERY: Duration = Duration::from_secs(30);
/// Owners known to be absent that are remembered.
const ABSENT_KEPT: usize = 500;
/// What the kind must allow for its objects to be collected.
const VERBS: [&str; 4] = ["list", "watch", "delete", "patch"];

/// A key of the queue that can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id(Uid);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug, Default)]
struct Absent {
    order: VecDeque<Uid>,
    set: HashSet<Uid>,
}

impl Absent {
    fn insert(&mut self, id: Uid) {
        if self.set.insert(id) {
            self.order.push_back(id);
            if self.order.len() > ABSENT_KEPT
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
    queue: Queue<Id>,
    absent: Mutex<Absent>,
    kinds: Mutex<Kinds>,
    /// Kinds that another watch feeds, by group and plural.
    shared: Mutex<HashSet<String>>,
}

impl GarbageCollector {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            graph: Arc::default(),
            queue: Queue::new(),
            absent: Mutex::default(),
            kinds: Mutex::default(),
            shared: Mutex::default(),
        }
    }

    pub(crate) fn queue(&self) -> &Queue<Id> {
        &self.queue
    }

    /// Listens to a watch that other controllers need too, in the place of one of its own.
    pub(crate) fn share<K>(&self, informer: &mut Informer<K>, resource: ApiResource, namespaced: bool)
    where
        K: Resource + Clone + Send + Sync + 'static,
    {
        let kind = Arc::new(Kind { resource, namespaced, verbs: VERBS.map(str::to_owned).to_vec() });
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(kind.group_resource());
        self.listen(informer, kind);
    }

    fn listen<K: Resource + Clone + Send + Sync + 'static>(&self, informer: &mut Informer<K>, kind: Arc<Kind>) {
        let (graph, queue) = (Arc::clone(&self.graph), self.queue.clone());
        informer.on_change(move |old: Option<&Arc<K>>, new| {
            let mut graph = lock(&graph);
            let woken = match (old, new) {
                (_, Some(object)) => graph.applied(&kind, object.meta()),
                (Some(object), None) => graph.deleted(object.meta().uid.as_deref().unwrap_or_default()),
                (None, None) => Vec::new(),
            };
            drop(graph);
            woken.into_iter().for_each(|id| queue.add(Id(id)));
        });
    }

    /// Watches the metadata of all kinds that nobody else watches, and finds new kinds.
    pub(crate) async fn watch_kinds(&self, shutdown: CancellationToken) {
        let mut watches: BTreeMap<String, CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            match Kinds::discover(&self.client).await {
                Ok(found) => {
                    let collected: BTreeMap<String, Arc<Kind>> =
                        kinds::by_name(&found).into_iter().filter(|(name, kind)| self.is_ours(name, kind)).collect();
                    let whole = found.failed.is_empty();
                    *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = found;
                    for (name, kind) in &collected {
                        if !watches.contains_key(name) {
                            let token = shutdown.child_token();
                            watches.insert(name.clone(), token.clone());
                            tasks.spawn(self.watch(Arc::clone(kind), token));
                        }
                    }
                    // A kind that is served no more; a group that merely failed keeps its watches.
                    if whole {
                        watches.retain(|name, token| {
                            let kept = collected.contains_key(name);
                            if !kept {
                                token.cancel();
                            }
                            kept
                        });
                    }
                }
                Err(error) => tracing::debug!(%error, "the kinds served could not be read; it is tried again"),
            }
            while tasks.try_join_next().is_some() {}
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(DISCOVERY) => {}
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    fn is_ours(&self, name: &str, kind: &Kind) -> bool {
        let events = kind.resource.plural == "events" && matches!(&*kind.resource.group, "" | "events.k8s.io");
        kind.has(&VERBS) && !events && !self.shared.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    fn watch(&self, kind: Arc<Kind>, shutdown: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
        let mut informer: Informer<PartialObjectMeta<DynamicObject>> = Informer::new(keep_owners);
        self.listen(&mut informer, Arc::clone(&kind));
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), &kind.resource);
        informer.run(watcher(api, watcher::Config::default()), shutdown)
    }

    /// Looks at all objects whose owners are unknown; called once the first lists are complete.
    pub(crate) fn start(&self) {
        lock(&self.graph).suspects().into_iter().for_each(|id| self.queue.add(Id(id)));
    }

    /// One look at one object.
    pub(crate) async fn reconcile(&self, id: Id) -> Result<Outcome, Error> {
        let Some(known) = lock(&self.graph).get(id.0).cloned() else { return Ok(Outcome::Done) };
        let api = known.kind.api(&self.client, &known.namespace);
        // The cache may be behind; deleting is for ever.
        let fresh = api.get_metadata_opt(&known.name).await.during("read", &show(&known))?;
        let Some(fresh) = fresh.filter(|f| f.metadata.uid.as_deref() == Some(&known.uid_text)) else {
            return Ok(Outcome::Done);
        };
        let object = Object::of(&known.kind, &fresh.metadata);
        let step = lock(&self.graph).for_owner(&object);
        match step {
            Step::Orphan(dependents) => return self.orphan(&api, &object, &fresh.metadata, &dependents).await,
            Step::Release => {
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
        let step = lock(&self.graph).for_dependent(&object, &states);
        match step {
            Step::DropOwners(gone) => {
                let mut owners = object.owners.clone();
                owners.retain(|o| !gone.contains(&o.uid));
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
        if self.absent.lock().unwrap_or_else(PoisonError::into_inner).set.contains(&id) {
            return Ok(Owner::Absent);
        }
        let kind = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).find(&owner.api_version, &owner.kind);
        let Some(kind) = kind else {
            // Not served (yet): whether the owner exists cannot be told.
            return Err(Error::Changed(format!("kind {} {}", owner.api_version, owner.kind)));
        };
        if kind.namespaced && !object.kind.namespaced {
            return Ok(Owner::Invalid);
        }
        let api = kind.api(&self.client, &object.namespace);
        let found = api.get_metadata_opt(&owner.name).await.during("look for the owner", &owner.name)?;
        match found.filter(|f| f.metadata.uid.as_deref() == Some(&owner.uid)) {
            None => {
                self.absent.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
                Ok(Owner::Absent)
            }
            Some(found) if Object::of(&kind, &found.metadata).waits() => Ok(Owner::Waiting),
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
        // The version, too: owners may be added at any moment.
        let preconditions = Preconditions { uid: Some(object.uid_text.clone()), resource_version: version };
        let params = DeleteParams { preconditions: Some(preconditions), ..params };
        match api.delete(&object.name, &params).await {
            Err(error) if error::is_not_found(&error) => Ok(()),
            other => {
                other.during("collect", &show(object))?;
                tracing::debug!(object = show(object), ?policy, "collected: its owners are gone");
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
            other => Ok(other.during("change the owners of", &show(object))?.metadata.resource_version),
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
            other => drop(other.during("let go", &show(object))?),
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
            let Some(fresh) = api.get_metadata_opt(&known.name).await.during("read", &show(&known))? else { continue };
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

/// Keeps what the graph and a later list need.
fn keep_owners(object: &mut PartialObjectMeta<DynamicObject>) {
    trim_metadata(object);
    object.types = None;
    object.metadata.labels = None;
    object.metadata.annotations = None;
}

fn lock(graph: &Mutex<Graph>) -> MutexGuard<'_, Graph> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

fn show(object: &Object) -> String {
    let place = if object.namespace.is_empty() { String::new() } else { format!("{}/", object.namespace) };
    format!("{} {place}{}", object.kind.resource.kind, object.name)
}
