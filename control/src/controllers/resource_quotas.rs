//! ResourceQuota controller: copies the limits of a quota to its status and counts what is used. `quota` decides and is pure.
//!
//! The API server counts every write in the transaction that stores it, deletions too, so that objects need not be watched
//! here. Counted anew is a new quota, one whose limits change, one with a pod that should have been gone by now, and every
//! few minutes all. A count is written only if the quota has not changed since before it began: nothing is counted twice.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::runtime::{
    Cache, CachedPod, Context, Controller, During as _, Error, Key, Outcome, WorkQueue, error,
    kinds::{Kind, Kinds},
};
use crate::quota::{Evaluator, charged_until, recount};

/// How often all quotas are counted anew (upstream's default).
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);

pub(crate) struct ResourceQuotas {
    client: Client,
    quotas: Cache<ResourceQuota>,
    queue: WorkQueue<Key>,
}

impl Controller for ResourceQuotas {
    const NAME: &'static str = "resourcequota-controller";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (quotas, pods) = (context.informer::<ResourceQuota>(), context.informer::<CachedPod>());
        let queue = context.queue();
        quotas.on_change(move |old, new| {
            // As upstream: a change of the status alone is mended with the next count.
            if let Some(quota) = new.filter(|new| old.is_none_or(|old| old.spec != new.spec)) {
                queue.add(Key::of(quota.meta()));
            }
        });
        let (queue, cache) = (context.queue(), quotas.cache());
        pods.on_change(move |old: Option<&Arc<CachedPod>>, new: Option<&Arc<CachedPod>>| {
            let Some(end) = new.or(old).and_then(|pod| end_of(pod)) else { return };
            let left = end.duration_since(Timestamp::now());
            // One that goes in time was counted when it went.
            if new.is_none() && left.is_positive() {
                return;
            }
            let delay = Duration::try_from(left).unwrap_or_default() + Duration::from_secs(1);
            for quota in cache.in_namespace(&new.or(old).and_then(|pod| pod.namespace()).unwrap_or_default()) {
                queue.add_after(Key::of(quota.meta()), delay);
            }
        });
        Self { client: context.client(), quotas: quotas.cache(), queue: context.queue() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let resource = ApiResource::erase::<ResourceQuota>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        // Read before the objects are: whatever is counted meanwhile makes it another one.
        let read = api.get_opt(&key.name).await.during("read ResourceQuota", &key)?;
        let Some(mut quota) = read.filter(|quota| quota.metadata.deletion_timestamp.is_none()) else {
            return Ok(Outcome::Done);
        };
        let counted = self.count(&key, &quota.data["spec"]["hard"]).await?;
        let lists = counted.iter().map(|(evaluator, objects)| (evaluator, objects.as_deref()));
        let status = recount(&whole(&quota), lists, Timestamp::now());
        if quota.data["status"] == status {
            return Ok(Outcome::Done);
        }
        quota.data["status"] = status;
        match api.replace_status(&key.name, &PostParams::default(), &quota).await {
            // What was written while nobody counted a resource yet is found by another look.
            Ok(_) => Ok(Outcome::After(Duration::ZERO)),
            Err(error) if error::is_conflict(&error) => Err(Error::Changed(format!("ResourceQuota {key}"))),
            written => {
                error::ignore_deleted(written).during("write the status of ResourceQuota", &key).map(|_| Outcome::Done)
            }
        }
    }

    async fn run(&self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(RESYNC_INTERVAL) => {}
            }
            self.quotas.all().iter().for_each(|quota| self.queue.add(Key::of(quota.meta())));
        }
    }
}

/// Until when a pod that is being deleted counts.
fn end_of(pod: &CachedPod) -> Option<Timestamp> {
    let deletion = pod.metadata.deletion_timestamp.as_ref().map(|at| at.0);
    charged_until(deletion, pod.metadata.deletion_grace_period_seconds)
}

/// An object as JSON.
fn whole(object: &DynamicObject) -> Value {
    let mut value = object.data.clone();
    value["metadata"] = serde_json::to_value(&object.metadata).unwrap_or_default();
    value
}

impl ResourceQuotas {
    /// All objects of a namespace that a quota counts, by how they are counted; `None` of types that are not served.
    async fn count(&self, key: &Key, hard: &Value) -> Result<Vec<(Evaluator, Option<Vec<Value>>)>, Error> {
        let names = hard.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let mut resources: Vec<&str> = names.filter_map(Evaluator::resource_of).collect();
        resources.sort_unstable();
        resources.dedup();
        // Most quotas are about the core group alone.
        let kinds = if resources.iter().any(|resource| resource.contains('.')) {
            Kinds::discover(&self.client).await
        } else {
            Kinds::of_version(&self.client, "v1").await
        };
        let kinds = kinds.during("discover what is counted by", key)?;
        let mut counted = Vec::new();
        for resource in resources {
            let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
            let Some(evaluator) = Evaluator::of(group, plural) else { continue };
            let kind = kinds.all.iter().find(|kind| kind.namespaced && kind.group_resource() == resource);
            let objects = match kind.filter(|kind| kind.has(&["list"])) {
                Some(kind) => Some(self.objects(key, kind, &evaluator).await?),
                None => None,
            };
            counted.push((evaluator, objects));
        }
        Ok(counted)
    }

    /// The objects of one type; without their content where only their number counts.
    async fn objects(&self, key: &Key, kind: &Kind, evaluator: &Evaluator) -> Result<Vec<Value>, Error> {
        let api = kind.api(&self.client, &key.namespace);
        let what = "list what is counted by";
        if evaluator.counts_only_objects() {
            let list = api.list_metadata(&ListParams::default().limit(1)).await.during(what, key)?;
            let more = list.metadata.remaining_item_count.and_then(|more| usize::try_from(more).ok()).unwrap_or(0);
            return Ok(vec![Value::Null; list.items.len() + more]);
        }
        let list = api.list(&ListParams::default()).await.during(what, key)?;
        Ok(list.items.iter().map(whole).collect())
    }
}
