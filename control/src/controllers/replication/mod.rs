//! Replication controller: keeps N pods of one template running for an owner. Generic over the owner's kind: a further
//! kind is one more `impl Owner`. `plan` and `ranking` are pure and may not import tokio or kube's client.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Pod, PodTemplateSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use windlass_kit::events::{Recorder, Severity};

use super::{
    indexes::{PODS_BY_CONTROLLER, PODS_BY_LABEL, selected},
    pods,
    runtime::{
        Cache, Cached, CachedPod, Context, Controller, During as _, Error, Expectations, Key, Outcome, SelectorIndex,
        WorkQueue, error,
    },
};

mod controller;
mod plan;
mod ranking;
#[cfg(test)]
mod tests;

use plan::{Counts, Desired, Plan};

/// Why the last run could not create or delete all pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// A kind whose objects own identical pods.
pub(crate) trait Owner: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Debug {
    /// The name of its controller, as upstream names it.
    const CONTROLLER: &'static str;
    /// The source of its events, as upstream names it.
    const COMPONENT: &'static str;

    /// The desired state; `None` when it selects nothing.
    fn desired(&self) -> Option<Desired<'_>>;

    fn template(&self) -> Option<&PodTemplateSpec>;

    /// The merge patch of its status, or `None` when it is unchanged.
    fn status_patch(&self, counts: Counts, failure: Option<&Failure>, now: Timestamp) -> Option<Value>;
}

/// The controller of one owner kind.
pub(crate) struct Replication<O> {
    client: Client,
    owners: Cache<O>,
    pods: Cache<CachedPod>,
    recorder: Recorder,
    /// By owner, with the owner's UID.
    expectations: Mutex<HashMap<Key, (String, Expectations)>>,
}

impl<O: Owner> Controller for Replication<O> {
    const NAME: &'static str = O::CONTROLLER;
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (owners, pods) = (context.informer::<O>(), context.informer::<CachedPod>());
        pods.index(&PODS_BY_CONTROLLER).index(&PODS_BY_LABEL);
        let selectors: Arc<Mutex<SelectorIndex>> = Arc::default();
        let (enqueue, index) = (context.queue(), Arc::clone(&selectors));
        owners.on_change(move |old, new| {
            let Some(owner) = new.or(old) else { return };
            let key = Key::of(owner.meta());
            let selector = new.and_then(|owner| owner.desired()).map(|desired| desired.selector);
            index.lock().unwrap_or_else(PoisonError::into_inner).set(&key, selector);
            enqueue.add(key);
        });
        let (enqueue, cache) = (context.queue(), owners.cache());
        pods.on_change(move |old, new| enqueue_owners(&enqueue, &cache, &selectors, old, new));
        Self {
            client: context.client(),
            owners: owners.cache(),
            pods: pods.cache(),
            recorder: context.recorder(O::COMPONENT),
            expectations: Mutex::default(),
        }
    }

    /// Reconciles one owner.
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(owner) = self.owners.get(&key) else {
            self.expectations.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            return Ok(Outcome::Done);
        };
        let Some(desired) = owner.desired() else { return Ok(Outcome::Done) };
        let settled = self.with_expectations(&key, desired.uid, |w| w.satisfied(&self.pods, Instant::now()));
        let plan = plan::reconcile(&desired, &self.claimable(&key, &desired), settled, Timestamp::now());
        self.claim(&owner, &key, &plan).await?;
        let failure = if plan.create > 0 {
            self.create(&owner, &key, plan.create).await
        } else {
            self.delete(&owner, &key, &plan.delete).await
        };
        if let Some(patch) = owner.status_patch(plan.counts, failure.as_ref(), Timestamp::now()) {
            let api: Api<O> = Api::namespaced(self.client.clone(), &key.namespace);
            let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            error::ignore_deleted(written).during("update the status of", &key)?;
        }
        Ok(match (failure, plan.recheck) {
            (Some(_), _) => Outcome::Failed,
            (None, Some(wait)) => Outcome::After(wait),
            (None, None) => Outcome::Done,
        })
    }
}

