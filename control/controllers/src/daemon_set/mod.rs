//! DaemonSet controller: keeps one pod on every node that fits. `plan` decides; it, `backoff`, `placement`, `status` and
//! `messages` are pure and may not import tokio or kube's client.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec},
    core::v1::Pod,
};
use kube::ResourceExt;
use windlass_kit::{
    events::Severity,
    objects::int_or_percent::{Rounding, scaled},
    objects::label_selector::Selector,
};

use super::{
    history::{History, Synced},
    pod_control::{PodControl, watch_owners},
    pods,
    runtime::{CACHE_PATIENCE, Cache, CachedNode, Context, Controller, Error, Key, Outcome, PerOwner},
};

mod backoff;
mod messages;
mod placement;
mod plan;
mod status;
#[cfg(test)]
mod tests;

use backoff::FailedPods;
use placement::{Fit, HASH_LABEL, NodeChange, Placement};
use plan::{Desired, Plan, Update};

impl crate::runtime::Cached for DaemonSet {}

/// The source of its events, as upstream names it.
const COMPONENT: &str = "daemonset-controller";

/// The controller.
pub(crate) struct DaemonSetController {
    sets: Cache<DaemonSet>,
    nodes: Cache<CachedNode>,
    control: PodControl<DaemonSet>,
    history: History<DaemonSet>,
    failed: PerOwner<FailedPods>,
    /// The number of changes of nodes that a placement may depend on.
    node_changes: Arc<AtomicU64>,
    placements: Arc<PerOwner<Placement>>,
}

impl fmt::Debug for DaemonSetController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DaemonSetController").finish_non_exhaustive()
    }
}

fn selector_of(set: &DaemonSet) -> Option<Selector<'_>> {
    Selector::of(&set.spec.as_ref()?.selector)
}

fn fit(set: &DaemonSet, node: Option<&Arc<CachedNode>>) -> Fit {
    match (set.spec.as_ref(), node) {
        (Some(spec), Some(node)) => placement::fit(&spec.template, node),
        _ => Fit { run: false, stay: false },
    }
}

/// How pods are updated on this number of nodes.
fn update(spec: &DaemonSetSpec, nodes: usize) -> Update {
    let strategy = spec.update_strategy.as_ref();
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return Update::OnDelete;
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let total = i32::try_from(nodes).unwrap_or(i32::MAX);
    let number = |value: Option<&_>, default: i32| {
        let number = value.map_or(Some(default), |value| scaled(value, total, Rounding::Up)).unwrap_or(0);
        usize::try_from(number).unwrap_or(0)
    };
    let max_surge = number(rolling.and_then(|rolling| rolling.max_surge.as_ref()), 0);
    let max_unavailable = number(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), 1);
    // With neither, an update would never begin.
    let max_unavailable = if max_surge == 0 { max_unavailable.max(1) } else { max_unavailable };
    Update::Rolling { max_unavailable, max_surge }
}

fn hash_of(revision: &ControllerRevision) -> Option<&String> {
    revision.metadata.labels.as_ref()?.get(HASH_LABEL)
}

impl DaemonSetController {
    /// Which nodes fit a set. Pods that change do not change that.
    fn fits(&self, key: &Key, set: &DaemonSet, spec: &DaemonSetSpec) -> Arc<BTreeMap<String, Fit>> {
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        // Read before the nodes are: what changes meanwhile is found next time.
        let of = (set.metadata.generation, self.node_changes.load(Ordering::Acquire));
        if let Some(known) = self.placements.with(key, uid, |placement| placement.known(of)) {
            return known;
        }
        let nodes = self.nodes.all();
        let fits = nodes.iter().map(|node| (node.name_any(), placement::fit(&spec.template, node))).collect();
        self.placements.with(key, uid, |placement| placement.set(of, fits))
    }

    /// Creates and deletes pods; false when one could not be.
    async fn execute(&self, set: &DaemonSet, spec: &DaemonSetSpec, hash: &str, plan: &Plan, now: Timestamp) -> bool {
        let (key, uid) = (Key::of(&set.metadata), set.uid().unwrap_or_default());
        for ended in &plan.ended {
            let name = ended.pod.name_any();
            let (severity, reason, text) = if ended.failed {
                self.failed.with(&key, &uid, |failed| failed.deleted(&ended.node, now));
                let text = messages::failed(&key.namespace, &name, &ended.node);
                (Severity::Warning, messages::FAILED_DAEMON_POD, text)
            } else {
                let text = messages::succeeded(&key.namespace, &name, &ended.node);
                (Severity::Normal, messages::SUCCEEDED_DAEMON_POD, text)
            };
            self.control.record(set, severity, reason, text);
        }
        let pods: Vec<Pod> =
            plan.create.iter().map(|node| placement::new_pod(set, &spec.template, hash, node)).collect();
        let created = self.control.create(set, &pods).await;
        let deleted = self.control.delete(set, &plan.delete).await;
        created.failure.is_none() && deleted.failure.is_none()
    }
}

