//! Deployment controller: rolls a pod template out through ReplicaSets, one for each template. `plan` and what it uses
//! (`annotations`, `messages`, `progress`, `replica_sets`, `rollback`, `scaling`, `steps`, `strategy`, `template`) are pure and
//! may not import tokio or kube's client.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass_kit::{
    events::{Recorder, Severity},
    objects::label_selector::Selector,
};

use super::{
    indexes::{PODS_BY_CONTROLLER, owned_or_ownerless, owner_or_namespace},
    pod_control::{Claim, Claimant, claim, take_over, watch_owners_of},
    pods,
    runtime::{
        CACHE_PATIENCE, Cache, CachedPod, Context, Controller, During as _, Error, Index, Key, Outcome, SyncPoint,
        WorkQueue, error, same_version,
    },
};

mod annotations;
mod messages;
mod plan;
mod progress;
mod replica_sets;
mod rollback;
mod scaling;
mod steps;
mod strategy;
mod template;
#[cfg(test)]
mod tests;

use plan::{Observed, Plan};
use rollback::Rollback;
use steps::{Step, Update};

impl crate::runtime::Cached for Deployment {}

const SETS_BY_OWNER: Index<ReplicaSet> = Index::new("owner", owner_or_namespace);

pub(crate) struct DeploymentController {
    client: Client,
    deployments: Cache<Deployment>,
    sets: Cache<ReplicaSet>,
    pods: Cache<CachedPod>,
    recorder: Recorder,
    /// The last write of a ReplicaSet of each Deployment.
    written: Mutex<HashMap<Key, SyncPoint>>,
}

fn selector_of(deployment: &Deployment) -> Option<Selector<'_>> {
    Selector::of(&deployment.spec.as_ref()?.selector)
}

