//! Evicts pods from nodes with NoExecute taints, after their toleration seconds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tokio::time::Instant;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
    objects::tolerations::{self, EvictAfter},
};

use crate::controllers::{
    cache::{Cache, Informer},
    error::{self, Context, Error},
    key::Key,
    pods,
    workqueue::{Outcome, WorkQueue},
};

pub(crate) struct TaintEviction {
    client: Client,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    recorder: Recorder,
    queue: WorkQueue<Key>,
    /// Pods to evict, by UID, and since when.
    pending_evictions: Mutex<HashMap<String, Instant>>,
}

impl TaintEviction {
    pub(crate) fn new(client: Client, nodes: &mut Informer<Node>, pods: &mut Informer<Pod>) -> Self {
        let queue = WorkQueue::new();
        let (enqueue, all) = (queue.clone(), pods.cache());
        nodes.on_change(move |old, new| {
            let taints = |node: Option<&Arc<Node>>| no_execute(node.map(AsRef::as_ref));
            if let Some(node) = new
                && taints(old) != taints(new)
            {
                let name = node.name_any();
                for pod in all.all().iter().filter(|p| pods::node_name(p) == Some(&name)) {
                    enqueue.add(Key::of(&pod.metadata));
                }
            }
        });
        let (enqueue, all) = (queue.clone(), nodes.cache());
        pods.on_change(move |_, new| {
            let Some(pod) = new.filter(|p| pods::is_active(p)) else { return };
            let node = pods::node_name(pod).and_then(|name| all.get(&Key::new("", name)));
            if !no_execute(node.as_deref()).is_empty() {
                enqueue.add(Key::of(&pod.metadata));
            }
        });
        let recorder = Recorder::new(client.clone(), "taint-eviction-controller", "");
        Self { client, nodes: nodes.cache(), pods: pods.cache(), recorder, queue, pending_evictions: Mutex::default() }
    }

    pub(crate) fn queue(&self) -> &WorkQueue<Key> {
        &self.queue
    }

    pub(crate) async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(&key).filter(|p| p.metadata.deletion_timestamp.is_none()) else {
            self.prune_deleted();
            return Ok(Outcome::Done);
        };
        let uid = pod.uid().unwrap_or_default();
        let node = pods::node_name(&pod).and_then(|name| self.nodes.get(&Key::new("", name)));
        let taints = no_execute(node.as_deref());
        let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        let EvictAfter::Delay(time) = tolerations::evict_after(&taints, tolerations) else {
            let was = self.pending_evictions.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
            if was.is_some() {
                let text = format!("Cancelling deletion of Pod {key}");
                self.recorder.record(&object_ref::of(&*pod), Severity::Normal, "TaintManagerEviction", text);
            }
            return Ok(Outcome::Done);
        };
        let since = *self
            .pending_evictions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(uid.clone())
            .or_insert_with(Instant::now);
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
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        error::ignore_deleted(api.delete(&key.name, &params).await).during("evict pod", &key)?;
        self.pending_evictions.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        Ok(Outcome::Done)
    }

    fn prune_deleted(&self) {
        let mut pending_evictions = self.pending_evictions.lock().unwrap_or_else(PoisonError::into_inner);
        if !pending_evictions.is_empty() {
            let live: std::collections::HashSet<String> = self.pods.all().iter().filter_map(|p| p.uid()).collect();
            pending_evictions.retain(|uid, _| live.contains(uid));
        }
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
