//! What the controllers of pods have in common, whatever kind owns the pods: claiming, creating and deleting them, with
//! events on the owner, and remembering what the cache does not show yet. Upstream's `PodControl`,
//! `BaseControllerRefManager` and `UIDTrackingControllerExpectations`. Imports no controller; `claim`, `template` and
//! `messages` are pure and may not import tokio or kube's client.

use std::{collections::BTreeMap, fmt, marker::PhantomData, sync::Arc};

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use windlass_kit::{
    events::{Recorder, Severity},
    objects::label_selector::Selector,
};

use super::{
    indexes::{PODS_BY_CONTROLLER, PODS_BY_LABEL, selected},
    pods,
    runtime::{
        Cache, Cached, CachedPod, Context, Error, Expectations, Key, PerOwner, SelectorIndex, StatusWriter, WorkQueue,
        bounded_join, error, same_object,
    },
};

mod claim;
pub(crate) mod messages;
mod ownership;
mod template;
#[cfg(test)]
mod tests;

pub(crate) use claim::{Claim, Claimant, claim, claim_members};
pub(crate) use ownership::{owner_reference, take_over, take_over_held};
pub(crate) use template::{batches, pod_of};

/// A kind with namespaced objects that informers cache, such as those that own pods.
pub(crate) trait Namespaced: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope> {}

impl<K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>> Namespaced for K {}

/// Why pods could not be created or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// How many pods were created or deleted, and why not all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) count: usize,
    /// How many were refused.
    pub(crate) failed: usize,
    pub(crate) failure: Option<Failure>,
}

/// The writes of pods for the owners of one kind.
pub(crate) struct PodControl<O> {
    client: Client,
    pods: Cache<CachedPod>,
    recorder: Recorder,
    expectations: PerOwner<Expectations>,
    statuses: StatusWriter<O>,
    kind: PhantomData<fn(&O)>,
}

impl<O> fmt::Debug for PodControl<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodControl").finish_non_exhaustive()
    }
}

