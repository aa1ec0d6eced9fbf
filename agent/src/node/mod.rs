//! The node status manager: registration, the Node's status and conditions, the lease.
//!
//! `status`, `capacity`, `registration`, `skew` and `heartbeat_schedule` decide what is reported and when, and are pure;
//! `machine` reads the host; `register`, `lease` and `pod_cidr` use the API; `eviction` and `shutdown` are managers of
//! their own; this module is the status loop. Imports of `pods` only the killing of pods.

mod capacity;
pub mod eviction;
mod heartbeat_schedule;
mod lease;
mod machine;
mod pod_cidr;
mod register;
mod registration;
pub mod shutdown;
mod skew;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus, ObjectReference, Taint};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::KernelLog;
use windlass_kit::{
    backoff::Backoff,
    events::{Recorder, Severity},
    liveness::{Heartbeats, STUCK_AFTER},
    net::NodeIps,
    object_ref,
};

use crate::{
    Pressure,
    cgroup::Cgroups,
    engine::Health,
    images::StoredImage,
    metrics::{Metrics, WriteKind},
    network::Readiness,
};
pub use capacity::{Amounts, parse_reserved};
use eviction::thresholds::Threshold;
use heartbeat_schedule::ReportSchedule;
use machine::Machine;
pub use machine::boot_id;
pub use pod_cidr::{
    parse_pod_cidrs, saved_file as pod_cidr_file, sync as sync_pod_cidrs, use_saved as use_saved_pod_cidrs,
};
pub use register::register;
pub use registration::{label_problem, taint_problem};
use skew::Version;
pub use skew::{Skew, evaluate as evaluate_skew};
use status::{LastReport, RuntimeHealth, StatusInputs};

/// Configuration of the node's registration, status and lease.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The node's name.
    pub name: String,
    /// Its addresses.
    pub addresses: NodeIps,
    /// The addresses are configured (`nodeIP`).
    pub node_ip_configured: bool,
    /// The port of the kubelet API.
    pub api_port: u16,
    /// The directory whose file system is the nodefs.
    pub data_dir: PathBuf,
    /// The reported kubelet version; our own follows the `+`.
    pub version: String,
    /// Most pods; upstream's default is 110.
    pub max_pods: u32,
    /// `kubeReserved` and `systemReserved`.
    pub reserved: Vec<Amounts>,
    /// Eviction thresholds; hard ones reduce allocatable resources.
    pub thresholds: Vec<Threshold>,
    /// Most images in the status; negative is all.
    pub max_images: i32,
    /// Whether the limit of all pods together is enforced (`enforceNodeAllocatable`).
    pub enforce_node_allocatable: bool,
    /// Labels of the registered Node.
    pub labels: BTreeMap<String, String>,
    /// Taints of the registered Node.
    pub taints: Vec<Taint>,
    /// The cloud's id of the machine; empty for none.
    pub provider_id: String,
    /// An external cloud provider sets the addresses.
    pub external_cloud: bool,
    /// Lease duration in seconds; upstream's default is 40.
    pub lease_seconds: i32,
    /// Interval of computing the status (`nodeStatusUpdateFrequency`); upstream's default is 10 s.
    pub status_update_interval: Duration,
    /// Interval of reporting an unchanged status (`nodeStatusReportFrequency`); upstream's default is 5 min.
    pub status_report_interval: Duration,
}

/// What the status manager watches of the agent's other parts.
#[derive(Debug)]
pub struct NodeInputs {
    /// Whether Docker answers.
    pub docker: watch::Receiver<Health>,
    /// The node's pressure conditions.
    pub pressure: watch::Receiver<Pressure>,
    /// Whether the machine is shutting down.
    pub shutting_down: watch::Receiver<bool>,
    /// The images in Docker's store.
    pub images: watch::Receiver<Arc<Vec<StoredImage>>>,
    /// Names of Docker's runtimes, which RuntimeClasses may name as handlers.
    pub runtimes: watch::Receiver<Arc<BTreeSet<String>>>,
    /// The Node in the API, which others write to as well; `None` if it does not exist.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Whether pods can be connected.
    pub network: watch::Receiver<Readiness>,
    /// The cgroups of pods, whose common limit is the node's.
    pub(crate) cgroups: Arc<Cgroups>,
    /// The Node, published from this process's first status report on. Earlier API content stems from a previous
    /// process and may be out of date.
    pub reported: watch::Sender<Option<Arc<Node>>>,
}

