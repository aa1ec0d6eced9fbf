//! Node lifecycle controller: a node without heartbeats becomes Unknown and its pods not ready, and taints follow
//! conditions. Timers, no polling.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeCondition, Pod, PodCondition},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use super::{
    health::{self, Eviction},
    metrics::NodeMetrics,
    silence::{Seen, WriteStalls},
    zones::{self, Zones},
};
use crate::{
    indexes::PODS_BY_NODE,
    pods,
    runtime::{Cache, CachedNode, CachedPod, Context, Controller, During as _, Error, Key, Outcome, error},
};

impl crate::runtime::Cached for Lease {}

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Grace periods of heartbeats.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    pub(crate) grace: Duration,
    /// For a node that has never reported.
    pub(crate) startup_grace: Duration,
    /// The time that does not count.
    pub(crate) stalls: WriteStalls,
}

/// The last heartbeat of a node.
#[derive(Debug)]
struct NodeHealth {
    uid: String,
    heartbeat: Option<Timestamp>,
    renewed: Option<Timestamp>,
    /// When this process saw it, by its own clock.
    at: Seen,
    expired: bool,
}

#[derive(Debug, Default)]
struct HealthMap {
    seen: HashMap<String, NodeHealth>,
    /// When the next node of a zone may be evicted.
    next_eviction: HashMap<String, Instant>,
    zones: Zones,
}

pub(crate) struct NodeLifecycleController {
    client: Client,
    nodes: Cache<CachedNode>,
    pods: Cache<CachedPod>,
    recorder: Recorder,
    timing: Timing,
    memory: Arc<Mutex<HealthMap>>,
    metrics: Arc<NodeMetrics>,
}

impl Controller for NodeLifecycleController {
    const NAME: &'static str = "node-lifecycle-controller";
    const QUEUE: &'static str = "node_lifecycle_controller";
    type Key = Key;
    type Config = Timing;

    fn subscribe(context: &mut Context<Key>, timing: Timing) -> Self {
        let (nodes, pods, leases) =
            (context.informer::<CachedNode>(), context.informer::<CachedPod>(), context.informer::<Lease>());
        pods.index(&PODS_BY_NODE);
        let memory: Arc<Mutex<HealthMap>> = Arc::default();
        let recorder = context.recorder("node-controller");

        let metrics: Arc<NodeMetrics> = context.metrics().of();
        let (enqueue, seen, events) = (context.queue(), Arc::clone(&memory), recorder.clone());
        let (shown, stalls) = (Arc::clone(&metrics), timing.stalls.clone());
        nodes.on_change(move |old, new| {
            let mut memory = seen.lock();
            let (old_node, new_node) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
            let others = on_node(&mut memory, old_node, new_node, stalls.now(), &events);
            shown.show(memory.zones.sizes());
            drop(memory);
            if let Some(node) = new.or(old) {
                enqueue.add(Key::of(&node.metadata));
            }
            others.into_iter().for_each(|name| enqueue.add(Key::new("", name)));
        });
        let (enqueue, seen, stalls) = (context.queue(), Arc::clone(&memory), timing.stalls.clone());
        leases.on_change(move |_, new| {
            let Some(lease) = new.filter(|l| l.namespace().as_deref() == Some(LEASE_NAMESPACE)) else { return };
            let renewed = lease.spec.as_ref().and_then(|s| s.renew_time.as_ref()).map(|t| t.0);
            if let Some(seen) = seen.lock().seen.get_mut(&lease.name_any())
                && seen.renewed < renewed
            {
                (seen.renewed, seen.at) = (renewed, stalls.now());
                if seen.expired {
                    enqueue.add(Key::new("", lease.name_any()));
                }
            }
        });
        // A pod that becomes ready on an unreachable node.
        let (enqueue, all) = (context.queue(), nodes.cache());
        pods.on_change(move |_, new| {
            if let Some(name) = new.filter(|p| pods::is_ready(p)).and_then(|p| pods::node_name(p)) {
                let key = Key::new("", name);
                if all.get(&key).is_some_and(|n| health::ready(&n) == "Unknown") {
                    enqueue.add(key);
                }
            }
        });
        Self { client: context.client(), nodes: nodes.cache(), pods: pods.cache(), recorder, timing, memory, metrics }
    }

    /// Reconciles one node.
    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        let began = Instant::now();
        let outcome = self.update(&key, CachedNode::clone(&node)).await;
        self.metrics.update.observe_duration([], began.elapsed());
        outcome
    }
}

impl NodeLifecycleController {
    async fn update(&self, key: &Key, mut node: CachedNode) -> Result<Outcome, Error> {
        let reported = health::condition(&node, "Ready").is_some();
        let grace = if reported { self.timing.grace } else { self.timing.startup_grace };
        let Some(left) = self.grace_left(&key.name, grace) else { return Ok(Outcome::Done) };
        if left.is_zero()
            && let Some(conditions) = health::heartbeat_expired(&node, Timestamp::now())
        {
            self.mark_unreachable(key, &mut node, conditions).await?;
        }
        let (eviction, retry_after) = self.eviction(&node);
        if let Some(taints) = health::taints(&node, eviction, Timestamp::now()) {
            let patch = json!({
                "metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints},
            });
            let api: Api<Node> = Api::all(self.client.clone());
            let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            match written {
                Err(error) if error::is_not_found(&error) => return Ok(Outcome::Done),
                other => drop(other.during("set the taints of node", key)?),
            }
        }
        if reported && health::ready(&node) == "Unknown" {
            self.mark_pods_not_ready(&key.name).await?;
        }
        let left = (!left.is_zero()).then_some(left);
        Ok(left.into_iter().chain(retry_after).min().map_or(Outcome::Done, Outcome::After))
    }

