//! Replication controller: keeps N pods of one template running for an owner. Generic over the owner's kind: a further
//! kind is one more `impl Owner`. `metrics`, `plan`, `ranking` and `status` are pure and may not import tokio or kube's
//! client.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;
use windlass_kit::objects::label_selector::Selector;

use super::{
    indexes::controller_uid,
    pod_control::{Failure, Namespaced, PodControl, Written, pod_of, watch_owners},
    pods,
    runtime::{CACHE_PATIENCE, Cache, CachedPod, Context, Controller, Error, Index, Key, Outcome},
};

mod metrics;
mod plan;
pub(super) mod ranking;
mod replica_set;
mod replication_controller;
mod status;
#[cfg(test)]
mod tests;

use metrics::SortingMetrics;
use plan::{Counts, Desired};

/// A kind whose objects own identical pods.
pub(crate) trait Owner: Namespaced {
    /// The name of its controller, as upstream names it.
    const CONTROLLER: &'static str;
    /// The name of its queue, as upstream names it.
    const QUEUE: &'static str;
    /// The source of its events, as upstream names it.
    const COMPONENT: &'static str;

    /// By the UID of what controls them, such as a Deployment.
    const BY_CONTROLLER: Index<Self> = Index::new("controller", controller_uid);

    /// The desired state; `None` when it selects nothing.
    fn desired(&self) -> Option<Desired<'_>>;

    fn template(&self) -> Option<&PodTemplateSpec>;

    /// The merge patch of its status, or `None` when it is unchanged.
    fn status_patch(&self, counts: Counts, failure: Option<&Failure>, now: Timestamp) -> Option<Value>;
}

/// The controller of one owner kind.
pub(crate) struct ReplicaSetController<O> {
    owners: Cache<O>,
    control: PodControl<O>,
    metrics: Arc<SortingMetrics>,
}

impl<O: Owner> ReplicaSetController<O> {
    /// The pods of all owners that have the same controller, such as the older ReplicaSets of a Deployment.
    fn related(&self, owner: &O) -> Vec<Arc<CachedPod>> {
        let Some(controller) = pods::controller_of(owner.meta()) else { return Vec::new() };
        let mut siblings = self.owners.by_index(&O::BY_CONTROLLER, &controller.uid);
        siblings.retain(|sibling| sibling.meta().namespace == owner.meta().namespace);
        let uids = siblings.iter().filter_map(|sibling| sibling.meta().uid.clone());
        uids.flat_map(|uid| self.control.controlled_by(&uid)).collect()
    }
}

fn selector_of<O: Owner>(owner: &O) -> Option<Selector<'_>> {
    owner.desired().map(|desired| desired.selector)
}

impl<O: Owner> Controller for ReplicaSetController<O> {
    const NAME: &'static str = O::CONTROLLER;
    const QUEUE: &'static str = O::QUEUE;
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let control = PodControl::subscribe(context, O::COMPONENT);
        let metrics = context.metrics().of();
        context.informer::<O>().index(&O::BY_CONTROLLER);
        Self { owners: watch_owners(context, selector_of::<O>), control, metrics }
    }

    /// Reconciles one owner.
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(owner) = self.owners.get(&key) else {
            self.control.forget(&key);
            return Ok(Outcome::Done);
        };
        let Some(desired) = owner.desired() else { return Ok(Outcome::Done) };
        if !self.control.shows_status(&key, desired.uid) {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let settled = self.control.settled(&key, desired.uid);
        let pods = self.control.claimable(&key.namespace, desired.uid, desired.selector);
        let now = Timestamp::now();
        let plan = plan::reconcile(&desired, &pods, || self.related(&owner), settled, now);
        self.control.claim(&owner, &plan.adopt, &plan.release).await?;
        let Written { failure, .. } = if plan.create > 0 {
            let pod = owner.template().map(|template| pod_of(template, &*owner));
            self.control.create(&owner, pod.iter().cycle().take(plan.create)).await
        } else {
            // Where all go, none was chosen.
            if desired.replicas > 0 {
                let ratios = metrics::age_ratios(&pods, &plan.delete, now);
                ratios.into_iter().for_each(|ratio| self.metrics.deletion_age_ratio.observe([], ratio));
            }
            self.control.delete(&owner, &plan.delete).await
        };
        if let Some(patch) = owner.status_patch(plan.counts, failure.as_ref(), Timestamp::now()) {
            self.control.patch_status(&owner, patch).await?;
        }
        Ok(match (failure, plan.recheck) {
            (Some(_), _) => Outcome::Failed,
            (None, Some(wait)) => Outcome::After(wait),
            (None, None) => Outcome::Done,
        })
    }
}
