//! Evicts pods from nodes with NoExecute taints, after their toleration seconds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
    objects::tolerations::{self, EvictAfter},
};

use crate::controllers::{
    indexes::PODS_BY_NODE,
    pods,
    runtime::{Cache, CachedPod, Context, Controller, During as _, Error, Key, Outcome, error, same_object},
};

pub(crate) struct TaintEviction {
    client: Client,
    nodes: Cache<Node>,
    pods: Cache<CachedPod>,
    recorder: Recorder,
    /// Pods to evict: UID, and since when.
    pending_evictions: Arc<Mutex<HashMap<Key, (String, Instant)>>>,
}

impl Controller for TaintEviction {
    const NAME: &'static str = "taint-eviction-controller";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (nodes, pods) = (context.informer::<Node>(), context.informer::<CachedPod>());
        pods.index(&PODS_BY_NODE);
        let (enqueue, all) = (context.queue(), pods.cache());
        nodes.on_change(move |old, new| {
            let taints = |node: Option<&Arc<Node>>| no_execute(node.map(AsRef::as_ref));
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
                let mut pending = evictions.lock().unwrap_or_else(PoisonError::into_inner);
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
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let condition = disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
        let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
        let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        error::ignore_deleted(written).during("say why it is deleted on pod", &key)?;
        let params = DeleteParams::default().preconditions(same_object(&pod.metadata));
        error::ignore_deleted(api.delete(&key.name, &params).await).during("evict pod", &key)?;
        self.pending(&key, &uid).remove(&key);
        Ok(Outcome::Done)
    }
}

impl TaintEviction {
    /// The pending evictions, without that of another pod of the same name.
    fn pending(&self, key: &Key, uid: &str) -> MutexGuard<'_, HashMap<Key, (String, Instant)>> {
        let mut pending = self.pending_evictions.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.get(key).is_some_and(|(of, _)| of != uid) {
            pending.remove(key);
        }
        pending
    }
}

fn no_execute(node: Option<&Node>) -> Vec<Taint> {
    let taints = node.and_then(|n| n.spec.as_ref()).and_then(|s| s.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|t| t.effect == "NoExecute").cloned().collect()
}

/// The DisruptionTarget condition of a pod that a controller deletes.
pub(crate) fn disruption(reason: &str, message: &str) -> serde_json::Value {
    json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::now()),
    })
}
