//! Hollow nodes, as kubemark's: Node objects with heartbeats, whose pods become Ready and end in the API alone. No
//! container runs.

use std::{
    collections::BTreeSet,
    fmt,
    net::Ipv4Addr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::client_without_retries;

/// The period of heartbeats; a kubelet's.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The number of concurrent requests.
const REQUESTS: usize = 64;
/// Pods of one node.
const PODS_EACH: usize = 110;
/// The pause before something that failed is tried again, such as while the API is started again.
const RETRY: Duration = Duration::from_millis(200);

/// Running hollow nodes; they stop when this is dropped.
pub struct HollowNodes {
    tasks: JoinSet<()>,
    count: usize,
    nodes: Api<Node>,
    dead: Dead,
}

/// The names of nodes that do nothing.
#[derive(Debug, Clone, Default)]
struct Dead(Arc<Mutex<BTreeSet<String>>>);

impl Dead {
    fn contains(&self, node: &str) -> bool {
        self.0.lock().contains(node)
    }
}

impl fmt::Debug for HollowNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HollowNodes").field("count", &self.count).finish_non_exhaustive()
    }
}

impl HollowNodes {
    /// Creates `count` nodes (`hollow-0` …) and keeps them and their pods Ready, also over restarts of the API.
    ///
    /// # Errors
    /// When they cannot be created.
    pub async fn start(kubeconfig: &Path, count: usize) -> anyhow::Result<Self> {
        // They try again by themselves, and without pauses that grow.
        let client = client_without_retries(kubeconfig).await?;
        let nodes: Api<Node> = Api::all(client.clone());
        for number in 0..count {
            let name = name(number);
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            }))?;
            nodes.create(&PostParams::default(), &node).await.with_context(|| format!("the node {name}"))?;
            report(&nodes, &name).await?;
        }
        let mut tasks = JoinSet::new();
        let dead = Dead::default();
        tasks.spawn(heartbeats(client.clone(), count, dead.clone()));
        tasks.spawn(pods(client, dead.clone()));
        Ok(Self { tasks, count, nodes, dead })
    }

    /// The node does nothing any more: no heartbeat, and nothing for its pods.
    pub fn kill(&self, number: usize) {
        let _ = self.dead.0.lock().insert(name(number));
    }

    /// The nodes that were killed are back, if there still are objects of them, and report so; changes of pods that
    /// they missed they do not see.
    ///
    /// # Errors
    /// When a status cannot be written.
    pub async fn revive(&self) -> anyhow::Result<()> {
        let back = std::mem::take(&mut *self.dead.0.lock());
        for name in back {
            // One that was removed stays away.
            if self.nodes.get_opt(&name).await?.is_some() {
                report(&self.nodes, &name).await?;
            }
        }
        Ok(())
    }

    /// Whether any part of them has ended, which none does but by a panic.
    #[must_use]
    pub fn have_ended(&mut self) -> bool {
        self.tasks.try_join_next().is_some()
    }
}

fn name(number: usize) -> String {
    format!("hollow-{number}")
}

/// Writes the status of a node.
async fn report(nodes: &Api<Node>, name: &str) -> anyhow::Result<()> {
    let resources = json!({"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": PODS_EACH.to_string()});
    let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| {
        json!({"type": kind, "status": if kind == "Ready" { "True" } else { "False" }, "reason": "Hollow",
               "lastHeartbeatTime": now(), "lastTransitionTime": "2026-01-01T00:00:00Z"})
    });
    let status = json!({"status": {"capacity": resources, "allocatable": resources, "conditions": conditions}});
    let _ = nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// Renews the leases, spread over the period.
async fn heartbeats(client: Client, count: usize, dead: Dead) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let step = HEARTBEAT / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    let mut ticks = tokio::time::interval(step);
    for number in (0..count).cycle() {
        ticks.tick().await;
        let name = name(number);
        if dead.contains(&name) {
            continue;
        }
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()},
        });
        // While the API is away the next one is soon enough.
        let _ = leases.patch(&name, &PatchParams::apply("hollow").force(), &Patch::Apply(lease)).await;
    }
}

/// The time in the format of a lease.
fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Makes pods of hollow nodes Ready, and removes those that are deleted.
async fn pods(client: Client, dead: Dead) {
    let slots = Arc::new(Semaphore::new(REQUESTS));
    let mut events = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()).applied_objects().boxed();
    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            event = events.try_next() => match event {
                Ok(Some(pod)) if is_due(&pod) && node_of(&pod).is_some_and(|node| !dead.contains(node)) => {
                    let (client, slots) = (client.clone(), Arc::clone(&slots));
                    requests.spawn(async move {
                        let Ok(_slot) = slots.acquire().await else { return };
                        settle(&client, &pod).await;
                    });
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => tokio::time::sleep(RETRY).await,
            },
            Some(_) = requests.join_next(), if !requests.is_empty() => {}
        }
    }
}

/// The hollow node of a pod.
fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| node.starts_with("hollow-"))
}

/// Whether something is to be done for a pod.
fn is_due(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        || pod.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Running")
}

/// Removes a deleted pod; makes another one Ready. Repeated until the API has taken it or the pod is another one.
async fn settle(client: &Client, pod: &Pod) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let (name, uid) = (pod.name_any(), pod.uid());
    loop {
        let done = if pod.metadata.deletion_timestamp.is_some() {
            let preconditions = Some(Preconditions { uid: uid.clone(), resource_version: None });
            let parameters = DeleteParams { grace_period_seconds: Some(0), preconditions, ..DeleteParams::default() };
            pods.delete(&name, &parameters).await.map(drop)
        } else {
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(ready(pod))).await.map(drop)
        };
        match done {
            Ok(()) => return,
            // It is gone, or another one has its name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => return,
            // The API is away, or has too much to do.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// An address that no other pod of this process has, of the range for benchmarks: 198.18.0.0/15.
fn address() -> Ipv4Addr {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) % ((1 << 17) - 2);
    Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 1).to_bits() + number)
}

/// The status of a pod all of whose containers run, as a patch of this very pod.
fn ready(pod: &Pod) -> serde_json::Value {
    let (time, address) = (now(), address());
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": format!("{}Z", &time[..19])}));
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| {
        json!({"name": container.name, "image": container.image, "imageID": "", "ready": true, "started": true,
               "restartCount": 0, "state": {"running": {"startedAt": format!("{}Z", &time[..19])}}})
    });
    json!({"metadata": {"uid": pod.metadata.uid}, "status": {
        "phase": "Running", "startTime": format!("{}Z", &time[..19]), "podIP": address, "podIPs": [{"ip": address}],
        "conditions": conditions, "containerStatuses": containers.collect::<Vec<_>>(),
    }})
}
