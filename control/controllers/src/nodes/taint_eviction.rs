//! Evicts pods from nodes with NoExecute taints, after their toleration seconds.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::Taint;
use kube::{Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use windlass_kit::{
    events::{Recorder, Severity},
    metrics::{Counter, Histogram, Metrics},
    object_ref,
    objects::tolerations::{self, EvictAfter},
    pod_ending::Ending,
    prometheus::Text,
};

use crate::{
    indexes::PODS_BY_NODE,
    pods,
    runtime::{Cache, CachedNode, CachedPod, Context, Controller, Error, Key, Outcome},
};

pub(crate) struct TaintEvictionController {
    client: Client,
    nodes: Cache<CachedNode>,
    pods: Cache<CachedPod>,
    recorder: Recorder,
    /// Pods to evict: UID, and since when.
    pending_evictions: Arc<Mutex<HashMap<Key, (String, Instant)>>>,
    metrics: Arc<EvictionMetrics>,
}

/// Metrics by upstream's names (`pkg/controller/tainteviction/metrics`).
struct EvictionMetrics {
    deletions: Counter<0>,
    latency: Histogram<0>,
}

impl Default for EvictionMetrics {
    fn default() -> Self {
        const BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];
        let name = "taint_eviction_controller_pod_deletion_duration_seconds";
        let help = "Time from when a pod may no longer stay on its node until it is deleted.";
        Self {
            deletions: Counter::new("taint_eviction_controller_pod_deletions_total", "Pods deleted for taints.", []),
            latency: Histogram::new(name, help, [], BUCKETS),
        }
    }
}

impl Metrics for EvictionMetrics {
    fn write(&self, page: &mut Text) {
        self.deletions.write(page);
        self.latency.write(page);
    }
}

impl Controller for TaintEvictionController {
    const NAME: &'static str = "taint-eviction-controller";
    const QUEUE: &'static str = "noexec_taint_pod";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (nodes, pods) = (context.informer::<CachedNode>(), context.informer::<CachedPod>());
        pods.index(&PODS_BY_NODE);
        let (enqueue, all) = (context.queue(), pods.cache());
        nodes.on_change(move |old, new| {
            let taints = |node: Option<&Arc<CachedNode>>| no_execute(node.map(AsRef::as_ref));
            if let Some(node) = new
                && taints(old) != taints(new)
            {
                for pod in all.by_index(&PODS_BY_NODE, &node.name_any()) {
                    enqueue.add(Key::of(&pod.metadata));
                }
            }
        });
        let pending_evictions: Arc<Mutex<HashMap<Key, (String, Instant)>>> = Arc::default();
        let (enqueue, all, evictions) = (context.queue(), nodes.cache(), Arc::clone(&pending_evictions));
        pods.on_change(move |old, new| {
            if let (Some(pod), None) = (old, new) {
                let mut pending = evictions.lock();
                pending.remove(&Key::of(&pod.metadata));
            }
            let Some(pod) = new.filter(|p| pods::is_active(p)) else { return };
            let node = pods::node_name(pod).and_then(|name| all.get(&Key::new("", name)));
            if !no_execute(node.as_deref()).is_empty() {
                enqueue.add(Key::of(&pod.metadata));
            }
        });
        Self {
            client: context.client(),
            nodes: nodes.cache(),
            pods: pods.cache(),
            recorder: context.recorder("taint-eviction-controller"),
            pending_evictions,
            metrics: context.metrics().of(),
        }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(&key).filter(|p| p.metadata.deletion_timestamp.is_none()) else {
            return Ok(Outcome::Done);
        };
        let uid = pod.uid().unwrap_or_default();
        let node = pods::node_name(&pod).and_then(|name| self.nodes.get(&Key::new("", name)));
        let taints = no_execute(node.as_deref());
        let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        let EvictAfter::Delay(time) = tolerations::evict_after(&taints, tolerations) else {
            if self.pending(&key, &uid).remove(&key).is_some() {
                let text = format!("Cancelling deletion of Pod {key}");
                self.recorder.record(&object_ref::of(&*pod), Severity::Normal, "TaintManagerEviction", text);
            }
            return Ok(Outcome::Done);
        };
        let since = self.pending(&key, &uid).entry(key.clone()).or_insert_with(|| (uid.clone(), Instant::now())).1;
        let left = time.saturating_sub(since.elapsed());
        if !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        let text = format!("Marking for deletion Pod {key}");
        self.recorder.record(&object_ref::of(&*pod), Severity::Normal, "TaintManagerEviction", text);
        let why = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
        if pods::end(&self.client, &pod, &Ending::evicted(why)).await? {
            self.metrics.deletions.add([]);
            self.metrics.latency.observe_duration([], since.elapsed().saturating_sub(time));
        }
        self.pending(&key, &uid).remove(&key);
        Ok(Outcome::Done)
    }
}

impl TaintEvictionController {
    /// The pending evictions, without that of another pod of the same name.
    fn pending(&self, key: &Key, uid: &str) -> MutexGuard<'_, HashMap<Key, (String, Instant)>> {
        let mut pending = self.pending_evictions.lock();
        if pending.get(key).is_some_and(|(of, _)| of != uid) {
            pending.remove(key);
        }
        pending
    }
}

fn no_execute(node: Option<&CachedNode>) -> Vec<Taint> {
    let taints = node.and_then(|n| n.spec.as_ref()).and_then(|s| s.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|t| t.effect == "NoExecute").cloned().collect()
}
