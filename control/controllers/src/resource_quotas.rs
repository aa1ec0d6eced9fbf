//! ResourceQuota controller: copies the limits of a quota to its status and counts what is used. `quota` decides and is pure.
//!
//! The API server counts every write in the transaction that stores it, deletions too, so that objects need not be watched
//! here. Counted again is a new quota, one whose limits change, one with a pod that should have been gone by now, and every
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
use windlass_kit::repairs::Repair;
use windlass_quota::{Evaluator, charged_until, recount};

use super::runtime::{
    Cache, CachedPod, Context, Controller, Discovery, During as _, Error, Key, Live, Outcome, WorkQueue, error,
    rest_mapper::{Kind, RestMapper},
};

impl crate::runtime::Cached for ResourceQuota {}

/// How often all quotas are counted again (upstream's default).
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);

/// What was counted, by how.
type Counted = Vec<(Evaluator, Option<Vec<Value>>)>;

pub(crate) struct ResourceQuotaController {
    client: Client,
    discovery: Discovery,
    quotas: Cache<ResourceQuota>,
    queue: WorkQueue<Key>,
}

impl Controller for ResourceQuotaController {
    const NAME: &'static str = "resourcequota-controller";
    const QUEUE: &'static str = "resourcequota_primary";
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
            // An object with a grace period was counted when its deletion began.
            if new.is_none() && left.is_positive() {
                return;
            }
            let delay = Duration::try_from(left).unwrap_or_default() + Duration::from_secs(1);
            for quota in cache.in_namespace(&new.or(old).and_then(|pod| pod.namespace()).unwrap_or_default()) {
                queue.add_after(Key::of(quota.meta()), delay);
            }
        });
        let discovery = context.discovery();
        Self { client: context.client(), discovery, quotas: quotas.cache(), queue: context.queue() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let resource = ApiResource::erase::<ResourceQuota>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        // Read before the objects are: whatever is counted meanwhile makes it another one.
        let read = api.get_opt(&key.name).await.during("read ResourceQuota", &key)?;
        let Some(mut quota) = read.filter(|quota| quota.metadata.deletion_timestamp.is_none()) else {
            return Ok(Outcome::Done);
        };
        let (counted, failure) = self.count(&key, &quota.data["spec"]["hard"]).await?;
        let done = |outcome| failure.map_or(Ok(outcome), Err);
        let lists = counted.iter().map(|(evaluator, objects)| (evaluator, objects.as_deref()));
        let status = recount(&whole(&quota), lists, Timestamp::now());
        if quota.data["status"] == status {
            return done(Outcome::Done);
        }
        quota.data["status"] = status;
        match api.replace_status(&key.name, &PostParams::default(), &quota).await {
            // Objects written before a resource was counted are found by another pass.
            Ok(_) => done(Outcome::After(Duration::ZERO)),
            Err(error) if error::is_conflict(&error) => Err(Error::Changed(format!("ResourceQuota {key}"))),
            written => {
                error::ignore_deleted(written).during("write the status of ResourceQuota", &key)?;
                done(Outcome::Done)
            }
        }
    }

    async fn run(&self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(Repair::QuotaResync.period(RESYNC_INTERVAL)) => {}
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

impl ResourceQuotaController {
    /// All objects of a namespace that a quota counts, by evaluator; `None` for types that are not served, and for
    /// those that cannot be listed, which do not block the others. The listing error is returned, too.
    async fn count(&self, key: &Key, hard: &Value) -> Result<(Counted, Option<Error>), Error> {
        let names = hard.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let mut resources: Vec<&str> = names.filter_map(Evaluator::resource_of).collect();
        resources.sort_unstable();
        resources.dedup();
        let kinds = self.kinds(key, &resources).await?;
        let (mut counted, mut failure) = (Vec::new(), None);
        for resource in resources {
            let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
            let Some(evaluator) = Evaluator::of(group, plural) else { continue };
            let objects = match find(&kinds, resource).filter(|kind| kind.has(&["list"])) {
                Some(kind) => self.objects(key, kind, &evaluator).await.map(Some),
                None => Ok(None),
            };
            let objects = objects.unwrap_or_else(|error| {
                tracing::warn!(quota = %key, resource, %error, "failed to count for a quota; counting the others");
                failure = Some(error);
                None
            });
            counted.push((evaluator, objects));
        }
        Ok((counted, failure))
    }

    /// The kinds of these resources. Most quotas are about the core group alone; what is known of other groups is asked for
    /// again only when a type is not among it.
    async fn kinds(&self, key: &Key, resources: &[&str]) -> Result<Arc<RestMapper>, Error> {
        let what = "discover what is counted by";
        if !resources.iter().any(|resource| resource.contains('.')) {
            return RestMapper::of_version(&self.client, "v1").await.map(Arc::new).during(what, key);
        }
        if let Some(known) = self.discovery.latest()
            && resources.iter().all(|resource| find(&known, resource).is_some())
        {
            return Ok(known);
        }
        RestMapper::discover(&self.client).await.map(Arc::new).during(what, key)
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
        let list = Live::list(&api).await.during(what, key)?;
        Ok(list.answer().iter().map(whole).collect())
    }
}

fn find<'a>(kinds: &'a RestMapper, resource: &str) -> Option<&'a Arc<Kind>> {
    kinds.all.iter().find(|kind| kind.namespaced && kind.group_resource() == resource)
}