    /// Time left until the grace period ends; `None` for an unknown node.
    fn grace_left(&self, name: &str, grace: Duration) -> Option<Duration> {
        let mut memory = self.memory.lock();
        let seen = memory.seen.get_mut(name)?;
        let left = grace.saturating_sub(self.timing.stalls.silence(seen.at));
        seen.expired = left.is_zero();
        Some(left)
    }

    async fn mark_unreachable(
        &self,
        key: &Key,
        node: &mut CachedNode,
        conditions: Vec<NodeCondition>,
    ) -> Result<(), Error> {
        let was_ready = health::ready(node) == "True";
        let patch = json!({
            "metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        let api: Api<CachedNode> = Api::all(self.client.clone());
        let fresh = api
            .patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .during("set the conditions of the silent node", key)?;
        if was_ready {
            tracing::warn!(node = key.name, "node stopped posting status; marking it not ready");
            let text = format!("Node {} status is now: NodeNotReady", key.name);
            self.recorder.record(&object_ref::of(node), Severity::Normal, "NodeNotReady", text);
        }
        *node = fresh;
        Ok(())
    }

    /// Whether this node's pods may be evicted now, and when to check again.
    fn eviction(&self, node: &CachedNode) -> (Eviction, Option<Duration>) {
        if health::ready(node) == "True" {
            return (Eviction::NotYet, None);
        }
        let now = Instant::now();
        let mut memory = self.memory.lock();
        let (state, all_down) = memory.zones.without(&node.name_any());
        if all_down {
            return (Eviction::Stopped, None);
        }
        let evicted = node
            .spec
            .iter()
            .flat_map(|s| s.taints.iter().flatten())
            .any(|t| t.effect == "NoExecute" && (t.key == health::NOT_READY || t.key == health::UNREACHABLE));
        if evicted || health::condition(node, "Ready").is_none() {
            return (Eviction::NotYet, None);
        }
        let zone = zones::zone(node);
        let Some(interval) = zones::eviction_interval(state).map(Duration::from_secs) else {
            return (Eviction::NotYet, None);
        };
        match memory.next_eviction.get(&zone).copied() {
            Some(at) if at > now => (Eviction::NotYet, Some(at - now)),
            _ => {
                self.metrics.evictions.add([&zone]);
                memory.next_eviction.insert(zone, now + interval);
                (Eviction::Allowed, None)
            }
        }
    }

    /// Sets the pods of an unreachable node to not ready.
    async fn mark_pods_not_ready(&self, node: &str) -> Result<(), Error> {
        for pod in self.pods.by_index(&PODS_BY_NODE, node).into_iter().filter(|pod| pods::is_ready(pod)) {
            let condition = PodCondition {
                type_: "Ready".to_owned(),
                status: "False".to_owned(),
                last_transition_time: Some(Time(Timestamp::now())),
                ..PodCondition::default()
            };
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            let written = api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await;
            if error::ignore_deleted(written).during("mark as not ready the pod", &Key::of(&pod.metadata))?.is_some() {
                let about = object_ref::of(&*pod);
                self.recorder.record(&about, Severity::Warning, "NodeNotReady", "Node is not ready");
            }
        }
        Ok(())
    }
}

/// Records the heartbeat in a node's status, and added and deleted nodes; returns the other nodes to enqueue.
fn on_node(
    memory: &mut HealthMap,
    old: Option<&CachedNode>,
    new: Option<&CachedNode>,
    now: Seen,
    recorder: &Recorder,
) -> Vec<String> {
    let Some(node) = new.or(old) else { return Vec::new() };
    let (name, uid) = (node.name_any(), node.uid().unwrap_or_default());
    let counted = new.filter(|node| !zones::is_excluded(node));
    let effect = memory.zones.set(&name, counted.map(|node| (zones::zone(node), health::ready(node) == "True")));
    if effect.recovered {
        // All zones were down, so the fault was likely on this side: every node gets a new grace period.
        memory.seen.values_mut().for_each(|seen| seen.at = now);
    }
    if new.is_none() {
        memory.seen.remove(&name);
        let text = format!("Node {name} event: Removing Node {name} from Controller");
        recorder.record(&object_ref::of(node), Severity::Normal, "RemovingNode", text);
        return effect.reconsider;
    }
    let heartbeat = health::condition(node, "Ready").and_then(|c| c.last_heartbeat_time.as_ref()).map(|t| t.0);
    // Our own writes of conditions keep the heartbeat's time.
    match memory.seen.get_mut(&name).filter(|seen| seen.uid == uid) {
        Some(seen) if seen.heartbeat < heartbeat => (seen.heartbeat, seen.at) = (heartbeat, now),
        Some(_) => {}
        None => {
            memory.seen.insert(name.clone(), NodeHealth { uid, heartbeat, renewed: None, at: now, expired: false });
            let text = format!("Node {name} event: Registered Node {name} in Controller");
            recorder.record(&object_ref::of(node), Severity::Normal, "RegisteredNode", text);
        }
    }
    effect.reconsider
}