impl NodeInputs {
    /// The current values.
    fn status_inputs(&mut self, api_version: Option<Version>) -> StatusInputs {
        StatusInputs {
            pressure: *self.pressure.borrow_and_update(),
            shutting_down: *self.shutting_down.borrow_and_update(),
            images: self.images.borrow().clone(),
            runtimes: self.runtimes.borrow().clone(),
            network: self.network.borrow_and_update().problem().map(str::to_owned),
            api_version,
        }
    }
}

/// Allocatable resources.
#[must_use]
pub fn allocatable(config: &NodeConfig) -> Amounts {
    let all = capacity::capacity(&Machine::read(&config.data_dir), config.max_pods);
    capacity::allocatable(&all, &config.reserved, &config.thresholds)
}

/// The enforced limits of all pods together, by resource.
#[must_use]
pub fn enforced_limits(config: &NodeConfig) -> Amounts {
    limits_on(&Machine::read(&config.data_dir), config)
}

fn limits_on(machine: &Machine, config: &NodeConfig) -> Amounts {
    capacity::without(&capacity::capacity(machine, config.max_pods), &config.reserved)
}

/// How often the API server's version is read: it may be updated.
const VERSION_POLL_INTERVAL: Duration = Duration::from_secs(300);

/// The ways to the API.
#[derive(Clone)]
pub struct NodeClients {
    /// For registration and events.
    pub api: Client,
    /// For lease and status. Its requests must have a short timeout and connections of their own: a node whose heartbeat is
    /// queued behind other requests is taken for dead.
    pub heartbeat: Client,
}

impl fmt::Debug for NodeClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeClients")
    }
}

/// The observers of the loops' health.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Whether they run.
    pub heartbeats: Heartbeats,
    /// What they count.
    pub metrics: Arc<Metrics>,
}