impl Controller for DeploymentController {
    const NAME: &'static str = "deployment-controller";
    const QUEUE: &'static str = "deployment";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let deployments = watch_owners_of::<Deployment, ReplicaSet>(context, selector_of);
        let (sets, pods) = (context.informer::<ReplicaSet>(), context.informer::<CachedPod>());
        sets.index(&SETS_BY_OWNER);
        pods.index(&PODS_BY_CONTROLLER);
        let (queue, owners, owned) = (context.queue(), deployments.clone(), sets.cache());
        pods.on_change(move |old, new| {
            if let (Some(gone), None) = (old, new) {
                queue_recreating(&queue, &owners, &owned, gone);
            }
        });
        Self {
            client: context.client(),
            deployments,
            sets: sets.cache(),
            pods: pods.cache(),
            recorder: context.recorder("deployment-controller"),
            written: Mutex::default(),
        }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(deployment) = self.deployments.get(&key) else {
            self.written.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let written = self.written.lock().get(&key).copied();
        if written.is_some_and(|point| !self.sets.reached(point)) {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let Claim { ours, adopt, release } = self.claim(&key, &deployment);
        if !adopt.is_empty() || !release.is_empty() {
            take_over(&self.client, &*deployment, &adopt, &release).await?;
            // The changed ReplicaSets queue their owner.
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let pods = self.running_pods(&deployment, &ours);
        let observed = Observed { deployment: &deployment, sets: &ours, pods: &pods };
        let plan = plan::reconcile(&observed, Timestamp::now());
        self.execute(&key, &deployment, plan).await
    }
}

/// Queues the Deployment of a pod that is gone, if it waits for the end of its old pods.
fn queue_recreating(
    queue: &WorkQueue<Key>,
    deployments: &Cache<Deployment>,
    sets: &Cache<ReplicaSet>,
    pod: &Arc<CachedPod>,
) {
    let owner_of = |meta, kind: &str| {
        pods::controller_of(meta)
            .filter(|owner| owner.kind == kind)
            .map(|owner| (owner.uid.clone(), owner.name.clone()))
    };
    let namespace = pod.namespace().unwrap_or_default();
    let Some((uid, name)) = owner_of(&pod.metadata, "ReplicaSet") else { return };
    let Some(set) = sets.get(&Key::new(&*namespace, name)).filter(|set| set.uid() == Some(uid)) else { return };
    let Some((_, name)) = owner_of(&set.metadata, "Deployment") else { return };
    let key = Key::new(namespace, name);
    let recreates = |deployment: Arc<Deployment>| deployment.spec.as_ref().is_some_and(strategy::is_recreate);
    if deployments.get(&key).is_some_and(recreates) {
        queue.add(key);
    }
}

impl DeploymentController {
    /// The ReplicaSets that the Deployment has, should have and should not have.
    fn claim(&self, key: &Key, deployment: &Deployment) -> Claim<ReplicaSet> {
        let (Some(selector), Some(uid)) = (selector_of(deployment), deployment.metadata.uid.as_deref()) else {
            return Claim::default();
        };
        let objects = owned_or_ownerless(&self.sets, &SETS_BY_OWNER, &key.namespace, uid);
        let claimant = Claimant { uid, deleting: deployment.metadata.deletion_timestamp.is_some(), selector };
        claim(&claimant, &objects, |set| set.metadata.deletion_timestamp.is_none())
    }

    /// Pods that are not terminal, by ReplicaSet; empty unless the strategy is Recreate.
    fn running_pods(&self, deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> HashMap<String, usize> {
        if !deployment.spec.as_ref().is_some_and(strategy::is_recreate) {
            return HashMap::new();
        }
        let count = |uid: String| {
            let pods = self.pods.by_index(&PODS_BY_CONTROLLER, &uid);
            (uid, pods.iter().filter(|pod| !pods::is_terminal(pod)).count())
        };
        sets.iter().filter_map(|set| set.uid()).map(count).collect()
    }

    async fn execute(&self, key: &Key, deployment: &Deployment, plan: Plan) -> Result<Outcome, Error> {
        if plan.selects_all {
            let about = deployment.object_ref(&());
            self.recorder.record(&about, Severity::Warning, messages::SELECTING_ALL, messages::SELECTS_ALL);
        }
        // A ReplicaSet that is written twice has another version by then.
        let mut versions: HashMap<String, Option<String>> = HashMap::new();
        for step in &plan.steps {
            match step {
                Step::Create(set) => {
                    if let Some(end) = self.create(key, deployment, set).await? {
                        return Ok(end);
                    }
                }
                Step::Update(update) => self.update(key, deployment, update, &mut versions).await?,
                Step::Delete(set) => self.delete(key, set).await?,
            }
        }
        self.write_status(key, deployment, plan.status.as_ref(), plan.revision.as_deref()).await?;
        if let Some(rollback) = &plan.rollback {
            self.roll_back(key, deployment, rollback).await?;
        }
        Ok(plan.recheck.map_or(Outcome::Done, Outcome::After))
    }

    /// Takes a request for an earlier revision off the Deployment, and grants it.
    async fn roll_back(&self, key: &Key, deployment: &Deployment, rollback: &Rollback) -> Result<(), Error> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &key.namespace);
        // The cache does not hold all of it.
        let fresh = api.get_opt(&key.name).await.during("read", key)?;
        let unchanged = |fresh: &Deployment| {
            let (known, fresh) = (&deployment.metadata, &fresh.metadata);
            fresh.uid == known.uid && fresh.generation == known.generation
        };
        let Some(mut fresh) = fresh.filter(unchanged) else { return Err(Error::Changed(key.to_string())) };
        rollback::apply(rollback, &mut fresh);
        match api.replace(&key.name, &PostParams::default(), &fresh).await {
            Err(error) if error::is_conflict(&error) => return Err(Error::Changed(key.to_string())),
            written => drop(written.during("roll back", key)?),
        }
        self.recorder.record(&deployment.object_ref(&()), rollback.severity, rollback.reason, &*rollback.text);
        Ok(())
    }

    fn sets_of(&self, key: &Key) -> Api<ReplicaSet> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn remember(&self, key: &Key, set: &ReplicaSet) {
        let point = self.sets.sync_point(set.metadata.resource_version.as_deref());
        self.written.lock().insert(key.clone(), point);
    }

    fn record_scaled(&self, deployment: &Deployment, set: &str, from: i32, to: i32) {
        let about = deployment.object_ref(&());
        let text = messages::scaled(set, from, to);
        self.recorder.record(&about, Severity::Normal, messages::SCALING_REPLICA_SET, text);
    }

    /// Creates the new ReplicaSet; returns how the pass ends when it cannot.
    async fn create(&self, key: &Key, deployment: &Deployment, set: &ReplicaSet) -> Result<Option<Outcome>, Error> {
        let (api, name) = (self.sets_of(key), set.name_any());
        match api.create(&PostParams::default(), set).await {
            Ok(created) => {
                self.remember(key, &created);
                let size = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
                if size > 0 {
                    self.record_scaled(deployment, &name, 0, size);
                }
                Ok(None)
            }
            Err(error) if error::is_already_exists(&error) => {
                let found = api.get_opt(&name).await.during("read a ReplicaSet of", key)?;
                match found {
                    Some(found) if !plan::is_ours(deployment, &found) => {
                        self.write_status(key, deployment, Some(&plan::collided(deployment)), None).await?;
                        Ok(Some(Outcome::Done))
                    }
                    // Ours, which the cache does not show yet, or gone by now.
                    _ => Err(Error::Changed(key.to_string())),
                }
            }
            Err(error) if error::is_namespace_terminating(&error) => Ok(Some(Outcome::Done)),
            Err(error) => {
                let message = error::message(&error);
                let text = messages::create_failed(&name, &message);
                let about = deployment.object_ref(&());
                self.recorder.record(&about, Severity::Warning, messages::REPLICA_SET_CREATE_ERROR, text);
                let status = plan::create_failed(deployment, &name, &message, Timestamp::now());
                self.write_status(key, deployment, status.as_ref(), None).await?;
                Ok(Some(Outcome::Failed))
            }
        }
    }

    async fn update(
        &self,
        key: &Key,
        deployment: &Deployment,
        update: &Update,
        versions: &mut HashMap<String, Option<String>>,
    ) -> Result<(), Error> {
        let name = update.set.name_any();
        let version = versions.entry(name.clone()).or_insert_with(|| update.set.resource_version());
        let patch = Patch::Merge(update.patch(version.as_deref()));
        let written = self.sets_of(key).patch(&name, &PatchParams::default(), &patch).await;
        let written = error::ignore_deleted(written).during("update a ReplicaSet of", key)?;
        let Some(set) = written else { return Err(Error::Changed(key.to_string())) };
        self.remember(key, &set);
        version.clone_from(&set.metadata.resource_version);
        if let Some((from, to)) = update.scaled {
            self.record_scaled(deployment, &name, from, to);
        }
        Ok(())
    }

    async fn delete(&self, key: &Key, set: &ReplicaSet) -> Result<(), Error> {
        // The version, too: it must not have been scaled up meanwhile.
        let params = DeleteParams::background().preconditions(same_version(&set.metadata));
        let deleted = self.sets_of(key).delete(&set.name_any(), &params).await;
        error::ignore_deleted(deleted).during("delete an old ReplicaSet of", key)?;
        Ok(())
    }

    async fn write_status(
        &self,
        key: &Key,
        deployment: &Deployment,
        status: Option<&DeploymentStatus>,
        revision: Option<&str>,
    ) -> Result<(), Error> {
        if status.is_none() && revision.is_none() {
            return Ok(());
        }
        let patch = Patch::Merge(status_patch(deployment, status, revision));
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &key.namespace);
        error::of_seen(api.patch_status(&key.name, &PatchParams::default(), &patch).await, "update the status of", key)
            .map(drop)
    }
}

fn status_patch(deployment: &Deployment, status: Option<&DeploymentStatus>, revision: Option<&str>) -> Value {
    let meta = &deployment.metadata;
    let mut patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}});
    if let Some(revision) = revision {
        patch["metadata"]["annotations"] = json!({annotations::REVISION: revision});
    }
    if let Some(status) = status {
        let count = |count: Option<i32>| count.unwrap_or(0);
        patch["status"] = json!({
            "observedGeneration": status.observed_generation,
            "replicas": count(status.replicas),
            "updatedReplicas": count(status.updated_replicas),
            "readyReplicas": count(status.ready_replicas),
            "availableReplicas": count(status.available_replicas),
            "unavailableReplicas": count(status.unavailable_replicas),
            "terminatingReplicas": status.terminating_replicas,
            "collisionCount": status.collision_count,
            "conditions": status.conditions,
        });
    }
    patch
}
