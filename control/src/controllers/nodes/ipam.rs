//! Node IPAM: allocates pod CIDRs to nodes, once.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use super::Ranges;
use crate::controllers::{
    cache::{Cache, Informer},
    error::{Context, Error, ignore_deleted},
    key::Key,
    workqueue::{Outcome, WorkQueue},
};

pub(crate) struct NodeIpam {
    client: Client,
    nodes: Cache<Node>,
    ranges: Vec<Ranges>,
    recorder: Recorder,
    queue: WorkQueue<Key>,
    /// Allocations that may not be in the cache yet, by node UID.
    given: Mutex<BTreeMap<String, Vec<String>>>,
}

impl NodeIpam {
    pub(crate) fn new(client: Client, nodes: &mut Informer<Node>, ranges: Vec<Ranges>) -> Self {
        let queue = WorkQueue::new();
        let enqueue = queue.clone();
        nodes.on_change(move |_, new| {
            if let Some(node) = new
                && pod_cidrs(node).is_empty()
            {
                enqueue.add(Key::of(&node.metadata));
            }
        });
        let recorder = Recorder::new(client.clone(), "cidrAllocator", "");
        Self { client, nodes: nodes.cache(), ranges, recorder, queue, given: Mutex::default() }
    }

    pub(crate) fn queue(&self) -> &WorkQueue<Key> {
        &self.queue
    }

    /// One worker, so that no two nodes get the same CIDR.
    pub(crate) async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        if self.ranges.is_empty() || !pod_cidrs(&node).is_empty() || node.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let uid = node.uid().unwrap_or_default();
        let Some(parts) = self.choose(&uid) else {
            let text = format!("Node {} status is now: CIDRNotAvailable", node.name_any());
            self.recorder.record(&object_ref::of(&*node), Severity::Normal, "CIDRNotAvailable", text);
            return Ok(Outcome::Failed);
        };
        let patch = json!({"metadata": {"uid": uid}, "spec": {"podCIDR": parts[0], "podCIDRs": parts}});
        let api: Api<Node> = Api::all(self.client.clone());
        let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        ignore_deleted(written).during("set the pod range of node", &key)?;
        tracing::info!(node = key.name, range = parts.join(","), "allocated pod CIDR");
        Ok(Outcome::Done)
    }

    /// A CIDR of each range for the node; the same ones while the first write is not in the cache.
    fn choose(&self, uid: &str) -> Option<Vec<String>> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = self.nodes.all();
        given.retain(|uid, _| nodes.iter().any(|n| n.metadata.uid.as_ref() == Some(uid)));
        if let Some(parts) = given.get(uid) {
            return Some(parts.clone());
        }
        let taken: Vec<String> =
            nodes.iter().flat_map(|n| pod_cidrs(n)).chain(given.values().flatten().cloned()).collect();
        let parts: Option<Vec<String>> =
            self.ranges.iter().map(|range| range.next_free(taken.iter().map(String::as_str))).collect();
        given.insert(uid.to_owned(), parts.clone()?);
        parts
    }
}

fn pod_cidrs(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let mut all: Vec<String> = spec.pod_cidrs.iter().flatten().cloned().collect();
    if all.is_empty() {
        all.extend(spec.pod_cidr.clone().filter(|c| !c.is_empty()));
    }
    all
}
