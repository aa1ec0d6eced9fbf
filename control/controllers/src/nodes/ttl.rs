//! TTL controller: annotates nodes with how long they may cache Secrets and ConfigMaps, which grows with the number of
//! nodes. Upstream's `pkg/controller/ttl`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::runtime::{Cache, CachedNode, Context, Controller, During as _, Error, Key, Outcome, error};

const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// The lower and upper number of nodes, and the TTL in seconds. They overlap, so that adding and removing one node
/// changes nothing. Upstream's `ttlBoundaries`.
const BOUNDARIES: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

/// The number of nodes, and which boundaries it is within.
#[derive(Debug, Default)]
struct Cluster {
    nodes: usize,
    step: usize,
}

impl Cluster {
    /// Sets the number of nodes; returns whether the TTL changes. Pure.
    fn resize(&mut self, nodes: usize) -> bool {
        let before = self.step;
        self.nodes = nodes;
        while BOUNDARIES.get(self.step).is_some_and(|(_, most, _)| nodes > *most) && self.step + 1 < BOUNDARIES.len() {
            self.step += 1;
        }
        while BOUNDARIES.get(self.step).is_some_and(|(least, ..)| nodes < *least) && self.step > 0 {
            self.step -= 1;
        }
        self.step != before
    }

    fn seconds(&self) -> u32 {
        BOUNDARIES.get(self.step).map_or(0, |(.., seconds)| *seconds)
    }
}

pub(crate) struct TtlController {
    client: Client,
    nodes: Cache<CachedNode>,
    cluster: Arc<Mutex<Cluster>>,
}

impl Controller for TtlController {
    const NAME: &'static str = "ttl-controller";
    const QUEUE: &'static str = "ttlcontroller";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let nodes = context.informer::<CachedNode>();
        let cluster: Arc<Mutex<Cluster>> = Arc::default();
        let (queue, seen, all) = (context.queue(), Arc::clone(&cluster), nodes.cache());
        nodes.on_change(move |old, new| {
            let mut cluster = seen.lock();
            let count = match (old, new) {
                (None, Some(_)) => cluster.nodes + 1,
                (Some(_), None) => cluster.nodes.saturating_sub(1),
                _ => cluster.nodes,
            };
            if cluster.resize(count) {
                all.all().iter().for_each(|node| queue.add(Key::of(&node.metadata)));
            } else if let Some(node) = new.filter(|node| ttl_of(node) != Some(cluster.seconds())) {
                queue.add(Key::of(&node.metadata));
            }
        });
        Self { client: context.client(), nodes: nodes.cache(), cluster }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let wanted = self.cluster.lock().seconds();
        let Some(node) = self.nodes.get(&key).filter(|node| ttl_of(node) != Some(wanted)) else {
            return Ok(Outcome::Done);
        };
        let annotations = json!({TTL_ANNOTATION: wanted.to_string()});
        let patch = json!({"metadata": {"uid": node.metadata.uid, "annotations": annotations}});
        let api: Api<Node> = Api::all(self.client.clone());
        let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        error::ignore_deleted(written).during("set the TTL of node", &key)?;
        Ok(Outcome::Done)
    }
}

fn ttl_of(node: &CachedNode) -> Option<u32> {
    node.metadata.annotations.as_ref()?.get(TTL_ANNOTATION)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_grows_with_the_nodes_and_does_not_flap() {
        let mut cluster = Cluster::default();
        for (nodes, seconds, changes) in [
            (1, 0, false),
            (100, 0, false),
            (101, 15, true),
            (100, 15, false),
            (90, 15, false),
            (89, 0, true),
            (1500, 60, true),
            (2001, 300, true),
            (1800, 300, false),
            (1799, 60, true),
            (0, 0, true),
        ] {
            assert_eq!((cluster.resize(nodes), cluster.seconds()), (changes, seconds), "{nodes} nodes");
        }
    }
}
