//! Node IPAM: allocates pod CIDRs to nodes, once.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use super::ranges::{CidrSet, Ranges};
use crate::runtime::{Cache, CachedNode, Context, Controller, During as _, Error, Key, Outcome, error::ignore_deleted};

pub(crate) struct NodeIpamController {
    client: Client,
    nodes: Cache<CachedNode>,
    recorder: Recorder,
    allocations: Arc<Mutex<Allocations>>,
}

/// Which node has which CIDRs, including those that its object does not show yet.
#[derive(Debug)]
struct Allocations {
    sets: Vec<CidrSet>,
    /// By node UID.
    of: HashMap<String, Vec<String>>,
}

impl Allocations {
    /// The CIDRs of a node became these; none when it is deleted.
    fn set(&mut self, uid: &str, cidrs: Vec<String>) {
        if self.of.get(uid) == Some(&cidrs) {
            return;
        }
        for set in &mut self.sets {
            self.of.get(uid).into_iter().flatten().for_each(|cidr| set.release(cidr));
            cidrs.iter().for_each(|cidr| set.occupy(cidr));
        }
        if cidrs.is_empty() {
            self.of.remove(uid)
        } else {
            self.of.insert(uid.to_owned(), cidrs)
        };
    }

    /// A CIDR of each range for the node; the same ones while the first write is not in the cache.
    fn choose(&mut self, uid: &str) -> Option<Vec<String>> {
        if let Some(given) = self.of.get(uid) {
            return Some(given.clone());
        }
        let parts: Vec<String> = self.sets.iter().map(CidrSet::next_free).collect::<Option<_>>()?;
        self.set(uid, parts.clone());
        Some(parts)
    }
}

impl Controller for NodeIpamController {
    const NAME: &'static str = "node-ipam-controller";
    /// One, so that no two nodes get the same CIDR.
    const WORKERS: usize = 1;
    type Key = Key;
    type Config = Vec<Ranges>;

    fn subscribe(context: &mut Context<Key>, ranges: Vec<Ranges>) -> Self {
        let nodes = context.informer::<CachedNode>();
        let sets = ranges.into_iter().map(CidrSet::new).collect();
        let allocations = Arc::new(Mutex::new(Allocations { sets, of: HashMap::new() }));
        let (enqueue, known) = (context.queue(), Arc::clone(&allocations));
        nodes.on_change(move |old, new| {
            let Some(node) = new.or(old) else { return };
            let cidrs = new.map(|node| pod_cidrs(node)).unwrap_or_default();
            let has_none = cidrs.is_empty();
            if new.is_none() || !has_none {
                let uid = node.uid().unwrap_or_default();
                known.lock().set(&uid, cidrs);
            } else {
                enqueue.add(Key::of(&node.metadata));
            }
        });
        let recorder = context.recorder("cidrAllocator");
        Self { client: context.client(), nodes: nodes.cache(), recorder, allocations }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        if !pod_cidrs(&node).is_empty() || node.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let uid = node.uid().unwrap_or_default();
        let Some(parts) = self.choose(&key, &uid) else {
            let text = format!("Node {} status is now: CIDRNotAvailable", node.name_any());
            self.recorder.record(&object_ref::of(&*node), Severity::Normal, "CIDRNotAvailable", text);
            return Ok(Outcome::Failed);
        };
        let Some(first) = parts.first() else { return Ok(Outcome::Done) };
        let patch = json!({"metadata": {"uid": uid}, "spec": {"podCIDR": first, "podCIDRs": parts}});
        let api: Api<Node> = Api::all(self.client.clone());
        let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        ignore_deleted(written).during("set the pod range of node", &key)?;
        tracing::info!(node = key.name, range = parts.join(","), "allocated pod CIDR");
        Ok(Outcome::Done)
    }
}

impl NodeIpamController {
    /// Nothing for a node that has been deleted: its CIDRs would never be given back.
    fn choose(&self, key: &Key, uid: &str) -> Option<Vec<String>> {
        let mut allocations = self.allocations.lock();
        match self.nodes.get(key).filter(|node| node.uid().as_deref() == Some(uid)) {
            Some(_) => allocations.choose(uid),
            None => Some(Vec::new()),
        }
    }
}

fn pod_cidrs(node: &CachedNode) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let mut all: Vec<String> = spec.pod_cidrs.iter().flatten().cloned().collect();
    if all.is_empty() {
        all.extend(spec.pod_cidr.clone().filter(|c| !c.is_empty()));
    }
    all
}