impl<O: Namespaced> PodControl<O> {
    /// Uses the informer of pods, with the indexes that [`claimable`](Self::claimable) needs; events come from
    /// `component`.
    pub(crate) fn subscribe(context: &mut Context<Key>, component: &str) -> Self {
        let pods = context.informer::<CachedPod>();
        pods.index(&PODS_BY_CONTROLLER).index(&PODS_BY_LABEL);
        Self {
            client: context.client(),
            pods: pods.cache(),
            recorder: context.recorder(component),
            expectations: PerOwner::default(),
            statuses: StatusWriter::new(context.client(), context.informer::<O>().cache()),
            kind: PhantomData,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Records an event about an owner.
    pub(crate) fn record(&self, owner: &O, severity: Severity, reason: &str, message: String) {
        self.recorder.record(&owner.object_ref(&()), severity, reason, message);
    }

    /// Forgets the expectations of an owner that is gone.
    pub(crate) fn forget(&self, owner: &Key) {
        self.expectations.forget(owner);
        self.statuses.forget(owner);
    }

    /// Whether the cache shows all that was created and deleted for the owner with this UID. While it does not, nothing
    /// may be created or deleted for it.
    pub(crate) fn settled(&self, owner: &Key, uid: &str) -> bool {
        self.expectations.with(owner, uid, |expectations| expectations.satisfied(&self.pods, Instant::now()))
    }

    /// The owner has no more to write until the cache shows this pod, as the API returned it.
    pub(crate) fn expect_created(&self, owner: &O, pod: &Pod) {
        let mark = self.pods.sync_point(pod.metadata.resource_version.as_deref());
        let (key, uid) = (Key::of(owner.meta()), owner.uid().unwrap_or_default());
        self.expectations.with(&key, &uid, |e| e.expect_creation(mark, Instant::now()));
    }

    /// The same until this pod is terminating or gone.
    pub(crate) fn expect_deleted(&self, owner: &O, pod: &CachedPod) {
        let (key, uid) = (Key::of(owner.meta()), owner.uid().unwrap_or_default());
        let (deleted, its_uid) = (Key::of(&pod.metadata), pod.uid().unwrap_or_default());
        self.expectations.with(&key, &uid, |e| e.expect_deletion(deleted, its_uid, Instant::now()));
    }

    /// Whether the cache shows the last status that was written of the owner with this UID. While it does not, what it
    /// shows of the owner is old, and nothing may be decided on it.
    pub(crate) fn shows_status(&self, owner: &Key, uid: &str) -> bool {
        self.statuses.is_shown(owner, uid)
    }

    /// Writes the status of this version of an owner; one that is gone needs none.
    ///
    /// # Errors
    /// When the owner has changed meanwhile, and when the API refuses.
    pub(crate) async fn patch_status(&self, owner: &O, patch: Value) -> Result<(), Error> {
        self.statuses.write(owner, patch).await
    }

    /// The pods of a namespace that the owner with this UID controls, and those that match the selector, ordered by name.
    pub(crate) fn claimable(&self, namespace: &str, uid: &str, selector: Selector<'_>) -> Vec<Arc<CachedPod>> {
        let owned = self.pods.by_index(&PODS_BY_CONTROLLER, uid);
        let owned = owned.into_iter().filter(|pod| pod.metadata.namespace.as_deref() == Some(namespace));
        let matching = selected(&self.pods, namespace, selector);
        let both: BTreeMap<String, Arc<CachedPod>> = owned.chain(matching).map(|pod| (pod.name_any(), pod)).collect();
        both.into_values().collect()
    }

    /// The pods that the owner with this UID controls.
    pub(crate) fn controlled_by(&self, uid: &str) -> Vec<Arc<CachedPod>> {
        self.pods.by_index(&PODS_BY_CONTROLLER, uid)
    }

    /// Adopts and releases pods, as [`claim`] has found them.
    pub(crate) async fn claim(
        &self,
        owner: &O,
        adopt: &[Arc<CachedPod>],
        release: &[Arc<CachedPod>],
    ) -> Result<(), Error> {
        take_over(&self.client, owner, adopt, release).await
    }

    /// Creates pods in batches of 1, 2, 4 …, with an event for each; the first batch in which one fails is the last. In a
    /// terminating namespace nothing can be created, which is no failure.
    pub(crate) async fn create<'a>(&self, owner: &O, pods: impl IntoIterator<Item = &'a Pod>) -> Written {
        let pods: Vec<&Pod> = pods.into_iter().collect();
        let api: Api<Pod> = Api::namespaced(self.client(), &owner.namespace().unwrap_or_default());
        let (params, mut rest, mut written) = (PostParams::default(), pods.as_slice(), Written::default());
        for size in batches(pods.len()) {
            let (batch, later) = rest.split_at(size);
            rest = later;
            let created = bounded_join(batch.iter().map(|pod| api.create(&params, pod))).await;
            for result in created {
                match result {
                    Ok(pod) => {
                        self.expect_created(owner, &pod);
                        let text = messages::created(&pod.name_any());
                        self.record(owner, Severity::Normal, messages::SUCCESSFUL_CREATE, text);
                        written.count += 1;
                    }
                    Err(error) if error::is_namespace_terminating(&error) => rest = &[],
                    Err(error) => {
                        let message = error::message(&error);
                        let text = messages::create_failed(&message);
                        self.record(owner, Severity::Warning, messages::FAILED_CREATE, text);
                        written.failed += 1;
                        written.failure = Some(Failure { reason: messages::FAILED_CREATE, message });
                    }
                }
            }
            if written.failure.is_some() || rest.is_empty() {
                break;
            }
        }
        written
    }

    /// Deletes exactly these pods, with an event for each; one that is gone or another by now is left alone.
    pub(crate) async fn delete(&self, owner: &O, victims: &[Arc<CachedPod>]) -> Written {
        let api: Api<Pod> = Api::namespaced(self.client(), &owner.namespace().unwrap_or_default());
        let deletions = victims.iter().map(|pod| {
            let api = &api;
            async move {
                let params = DeleteParams::default().preconditions(same_object(&pod.metadata));
                (pod, api.delete(&pod.name_any(), &params).await)
            }
        });
        let mut written = Written::default();
        for (pod, result) in bounded_join(deletions).await {
            match result {
                Ok(_) => {
                    self.expect_deleted(owner, pod);
                    let text = messages::deleted(&pod.name_any());
                    self.record(owner, Severity::Normal, messages::SUCCESSFUL_DELETE, text);
                    written.count += 1;
                }
                Err(error) if error::is_not_found(&error) || error::is_conflict(&error) => {}
                Err(error) => {
                    let message = error::message(&error);
                    let text = messages::delete_failed(&message);
                    self.record(owner, Severity::Warning, messages::FAILED_DELETE, text);
                    written.failed += 1;
                    written.failure = Some(Failure { reason: messages::FAILED_DELETE, message });
                }
            }
        }
        written
    }
}

/// Queues the owners of a kind when they change, and when pods change that they have, had or could get. `selector` is
/// `None` for an owner that selects nothing.
pub(crate) fn watch_owners<O: Namespaced>(
    context: &mut Context<Key>,
    selector: for<'a> fn(&'a O) -> Option<Selector<'a>>,
) -> Cache<O> {
    watch_owners_of::<O, CachedPod>(context, selector)
}