impl<O: Owner> Replication<O> {
    fn with_expectations<T>(&self, key: &Key, uid: &str, f: impl FnOnce(&mut Expectations) -> T) -> T {
        let mut all = self.expectations.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, expectations) = all.entry(key.clone()).or_default();
        if of != uid {
            (*of, *expectations) = (uid.to_owned(), Expectations::default());
        }
        f(expectations)
    }

    /// The pods that the owner controls, and those that match its selector, ordered by name.
    fn claimable(&self, key: &Key, desired: &Desired<'_>) -> Vec<Arc<CachedPod>> {
        let owned = self.pods.by_index(&PODS_BY_CONTROLLER, desired.uid);
        let matching = selected(&self.pods, &key.namespace, desired.selector);
        let owned = owned.into_iter().filter(|pod| pod.metadata.namespace.as_deref() == Some(&key.namespace));
        let both: BTreeMap<String, Arc<CachedPod>> = owned.chain(matching).map(|pod| (pod.name_any(), pod)).collect();
        both.into_values().collect()
    }

    async fn claim(&self, owner: &O, key: &Key, plan: &Plan) -> Result<(), Error> {
        if plan.adopt.is_empty() && plan.release.is_empty() {
            return Ok(());
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        if !plan.adopt.is_empty() {
            // The cache may be stale: a terminating owner must not adopt.
            let api: Api<O> = Api::namespaced(self.client.clone(), &key.namespace);
            let fresh = api.get_metadata_opt(&key.name).await.during("read", key)?;
            if !fresh.is_some_and(|f| f.uid() == owner.uid() && f.metadata.deletion_timestamp.is_none()) {
                return Err(Error::Changed(key.to_string()));
            }
        }
        let reference = owner_reference(owner);
        for pod in &plan.adopt {
            let mut owners = pod.metadata.owner_references.clone().unwrap_or_default();
            owners.retain(|o| o.uid != reference.uid);
            owners.push(reference.clone());
            patch_owners(&pods, pod, &owners).await.during("adopt a pod for", key)?;
        }
        for pod in &plan.release {
            let mut owners = pod.metadata.owner_references.clone().unwrap_or_default();
            owners.retain(|o| o.uid != reference.uid);
            patch_owners(&pods, pod, &owners).await.during("release a pod of", key)?;
        }
        Ok(())
    }

    async fn create(&self, owner: &O, key: &Key, count: usize) -> Option<Failure> {
        let template = owner.template()?;
        let pod = pod_of(template, &key.namespace, &key.name, owner_reference(owner));
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let (about, uid) = (owner.object_ref(&()), owner.uid().unwrap_or_default());
        for batch in plan::batches(count) {
            let params = PostParams::default();
            let created = join_all((0..batch).map(|_| api.create(&params, &pod))).await;
            let mut failure = None;
            for result in created {
                match result {
                    Ok(pod) => {
                        let mark = self.pods.sync_point(pod.metadata.resource_version.as_deref());
                        self.with_expectations(key, &uid, |w| w.expect_creation(mark, Instant::now()));
                        let text = format!("Created pod: {}", pod.name_any());
                        self.recorder.record(&about, Severity::Normal, "SuccessfulCreate", text);
                    }
                    Err(error) if error::is_namespace_terminating(&error) => return None,
                    Err(error) => {
                        let message = error::message(&error);
                        let text = format!("Error creating: {message}");
                        self.recorder.record(&about, Severity::Warning, "FailedCreate", text);
                        failure = Some(Failure { reason: "FailedCreate", message });
                    }
                }
            }
            if failure.is_some() {
                return failure;
            }
        }
        None
    }

    async fn delete(&self, owner: &O, key: &Key, victims: &[Arc<CachedPod>]) -> Option<Failure> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let (about, uid) = (owner.object_ref(&()), owner.uid().unwrap_or_default());
        let deletions = victims.iter().map(|pod| {
            let api = &api;
            async move {
                let params = DeleteParams {
                    preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
                    ..DeleteParams::default()
                };
                (pod, api.delete(&pod.name_any(), &params).await)
            }
        });
        let mut failure = None;
        for (pod, result) in join_all(deletions).await {
            match result {
                Ok(_) => {
                    let deleted = (Key::of(&pod.metadata), pod.uid().unwrap_or_default());
                    self.with_expectations(key, &uid, |w| w.expect_deletion(deleted.0, deleted.1, Instant::now()));
                    let text = format!("Deleted pod: {}", pod.name_any());
                    self.recorder.record(&about, Severity::Normal, "SuccessfulDelete", text);
                }
                Err(error) if error::is_not_found(&error) || error::is_conflict(&error) => {}
                Err(error) => {
                    let message = error::message(&error);
                    let text = format!("Error deleting: {message}");
                    self.recorder.record(&about, Severity::Warning, "FailedDelete", text);
                    failure = Some(Failure { reason: "FailedDelete", message });
                }
            }
        }
        failure
    }
}

/// Enqueues the owners that a changed pod has, had or could get.
fn enqueue_owners<O: Owner>(
    queue: &WorkQueue<Key>,
    owners: &Cache<O>,
    selectors: &Mutex<SelectorIndex>,
    old: Option<&Arc<CachedPod>>,
    new: Option<&Arc<CachedPod>>,
) {
    for pod in [old, new].into_iter().flatten() {
        if let Some(owner) = pods::controller_of(&pod.metadata)
            && owner.kind == O::kind(&())
        {
            queue.add(Key::new(pod.namespace().unwrap_or_default(), &owner.name));
        }
    }
    if let Some(pod) = new
        && pods::controller_of(&pod.metadata).is_none()
    {
        let namespace = pod.namespace().unwrap_or_default();
        let labels = pod.metadata.labels.as_ref();
        let candidates = selectors.lock().unwrap_or_else(PoisonError::into_inner).candidates(&namespace, labels);
        for owner in candidates.iter().filter_map(|key| owners.get(key)) {
            if owner.desired().is_some_and(|d| pods::selects(d.selector, labels)) {
                queue.add(Key::of(owner.meta()));
            }
        }
    }
}

/// Replaces the owner references of exactly this pod; a deleted or changed pod is ignored.
async fn patch_owners(api: &Api<Pod>, pod: &CachedPod, owners: &[OwnerReference]) -> Result<(), kube::Error> {
    let patch = json!({"metadata": {
        "uid": pod.metadata.uid,
        "resourceVersion": pod.metadata.resource_version,
        "ownerReferences": owners,
    }});
    match api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(error) if !error::is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}

fn owner_reference<O: Owner>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::api_version(&()).into_owned(),
        kind: O::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod of the template; the API appends five characters to the name's prefix.
fn pod_of(template: &PodTemplateSpec, namespace: &str, owner: &str, reference: OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let prefix = format!("{owner}-");
    Pod {
        metadata: ObjectMeta {
            // Too long with the dash: the dash is left out.
            generate_name: Some(if prefix.len() > 253 { owner.to_owned() } else { prefix }),
            namespace: Some(namespace.to_owned()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![reference]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}
