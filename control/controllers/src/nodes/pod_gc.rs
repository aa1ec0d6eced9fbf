//! Pod garbage collector: deletes pods of deleted nodes, terminating pods that were never scheduled, terminating pods
//! of out-of-service nodes, and the oldest terminated pods above a threshold.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt};
use windlass_kit::{
    metrics::{Counter, Metrics},
    pod_ending::Ending,
    prometheus::Text,
};

use super::health;
use crate::{
    indexes::PODS_BY_NODE,
    pods,
    runtime::{
        Cache, CachedNode, CachedPod, Context, Controller, During as _, Error, Index, Key, Live, Outcome, Proof,
        bounded_join,
    },
};

/// Time from a node's deletion to that of its pods (upstream's quarantine).
const QUARANTINE: Duration = Duration::from_secs(40);
/// Number of terminated pods that are kept (upstream's threshold).
const TERMINATED_POD_THRESHOLD: usize = 12_500;
/// The reason of the condition of pods that it ends.
const BY_POD_GC: &str = "DeletionByPodGC";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The terminated pods that are not being deleted, all under one value.
const TERMINATED_PODS: Index<CachedPod> = Index::new("terminated", |pod| {
    let is_kept = pods::is_terminal(pod) && pod.metadata.deletion_timestamp.is_none();
    is_kept.then(String::new).into_iter().collect()
});

pub(crate) struct PodGcController {
    client: Client,
    nodes: Cache<CachedNode>,
    pods: Cache<CachedPod>,
    metrics: Arc<PodGcMetrics>,
}

struct PodGcMetrics {
    deletions: Counter<2>,
    errors: Counter<2>,
}

impl Default for PodGcMetrics {
    fn default() -> Self {
        const LABELS: [&str; 2] = ["namespace", "reason"];
        Self {
            deletions: Counter::new("pod_gc_collector_force_delete_pods_total", "Pods deleted by force.", LABELS),
            errors: Counter::new(
                "pod_gc_collector_force_delete_pod_errors_total",
                "Pods that could not be deleted by force.",
                LABELS,
            ),
        }
    }
}

impl Metrics for PodGcMetrics {
    fn write(&self, page: &mut Text) {
        self.deletions.write(page);
        self.errors.write(page);
    }
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GcReason {
    NodeDeleted,
    NeverScheduled,
    OutOfService,
    /// Terminated, and there are too many such.
    Terminated,
}

impl GcReason {
    /// As upstream's metrics name it.
    const fn name(self) -> &'static str {
        match self {
            Self::NodeDeleted => "orphaned",
            Self::NeverScheduled => "unscheduled",
            Self::OutOfService => "out-of-service",
            Self::Terminated => "terminated",
        }
    }
}

fn gc_reason(pod: &CachedPod, node: Option<&CachedNode>) -> Option<GcReason> {
    let terminating = pod.metadata.deletion_timestamp.is_some();
    match (pods::node_name(pod), node) {
        (None, _) => terminating.then_some(GcReason::NeverScheduled),
        (Some(_), None) => Some(GcReason::NodeDeleted),
        (Some(_), Some(node)) => {
            let out = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == OUT_OF_SERVICE);
            (terminating && out && health::ready(node) != "True").then_some(GcReason::OutOfService)
        }
    }
}

/// The queue key of the threshold check.
fn terminated_pods_key() -> Key {
    Key::new("", "")
}

impl Controller for PodGcController {
    const NAME: &'static str = "pod-garbage-collector-controller";
    const QUEUE: &'static str = "orphaned_pods_nodes";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (nodes, pods) = (context.informer::<CachedNode>(), context.informer::<CachedPod>());
        pods.index(&PODS_BY_NODE).index(&TERMINATED_PODS);
        let (enqueue, all) = (context.queue(), pods.cache());
        nodes.on_change(move |old, new| {
            let Some(node) = new.or(old) else { return };
            let out = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == OUT_OF_SERVICE);
            if new.is_some() && !out {
                return;
            }
            let delay = if new.is_some() { Duration::ZERO } else { QUARANTINE };
            for pod in all.by_index(&PODS_BY_NODE, &node.name_any()) {
                enqueue.add_after(Key::of(&pod.metadata), delay);
            }
        });
        let (enqueue, all, known) = (context.queue(), pods.cache(), nodes.cache());
        pods.on_change(move |_, new| {
            let Some(pod) = new else { return };
            let node = pods::node_name(pod).and_then(|name| known.get(&Key::new("", name)));
            match gc_reason(pod, node.as_deref()) {
                Some(GcReason::NodeDeleted) => enqueue.add_after(Key::of(&pod.metadata), QUARANTINE),
                Some(_) => enqueue.add(Key::of(&pod.metadata)),
                None => {}
            }
            if pods::is_terminal(pod) && all.count(&TERMINATED_PODS, "") > TERMINATED_POD_THRESHOLD {
                enqueue.add_after(terminated_pods_key(), Duration::from_secs(20));
            }
        });
        Self { client: context.client(), nodes: nodes.cache(), pods: pods.cache(), metrics: context.metrics().of() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        if key == terminated_pods_key() {
            return self.prune_terminated().await;
        }
        let Some(pod) = self.pods.get(&key) else { return Ok(Outcome::Done) };
        let node_name = pods::node_name(&pod).unwrap_or_default();
        let node = self.nodes.get(&Key::new("", node_name));
        let Some(reason) = gc_reason(&pod, node.as_deref()) else { return Ok(Outcome::Done) };
        let ending = match reason {
            GcReason::NodeDeleted => {
                // The cache may be stale.
                let node = Live::get(&Api::<Node>::all(self.client.clone()), node_name).await;
                match node.during("look for node", &node_name)?.shows(Option::is_none) {
                    Some(gone) => without_node(&gone),
                    None => return Ok(Outcome::After(QUARANTINE)),
                }
            }
            GcReason::OutOfService => Ending::forced(Some((BY_POD_GC, "PodGC: node is out of service"))),
            GcReason::NeverScheduled | GcReason::Terminated => Ending::forced(None),
        };
        tracing::info!(pod = %key, ?reason, "deleting orphaned pod");
        self.delete(&pod, reason, &ending).await?;
        Ok(Outcome::Done)
    }
}

