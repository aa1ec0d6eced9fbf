//! Removes pods that nobody else will: those of deleted nodes, those deleted before they had a
//! node, those of nodes taken out of service, and the oldest of very many that have ended.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::{health, taint_eviction::disruption};
use crate::controllers::{
    cache::{Cache, Informer},
    error::{self, Context, Error},
    key::Key,
    pods,
    queue::{Outcome, Queue},
};

/// How long a node must be gone before its pods go (upstream's quarantine).
const QUARANTINE: Duration = Duration::from_secs(40);
/// How many ended pods are kept (upstream's threshold).
const ENDED_KEPT: usize = 12_500;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub(crate) struct PodGc {
    client: Client,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    queue: Queue<Key>,
}

/// Why a pod goes. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    NodeGone,
    NeverScheduled,
    OutOfService,
}

fn why(pod: &Pod, node: Option<&Node>) -> Option<Why> {
    let terminating = pod.metadata.deletion_timestamp.is_some();
    match (pods::node_name(pod), node) {
        (None, _) => terminating.then_some(Why::NeverScheduled),
        (Some(_), None) => Some(Why::NodeGone),
        (Some(_), Some(node)) => {
            let out = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == OUT_OF_SERVICE);
            (terminating && out && health::ready(node) != "True").then_some(Why::OutOfService)
        }
    }
}

/// Stands in the queue for the count of ended pods.
fn ended() -> Key {
    Key::new("", "")
}

impl PodGc {
    pub(crate) fn new(client: Client, nodes: &mut Informer<Node>, pods: &mut Informer<Pod>) -> Self {
        let queue = Queue::new();
        let (wake, all) = (queue.clone(), pods.cache());
        nodes.on_change(move |old, new| {
            let Some(node) = new.or(old) else { return };
            let out = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == OUT_OF_SERVICE);
            if new.is_some() && !out {
                return;
            }
            let (name, delay) = (node.name_any(), if new.is_some() { Duration::ZERO } else { QUARANTINE });
            for pod in all.all().iter().filter(|p| pods::node_name(p) == Some(&name)) {
                wake.add_after(Key::of(&pod.metadata), delay);
            }
        });
        let (wake, all, known) = (queue.clone(), pods.cache(), nodes.cache());
        pods.on_change(move |_, new| {
            let Some(pod) = new else { return };
            let node = pods::node_name(pod).and_then(|name| known.get(&Key::new("", name)));
            match why(pod, node.as_deref()) {
                Some(Why::NodeGone) => wake.add_after(Key::of(&pod.metadata), QUARANTINE),
                Some(_) => wake.add(Key::of(&pod.metadata)),
                None => {}
            }
            if pods::is_terminal(pod) && all.len() > ENDED_KEPT {
                wake.add_after(ended(), Duration::from_secs(20));
            }
        });
        Self { client, nodes: nodes.cache(), pods: pods.cache(), queue }
    }

    pub(crate) fn queue(&self) -> &Queue<Key> {
        &self.queue
    }

    pub(crate) async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        if key == ended() {
            return self.prune_ended().await;
        }
        let Some(pod) = self.pods.get(&key) else { return Ok(Outcome::Done) };
        let node_name = pods::node_name(&pod).unwrap_or_default();
        let node = self.nodes.get(&Key::new("", node_name));
        let Some(why) = why(&pod, node.as_deref()) else { return Ok(Outcome::Done) };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        if why == Why::NodeGone {
            // The cache may be behind.
            let nodes: Api<Node> = Api::all(self.client.clone());
            if nodes.get_opt(node_name).await.during("look for node", &node_name)?.is_some() {
                return Ok(Outcome::After(QUARANTINE));
            }
        }
        if why != Why::NeverScheduled && !pods::is_terminal(&pod) {
            let text =
                if why == Why::NodeGone { "PodGC: node no longer exists" } else { "PodGC: node is out of service" };
            let patch = json!({
                "metadata": {"uid": pod.uid()},
                "status": {"phase": "Failed", "conditions": [disruption("DeletionByPodGC", text)]},
            });
            let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
            error::ignore_gone(written).during("mark as failed the orphaned pod", &key)?;
        }
        tracing::info!(pod = %key, ?why, "removing a pod that nobody else will");
        self.delete(&pod).await?;
        Ok(Outcome::Done)
    }

    async fn delete(&self, pod: &Pod) -> Result<(), Error> {
        let key = Key::of(&pod.metadata);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        error::ignore_gone(api.delete(&key.name, &params).await).during("delete the orphaned pod", &key)?;
        Ok(())
    }

    async fn prune_ended(&self) -> Result<Outcome, Error> {
        let mut ended: Vec<_> = self
            .pods
            .all()
            .into_iter()
            .filter(|p| pods::is_terminal(p) && p.metadata.deletion_timestamp.is_none())
            .collect();
        ended.sort_by_key(|p| p.metadata.creation_timestamp.as_ref().map(|t| t.0));
        ended.truncate(ended.len().saturating_sub(ENDED_KEPT));
        for pod in ended {
            self.delete(&pod).await?;
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{NodeSpec, PodSpec, Taint},
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;

    #[test]
    fn only_pods_without_a_keeper_go() {
        let pod = |node: Option<&str>, deleting: bool| {
            let spec = PodSpec { node_name: node.map(str::to_owned), ..PodSpec::default() };
            let mut pod = Pod { spec: Some(spec), ..Pod::default() };
            pod.metadata.deletion_timestamp = deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
            pod
        };
        let (plain, mut out) = (Node::default(), Node::default());
        let taint = Taint { key: OUT_OF_SERVICE.into(), ..Taint::default() };
        out.spec = Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() });
        for (pod, node, expected) in [
            (pod(None, false), None, None),
            (pod(None, true), None, Some(Why::NeverScheduled)),
            (pod(Some("n"), false), None, Some(Why::NodeGone)),
            (pod(Some("n"), true), Some(&plain), None),
            (pod(Some("n"), false), Some(&out), None),
            (pod(Some("n"), true), Some(&out), Some(Why::OutOfService)),
        ] {
            assert_eq!(why(&pod, node), expected);
        }
    }
}