/// Renews the lease and reports the status until `shutdown`.
pub async fn run(
    NodeClients { api: client, heartbeat }: NodeClients,
    config: NodeConfig,
    node: Node,
    mut changes: NodeInputs,
    Watched { heartbeats, metrics }: Watched,
    shutdown: CancellationToken,
) {
    let recorder = metrics.recorder(client, &config.name);
    let object = object_ref::node(&config.name);
    recorder.record(&object, Severity::Normal, "Starting", "Starting kubelet.");
    record_startup_events(&recorder, &object, &config, &node).await;
    let mut kernel = KernelLog::open();
    let mut runtime_health = RuntimeHealth::default();
    let mut enforced = false;
    let (owner_sender, owner) = watch::channel(node.metadata.uid.clone());
    let heart = heartbeats.begin("node lease", "", STUCK_AFTER);
    let lease_config = lease::LeaseConfig { node: config.name.clone(), seconds: config.lease_seconds };
    let leases = tokio::spawn(lease::renew(
        heartbeat.clone(),
        lease_config,
        owner,
        (heart, Arc::clone(&metrics)),
        shutdown.clone(),
    ));
    let heart = heartbeats.begin("node status", "", STUCK_AFTER);
    let mut api_version = ServerVersion::default();
    let mut reporter = StatusReporter {
        api: Api::all(heartbeat.clone()),
        schedule: ReportSchedule::new(config.status_report_interval),
        observed: node,
        last_report: None,
        owner: owner_sender,
        reported: changes.reported.clone(),
        watched: false,
        deleted: false,
        recorder: recorder.clone(),
        metrics,
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    let mut machine = None;
    loop {
        heart.beat();
        api_version.refresh(&heartbeat, &config.version).await;
        // While it cannot be read, since a disk hangs, the last value is used; a machine that was never read is not
        // reported.
        machine = Machine::read_on_lane(&config.data_dir).await.ok().or(machine);
        let now = Timestamp::now();
        let (docker, holds) = runtime_health.observe(changes.docker.borrow_and_update().clone(), now);
        reporter.on_watch(changes.node.borrow_and_update().clone());
        let inputs = changes.status_inputs(api_version.version);
        record_system_ooms(&recorder, &object, &mut kernel);
        if config.enforce_node_allocatable
            && let Some(machine) = &machine
            && changes.cgroups.set_node(&limits_on(machine, &config)).await
            && !std::mem::replace(&mut enforced, true)
        {
            let message = "Updated Node Allocatable limit across pods";
            recorder.record(&object, Severity::Normal, "NodeAllocatableEnforced", message);
        }
        let every = config.status_update_interval;
        let mut wait = holds.map_or(every, |holds| holds.min(every));
        // Until Docker's state is known there is nothing to report.
        let done = match (&docker, &machine) {
            (Health::Unknown, _) | (_, None) => Ok(false),
            (_, Some(machine)) => reporter.sync(&config, machine, &docker, &inputs, now).await,
        };
        match done {
            Ok(again) => {
                backoff.reset();
                if again {
                    wait = Duration::ZERO;
                }
            }
            Err(error) => {
                tracing::warn!(node = config.name, error = %windlass_kit::client::message(&error), "failed to update node status; retrying");
                wait = backoff.next_delay();
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            changed = changes.docker.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = changes.pressure.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = changes.shutting_down.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = changes.network.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            () = node_replaced(&mut changes.node, reporter.observed.metadata.uid.as_deref()), if !reporter.deleted => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    heart.end();
    let _ = leases.await;
}

/// Records an event for each system-wide OOM kill; one within a memory cgroup is not one.
fn record_system_ooms(recorder: &Recorder, object: &ObjectReference, kernel: &mut KernelLog) {
    for victim in kernel.kills().into_iter().filter(|kill| kill.constraint == "CONSTRAINT_NONE") {
        let message = format!("System OOM encountered, victim process: {}, pid: {}", victim.name, victim.pid);
        recorder.record(object, Severity::Warning, "SystemOOM", message);
    }
}

/// Waits until the Node is deleted or recreated.
async fn node_replaced(node: &mut watch::Receiver<Option<Arc<Node>>>, uid: Option<&str>) {
    loop {
        match node.changed().await {
            Ok(()) if node.borrow_and_update().as_ref().is_none_or(|n| n.metadata.uid.as_deref() != uid) => return,
            Ok(()) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

/// The API server's version.
#[derive(Debug, Default)]
struct ServerVersion {
    version: Option<Version>,
    checked_at: Option<Instant>,
}

impl ServerVersion {
    /// Reads the version at intervals; warns of an unsupported skew when it changes.
    async fn refresh(&mut self, client: &Client, own: &str) {
        if self.checked_at.is_some_and(|at| at.elapsed() < VERSION_POLL_INTERVAL) {
            return;
        }
        self.checked_at = Some(Instant::now());
        // Without an answer the known version stays.
        let Some(version) = register::server_version(client).await else { return };
        if self.version != Some(version)
            && let Some(problem) = skew::problem(own, version)
        {
            tracing::warn!("{problem}");
        }
        self.version = Some(version);
    }
}

/// Reports the status: the Node as last seen in the API, and what was last sent.
struct StatusReporter {
    api: Api<Node>,
    schedule: ReportSchedule,
    observed: Node,
    last_report: Option<LastReport>,
    /// The uid of the Node that owns the lease.
    owner: watch::Sender<Option<String>>,
    /// The Node, once its status is of this process.
    reported: watch::Sender<Option<Arc<Node>>>,
    /// The watch has seen the current Node, so that it will notify of its deletion.
    watched: bool,
    /// The Node was deleted and is not recreated yet.
    deleted: bool,
    recorder: Recorder,
    metrics: Arc<Metrics>,
}

impl StatusReporter {
    /// Takes over the Node from the watch: others write to it too, such as extended resources or a cloud's addresses,
    /// and delete it.
    fn on_watch(&mut self, watched: Option<Arc<Node>>) {
        let Some(node) = watched else {
            if std::mem::take(&mut self.watched) {
                self.on_deleted();
            }
            return;
        };
        if status::is_newer(&node, self.observed.metadata.resource_version.as_deref()) {
            let mut node = Node::clone(&node);
            // The watch drops images.
            node.status.get_or_insert_default().images = self.observed.status.as_mut().and_then(|s| s.images.take());
            self.on_updated(node);
        }
        self.watched = node.metadata.uid == self.observed.metadata.uid;
    }

    fn on_deleted(&mut self) {
        (self.deleted, self.watched) = (true, false);
        self.owner.send_replace(None);
        self.reported.send_replace(None);
    }

    fn on_updated(&mut self, node: Node) {
        self.deleted = false;
        record_schedulable_event(&self.recorder, &self.observed, &node);
        let uid = node.metadata.uid.clone();
        self.owner.send_if_modified(|owner| std::mem::replace(owner, uid.clone()) != uid);
        self.observed = node;
        if self.last_report.is_some() {
            self.reported.send_replace(Some(Arc::new(self.observed.clone())));
        }
    }

    /// Reports the status if it is due, and recreates a deleted Node. Returns whether to call again at once.
    async fn sync(
        &mut self,
        config: &NodeConfig,
        machine: &Machine,
        docker: &Health,
        inputs: &StatusInputs,
        now: Timestamp,
    ) -> kube::Result<bool> {
        if self.deleted {
            tracing::warn!(node = config.name, "Node was deleted; registering again");
            let node = register::try_register(&self.api, config, inputs.api_version).await?;
            self.last_report = None;
            self.on_updated(node);
        }
        let desired = status::desired_node(config, machine, docker, inputs, &self.observed, now);
        let needs_report = status::needs_report(&self.observed, &desired, self.last_report.as_ref());
        let clock = Instant::now();
        if !needs_report && !self.schedule.is_due(clock) {
            return Ok(false);
        }
        let Some(patch) = status::diff(&self.observed, &desired) else { return Ok(false) };
        match self.api.patch_status(&config.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(updated) => {
                record_condition_events(
                    &self.recorder,
                    &config.name,
                    self.observed.status.as_ref(),
                    desired.status.as_ref(),
                );
                let version = |node: &Node| node.metadata.resource_version.clone();
                let (before, after) = (version(&self.observed), version(&updated));
                self.metrics.record_write(WriteKind::NodeStatus, &config.name, before.as_deref(), after.as_deref());
                self.schedule.reported(clock, needs_report, heartbeat_schedule::random_fraction());
                self.last_report = Some(LastReport { desired, answer: updated.clone() });
                self.on_updated(updated);
                Ok(false)
            }
            Err(kube::Error::Api(answer)) if answer.code == 404 => {
                self.on_deleted();
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

/// Records events at the start of the node.
async fn record_startup_events(recorder: &Recorder, object: &ObjectReference, config: &NodeConfig, node: &Node) {
    let Ok(machine) = Machine::read_on_lane(&config.data_dir).await else { return };
    let before = node.status.as_ref().and_then(|s| s.node_info.as_ref()).map_or("", |info| info.boot_id.as_str());
    if !before.is_empty() && before != machine.boot_id {
        let message = format!("Node {} has been rebooted, boot id: {}", config.name, machine.boot_id);
        recorder.record(object, Severity::Warning, "Rebooted", message);
    }
    if machine.cgroup_v1 {
        let message = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
        recorder.record(object, Severity::Warning, "CgroupV1", message);
    }
    if machine.swap_bytes > 0 && !machine.has_tmpfs_noswap() {
        let message = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered secure.";
        recorder.record(object, Severity::Warning, "PossibleMemoryBackedVolumesOnDisk", message);
    }
}

/// Records an event of a Node that was cordoned, or no longer is. One that was made again is another one.
fn record_schedulable_event(recorder: &Recorder, before: &Node, now: &Node) {
    let cordoned = |node: &Node| node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    if before.metadata.uid == now.metadata.uid && cordoned(before) != cordoned(now) {
        let name = now.metadata.name.as_deref().unwrap_or_default();
        let reason = if cordoned(now) { "NodeNotSchedulable" } else { "NodeSchedulable" };
        let message = format!("Node {name} status is now: {reason}");
        recorder.record(&object_ref::node(name), Severity::Normal, reason, message);
    }
}

/// Records events of changed conditions.
fn record_condition_events(recorder: &Recorder, name: &str, before: Option<&NodeStatus>, now: Option<&NodeStatus>) {
    let value = |status: Option<&NodeStatus>, kind: &str| {
        let mut all = status.iter().flat_map(|s| s.conditions.iter().flatten());
        all.find(|c| c.type_ == kind).map(|c| c.status.clone())
    };
    for (kind, when_true, when_false) in [
        ("Ready", "NodeReady", "NodeNotReady"),
        ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
        ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
        ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
    ] {
        let (was, is) = (value(before, kind), value(now, kind));
        if was != is {
            let reason = if is.as_deref() == Some("True") { when_true } else { when_false };
            let message = format!("Node {name} status is now: {reason}");
            recorder.record(&object_ref::node(name), Severity::Normal, reason, message);
        }
    }
}

#[cfg(test)]
mod tests;
