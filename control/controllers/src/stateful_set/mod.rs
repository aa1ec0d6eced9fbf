//! StatefulSet controller: keeps pods of fixed names, each with claims of its own, in order. `plan` decides; it, `identity`,
//! `retention`, `status` and `messages` are pure and may not import tokio or kube's client; `execute` writes.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec},
    core::v1::PersistentVolumeClaim,
};
use kube::ResourceExt;
use windlass_kit::{
    objects::int_or_percent::{Rounding, scaled},
    objects::label_selector::Selector,
};

use super::{
    history::{History, Revisions, Synced},
    pod_control::{PodControl, watch_owners},
    pods,
    runtime::{CACHE_PATIENCE, Cache, Context, Controller, Error, Key, Outcome, Step},
};

mod execute;
mod identity;
mod messages;
mod metrics;
mod plan;
mod retention;
mod status;
#[cfg(test)]
mod tests;

use metrics::SetMetrics;
use plan::{Desired, Update};

impl crate::runtime::Cached for StatefulSet {}

/// The key of a revision's label with its hash.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// The controller.
pub(crate) struct StatefulSetController {
    sets: Cache<StatefulSet>,
    claims: Cache<PersistentVolumeClaim>,
    control: PodControl<StatefulSet>,
    history: History<StatefulSet>,
}

impl fmt::Debug for StatefulSetController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatefulSetController").finish_non_exhaustive()
    }
}

fn selector_of(set: &StatefulSet) -> Option<Selector<'_>> {
    Selector::of(&set.spec.as_ref()?.selector)
}

fn count(value: i32) -> usize {
    usize::try_from(value).unwrap_or(0)
}

fn desired<'a>(set: &'a StatefulSet, spec: &StatefulSetSpec, current: &'a str, update: &'a str) -> Option<Desired<'a>> {
    let replicas = count(spec.replicas.unwrap_or(1));
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let max_unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let total = i32::try_from(replicas).unwrap_or(i32::MAX);
    let max_unavailable = max_unavailable.and_then(|value| scaled(value, total, Rounding::Down)).map_or(1, count);
    Some(Desired {
        name: set.metadata.name.as_deref()?,
        uid: set.metadata.uid.as_deref()?,
        selector: selector_of(set)?,
        replicas,
        start: i64::from(spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0)),
        ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        update: if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
            Update::OnDelete
        } else {
            let partition = count(rolling.and_then(|rolling| rolling.partition).unwrap_or(0));
            Update::Rolling { partition, max_unavailable: max_unavailable.max(1) }
        },
        min_ready: pods::min_ready(spec.min_ready_seconds),
        current_revision: current,
        update_revision: update,
    })
}

/// The revision that pods below the partition have: the one that the status names, else that of the template.
fn current_revision(set: &StatefulSet, revisions: &Revisions) -> Arc<ControllerRevision> {
    let named = set.status.as_ref().and_then(|status| status.current_revision.as_deref());
    let found = revisions.all.iter().find(|revision| revision.metadata.name.as_deref() == named);
    Arc::clone(found.unwrap_or(&revisions.update))
}

impl Controller for StatefulSetController {
    const NAME: &'static str = "statefulset-controller";
    const QUEUE: &'static str = "statefulset";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let control = PodControl::subscribe(context, Self::NAME);
        let history = History::subscribe(context, HASH_LABEL);
        let sets = watch_owners(context, selector_of);
        let claims = context.informer::<PersistentVolumeClaim>();
        let (queue, known) = (context.queue(), sets.clone());
        // A pod may wait for a claim to go, and a pending one needs those that went.
        claims.on_change(move |old, new| {
            let (Some(claim), None) = (old, new) else { return };
            let (name, namespace) = (claim.name_any(), claim.namespace().unwrap_or_default());
            let keys = identity::sets_of_claim(&name).map(|set| Key::new(&namespace, set));
            keys.filter(|key| known.get(key).is_some()).for_each(|key| queue.add(key));
        });
        context.metrics().of::<SetMetrics>().show(sets.clone());
        Self { sets, claims: claims.cache(), control, history }
    }

    /// Reconciles one set.
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(set) = self.sets.get(&key) else {
            self.control.forget(&key);
            self.history.forget(&key);
            return Ok(Outcome::Done);
        };
        let (Some(spec), Some(selector)) = (set.spec.as_ref(), selector_of(&set)) else { return Ok(Outcome::Done) };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        if !self.control.shows_status(&key, uid) {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let collisions = set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
        let revisions = match self.history.sync(&set, selector, &spec.template, Some(collisions)).await? {
            Synced::Known(revisions) => revisions,
            Synced::Behind => return Ok(Outcome::After(CACHE_PATIENCE)),
            Synced::Terminating => return Ok(Outcome::Done),
        };
        let current = current_revision(&set, &revisions);
        let (current_name, update_name) = (current.name_any(), revisions.update.name_any());
        let Some(desired) = desired(&set, spec, &current_name, &update_name) else { return Ok(Outcome::Done) };
        // Asked before the pods are read: what settled then is among them.
        let settled = self.control.settled(&key, desired.uid);
        let pods = self.control.claimable(&key.namespace, desired.uid, desired.selector);
        let plan = plan::reconcile(&desired, &pods, settled, Timestamp::now());
        self.control.claim(&set, &plan.adopt, &plan.release).await?;
        // The owners of a claim have to be right before its pod goes.
        let maintained = self.maintain(&set, &desired, &plan).await?;
        let ended = maintained.and(self.execute(&set, &current, &desired, &plan).await);
        let status = status::status(&set, &desired, plan.counts, revisions.collisions);
        if let Some(patch) = status::patch(&set, &status) {
            self.control.patch_status(&set, patch).await?;
        }
        let is_live = |revision: &ControllerRevision| {
            let name = revision.metadata.name.as_deref();
            name == Some(&current_name)
                || name == Some(&update_name)
                || plan.pods.values().any(|pod| identity::revision_of(pod) == name)
        };
        // Below zero, as upstream, all are kept.
        if spec.revision_history_limit.is_none_or(|limit| limit >= 0) {
            self.history.truncate(&set, &revisions, is_live, spec.revision_history_limit).await?;
        }
        Ok(match (ended, plan.recheck) {
            (Step::Done | Step::Waits(_), Some(wait)) => Outcome::After(wait),
            (ended, _) => ended.into(),
        })
    }
}