/// Of a pod whose node the API knows no more.
const fn without_node(_: &Proof) -> Ending<'static> {
    Ending::forced(Some((BY_POD_GC, "PodGC: node no longer exists")))
}

impl PodGcController {
    async fn delete(&self, pod: &CachedPod, reason: GcReason, ending: &Ending<'_>) -> Result<(), Error> {
        let namespace = pod.namespace().unwrap_or_default();
        let labels = [namespace.as_str(), reason.name()];
        let ended = pods::end(&self.client, pod, ending).await;
        match &ended {
            Ok(true) => self.metrics.deletions.add(labels),
            Ok(false) => {}
            Err(_) => self.metrics.errors.add(labels),
        }
        ended.map(drop)
    }

    async fn prune_terminated(&self) -> Result<Outcome, Error> {
        if self.pods.count(&TERMINATED_PODS, "") <= TERMINATED_POD_THRESHOLD {
            return Ok(Outcome::Done);
        }
        let mut terminated = self.pods.by_index(&TERMINATED_PODS, "");
        terminated.sort_by(|one, other| order(one).cmp(&order(other)));
        terminated.truncate(terminated.len().saturating_sub(TERMINATED_POD_THRESHOLD));
        let ending = Ending::forced(None);
        let deleted = bounded_join(terminated.iter().map(|pod| self.delete(pod, GcReason::Terminated, &ending))).await;
        // One that cannot be deleted does not keep the others.
        deleted.into_iter().collect::<Result<(), Error>>().map(|()| Outcome::Done)
    }
}

/// The order in which terminated pods go: evicted ones first, then the oldest (`byEvictionAndCreationTimestamp`).
fn order(pod: &CachedPod) -> (bool, Option<jiff::Timestamp>, Option<&str>) {
    let evicted = pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted");
    let meta = &pod.metadata;
    (!evicted, meta.creation_timestamp.as_ref().map(|time| time.0), meta.name.as_deref())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{NodeSpec, Taint},
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::runtime::cached_pod::CachedPodSpec;

    #[test]
    fn evicted_pods_go_before_older_ones() {
        let pod = |name: &str, second: i64, reason: Option<&str>| {
            let mut pod = CachedPod::default();
            pod.metadata.name = Some(name.to_owned());
            pod.metadata.creation_timestamp = Some(Time(jiff::Timestamp::from_second(second).unwrap()));
            pod.status.get_or_insert_default().reason = reason.map(str::to_owned);
            pod
        };
        let mut pods = [pod("b", 1, None), pod("a", 1, None), pod("old", 0, None), pod("evicted", 9, Some("Evicted"))];
        pods.sort_by(|one, other| order(one).cmp(&order(other)));
        assert_eq!(pods.map(|pod| pod.name_any()), ["evicted", "old", "a", "b"]);
    }

    #[test]
    fn only_pods_without_a_keeper_go() {
        let pod = |node: Option<&str>, deleting: bool| {
            let spec = CachedPodSpec { node_name: node.map(str::to_owned), ..CachedPodSpec::default() };
            let mut pod = CachedPod { spec: Some(spec), ..CachedPod::default() };
            pod.metadata.deletion_timestamp = deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
            pod
        };
        let (plain, mut out) = (CachedNode::default(), CachedNode::default());
        let taint = Taint { key: OUT_OF_SERVICE.into(), ..Taint::default() };
        out.spec = Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() });
        for (pod, node, expected) in [
            (pod(None, false), None, None),
            (pod(None, true), None, Some(GcReason::NeverScheduled)),
            (pod(Some("n"), false), None, Some(GcReason::NodeDeleted)),
            (pod(Some("n"), true), Some(&plain), None),
            (pod(Some("n"), false), Some(&out), None),
            (pod(Some("n"), true), Some(&out), Some(GcReason::OutOfService)),
        ] {
            assert_eq!(gc_reason(&pod, node), expected);
        }
    }
}