impl Controller for DaemonSetController {
    const NAME: &'static str = "daemonset-controller";
    const QUEUE: &'static str = "daemonset";
    const WORKERS: usize = 2;
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let control = PodControl::subscribe(context, COMPONENT);
        let history = History::subscribe(context, HASH_LABEL);
        let sets = watch_owners(context, selector_of);
        let nodes = context.informer::<CachedNode>();
        let node_changes: Arc<AtomicU64> = Arc::default();
        let placements: Arc<PerOwner<Placement>> = Arc::default();
        let (queue, known, changes, of_sets) =
            (context.queue(), sets.clone(), Arc::clone(&node_changes), Arc::clone(&placements));
        nodes.on_change(move |old, new| {
            if let (Some(old), Some(new)) = (old, new)
                && !placement::has_changed(old, new)
            {
                return;
            }
            let change = NodeChange {
                number: changes.fetch_add(1, Ordering::AcqRel) + 1,
                name: new.or(old).and_then(|node| node.metadata.name.as_deref()).unwrap_or_default(),
            };
            // Any set may be concerned.
            for set in known.all() {
                let (key, uid) = (Key::of(&set.metadata), set.uid().unwrap_or_default());
                let (before, after) = (fit(&set, old), fit(&set, new));
                let generation = set.metadata.generation;
                of_sets.with(&key, &uid, |placement| placement.follow(generation, &change, new.map(|_| after)));
                if before != after {
                    queue.add(key);
                }
            }
        });
        let failed = PerOwner::default();
        Self { sets, nodes: nodes.cache(), control, history, failed, node_changes, placements }
    }

    /// Reconciles one set.
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(set) = self.sets.get(&key) else {
            self.control.forget(&key);
            self.history.forget(&key);
            self.failed.forget(&key);
            self.placements.forget(&key);
            return Ok(Outcome::Done);
        };
        let (Some(spec), Some(uid)) = (set.spec.as_ref(), set.metadata.uid.as_deref()) else {
            return Ok(Outcome::Done);
        };
        let Some(selector) = selector_of(&set) else {
            let text = messages::SELECTING_ALL_TEXT.to_owned();
            self.control.record(&set, Severity::Warning, messages::SELECTING_ALL, text);
            return Ok(Outcome::Done);
        };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        if !self.control.shows_status(&key, uid) {
            return Ok(Outcome::After(CACHE_PATIENCE));
        }
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let revisions = match self.history.sync(&set, selector, &spec.template, collisions).await? {
            Synced::Known(revisions) => revisions,
            Synced::Behind => return Ok(Outcome::After(CACHE_PATIENCE)),
            Synced::Terminating => return Ok(Outcome::Done),
        };
        let hash = hash_of(&revisions.update).cloned().unwrap_or_default();
        // Asked before the pods are read: what settled then is among them.
        let settled = self.control.settled(&key, uid);
        let pods = self.control.claimable(&key.namespace, uid, selector);
        let nodes = self.fits(&key, &set, spec);
        let wanted = nodes.values().filter(|fit| fit.run).count();
        let desired = Desired {
            uid,
            selector,
            hash: &hash,
            update: update(spec, wanted),
            min_ready: pods::min_ready(spec.min_ready_seconds),
        };
        let now = Timestamp::now();
        let failed = self.failed.with(&key, uid, |failed| failed.clone());
        let plan = plan::reconcile(&desired, &nodes, &pods, &failed, settled, now);
        self.control.claim(&set, &plan.adopt, &plan.release).await?;
        let succeeded = self.execute(&set, spec, &hash, &plan, now).await;
        if let Some(patch) = status::patch(&set, plan.counts, revisions.collisions, settled) {
            self.control.patch_status(&set, patch).await?;
        }
        let update_name = revisions.update.name_any();
        let is_live = |revision: &ControllerRevision| {
            revision.metadata.name.as_deref() == Some(&update_name)
                || hash_of(revision).is_some_and(|hash| plan.live.contains(hash))
        };
        self.history.truncate(&set, &revisions, is_live, spec.revision_history_limit).await?;
        Ok(match (succeeded, plan.recheck) {
            (false, _) => Outcome::Failed,
            (true, Some(wait)) => Outcome::After(wait),
            (true, None) => Outcome::Done,
        })
    }
}