/// The same for owners of objects of another kind.
pub(crate) fn watch_owners_of<O: Namespaced, T: Namespaced>(
    context: &mut Context<Key>,
    selector: for<'a> fn(&'a O) -> Option<Selector<'a>>,
) -> Cache<O> {
    let (owners, objects) = (context.informer::<O>(), context.informer::<T>());
    let selectors: Arc<Mutex<SelectorIndex>> = Arc::default();
    let (queue, index) = (context.queue(), Arc::clone(&selectors));
    owners.on_change(move |old, new| {
        let Some(owner) = new.or(old) else { return };
        let key = Key::of(owner.meta());
        let selector = new.and_then(|owner| selector(owner));
        index.lock().set(&key, selector);
        queue.add(key);
    });
    let (queue, cache) = (context.queue(), owners.cache());
    objects.on_change(move |old, new| queue_owners(&queue, &cache, selector, &selectors, old, new));
    owners.cache()
}

/// Queues the owners of kind `O` that control an object, or did before it changed.
pub(crate) fn queue_controllers<O: Namespaced, T: Namespaced>(
    queue: &WorkQueue<Key>,
    old: Option<&Arc<T>>,
    new: Option<&Arc<T>>,
) {
    for object in [old, new].into_iter().flatten() {
        if let Some(owner) = pods::controller_of(object.meta())
            && owner.kind == O::kind(&())
        {
            queue.add(Key::new(object.namespace().unwrap_or_default(), &owner.name));
        }
    }
}

fn queue_owners<O: Namespaced, T: Namespaced>(
    queue: &WorkQueue<Key>,
    owners: &Cache<O>,
    selector: for<'a> fn(&'a O) -> Option<Selector<'a>>,
    selectors: &Mutex<SelectorIndex>,
    old: Option<&Arc<T>>,
    new: Option<&Arc<T>>,
) {
    queue_controllers::<O, T>(queue, old, new);
    if let Some(object) = new
        && pods::controller_of(object.meta()).is_none()
    {
        let namespace = object.namespace().unwrap_or_default();
        let labels = object.meta().labels.as_ref();
        let candidates = selectors.lock().candidates(&namespace, labels);
        for owner in candidates.iter().filter_map(|key| owners.get(key)) {
            if selector(&owner).is_some_and(|selector| selector.matches(labels)) {
                queue.add(Key::of(owner.meta()));
            }
        }
    }
}
