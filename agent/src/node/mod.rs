//! The node's own duties: its object, its heartbeat, its conditions.
//!
//! `status`, `capacity`, `registration`, `skew` and `pace` decide what the node says of itself, when and how, and are
//! pure; `machine` reads the host; `register`, `lease` and `ranges` speak with the API; `eviction` defends the node; this
//! module is the loop. Of `pods` only what ends pods or holds all of them is imported.

mod capacity;
pub mod eviction;
mod lease;
mod machine;
mod pace;
mod ranges;
mod register;
mod registration;
pub mod shutdown;
mod skew;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
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
    engine::Health,
    images::StoredImage,
    metrics::{Metrics, Written},
    network::Readiness,
};
pub use capacity::{Amounts, parse_reserved};
use eviction::thresholds::Threshold;
use machine::Machine;
pub use machine::boot_id;
use pace::Pace;
pub use ranges::{keep as keep_ranges, parse_ranges, use_kept as use_kept_ranges};
pub use register::register;
pub use registration::{label_problem, taint_problem};
use skew::Version;
pub use skew::{Skew, judge as judge_skew};
use status::{Belief, Known, Sent};

/// Settings of the node's duties.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The node's name.
    pub name: String,
    /// Its addresses.
    pub addresses: NodeIps,
    /// Somebody has told which those are.
    pub given_address: bool,
    /// The port of its own API.
    pub api_port: u16,
    /// The folder whose file system counts as the node's.
    pub data_dir: PathBuf,
    /// The version that it tells; ours stands behind the `+`.
    pub version: String,
    /// How many pods it takes; upstream's default is 110.
    pub max_pods: u32,
    /// What is kept back from pods: for Kubernetes' own, and for the system.
    pub reserved: Vec<Amounts>,
    /// What eviction keeps free is not for pods either.
    pub thresholds: Vec<Threshold>,
    /// How many images are told; below zero is all.
    pub max_images: i32,
    /// All pods together are held to what is not reserved.
    pub hold_pods: bool,
    /// Labels that it gives itself when it registers.
    pub labels: BTreeMap<String, String>,
    /// Taints that it registers with.
    pub taints: Vec<Taint>,
    /// What the machine is called at its cloud; empty for none.
    pub provider_id: String,
    /// A controller of the cloud gives the node its addresses.
    pub external_cloud: bool,
    /// For how many seconds each renewal of its lease counts; upstream's default is 40.
    pub lease_seconds: i32,
    /// The status is computed this often; upstream's default is 10 s.
    pub status_every: Duration,
    /// And sent when it changed, or when it is this old; upstream's default is 5 min.
    pub status_age: Duration,
}

/// What the node is told by its other parts.
#[derive(Debug)]
pub struct News {
    /// Whether Docker answers.
    pub docker: watch::Receiver<Health>,
    /// What the node is short of.
    pub pressure: watch::Receiver<Pressure>,
    /// Whether the machine is about to end.
    pub going_down: watch::Receiver<bool>,
    /// The images in Docker's store.
    pub images: watch::Receiver<Arc<Vec<StoredImage>>>,
    /// Names that RuntimeClasses may have as their handlers.
    pub runtimes: watch::Receiver<Arc<BTreeSet<String>>>,
    /// The node's object as the API has it, which others write to as well; nothing where there is none.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Whether pods can be connected.
    pub network: watch::Receiver<Readiness>,
}

/// What pods may have of this machine, by resource.
#[must_use]
pub fn allocatable(config: &NodeConfig) -> Amounts {
    let all = capacity::capacity(&Machine::read(&config.data_dir), config.max_pods);
    capacity::allocatable(&all, &config.reserved, &config.thresholds)
}

/// What all pods together are held to, by resource.
#[must_use]
pub fn held_to(config: &NodeConfig) -> Amounts {
    capacity::without(&capacity::capacity(&Machine::read(&config.data_dir), config.max_pods), &config.reserved)
}

/// How often the API server is asked for its version: it may be updated.
const VERSION_EVERY: Duration = Duration::from_secs(300);

/// Keeps the lease and the status until `shutdown`. Both go through `heartbeat`, whose requests must have a short time
/// limit and connections of their own: a node whose heartbeat waits behind something else is taken for dead.
pub async fn run(
    (client, heartbeat): (Client, Client),
    config: NodeConfig,
    node: Node,
    mut news: News,
    (heartbeats, metrics): (Heartbeats, Arc<Metrics>),
    shutdown: CancellationToken,
) {
    let recorder = metrics.recorder(client, &config.name);
    let object = object_ref::node(&config.name);
    recorder.record(&object, Severity::Normal, "Starting", "Starting windlass.");
    tell_of_machine(&recorder, &object, &config, &node);
    let mut kernel = KernelLog::open();
    let mut belief = Belief::default();
    let mut held = false;
    let (tell_owner, owner) = watch::channel(node.metadata.uid.clone());
    let heart = heartbeats.begin("node lease", "", STUCK_AFTER);
    let terms = lease::Terms { node: config.name.clone(), seconds: config.lease_seconds };
    let leases =
        tokio::spawn(lease::renew(heartbeat.clone(), terms, owner, (heart, Arc::clone(&metrics)), shutdown.clone()));
    let heart = heartbeats.begin("node status", "", STUCK_AFTER);
    let mut server = Server::default();
    let mut report = Report {
        api: Api::all(heartbeat.clone()),
        pace: Pace::new(config.status_age),
        seen: node,
        sent: None,
        owner: tell_owner,
        watched: false,
        gone: false,
        recorder: recorder.clone(),
        metrics,
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    loop {
        heart.beat();
        server.look(&heartbeat, &config.version).await;
        let machine = Machine::read(&config.data_dir);
        let now = Timestamp::now();
        let (docker, holds) = belief.of(news.docker.borrow_and_update().clone(), now);
        report.hear(news.node.borrow_and_update().clone());
        let told = Known {
            pressure: *news.pressure.borrow_and_update(),
            going_down: *news.going_down.borrow_and_update(),
            images: news.images.borrow().clone(),
            runtimes: news.runtimes.borrow().clone(),
            network: news.network.borrow_and_update().problem().map(str::to_owned),
            server: server.version,
        };
        // Whoever was over a limit of a cgroup was not the machine's fault.
        for victim in kernel.kills().into_iter().filter(|kill| kill.constraint == "CONSTRAINT_NONE") {
            let message = format!("System OOM encountered, victim process: {}, pid: {}", victim.name, victim.pid);
            recorder.record(&object, Severity::Warning, "SystemOOM", message);
        }
        if config.hold_pods
            && crate::cgroup::apply_kubepods_limits(&held_to(&config)).await
            && !std::mem::replace(&mut held, true)
        {
            let message = "Updated Node Allocatable limit across pods";
            recorder.record(&object, Severity::Normal, "NodeAllocatableEnforced", message);
        }
        let every = config.status_every;
        let mut wait = holds.map_or(every, |holds| holds.min(every));
        // Until Docker has answered or refused there is nothing true to say.
        let done = match docker {
            Health::Unknown => Ok(false),
            _ => report.round(&config, &machine, &docker, &told, now).await,
        };
        match done {
            Ok(again) => {
                backoff.reset();
                if again {
                    wait = Duration::ZERO;
                }
            }
            Err(error) => {
                tracing::warn!(node = config.name, %error, "the node's status could not be written; it is tried again");
                wait = backoff.next_delay();
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            changed = news.docker.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = news.pressure.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = news.going_down.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = news.network.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            () = turned(&mut news.node, report.seen.metadata.uid.as_deref()), if !report.gone => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    heart.end();
    let _ = leases.await;
}

/// Waits until the API has no Node of this name any more, or another one.
async fn turned(node: &mut watch::Receiver<Option<Arc<Node>>>, uid: Option<&str>) {
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
struct Server {
    version: Option<Version>,
    asked_at: Option<Instant>,
}

impl Server {
    /// Asks for it from time to time; what does not fit the node's own is said when it is news.
    async fn look(&mut self, client: &Client, own: &str) {
        if self.asked_at.is_some_and(|at| at.elapsed() < VERSION_EVERY) {
            return;
        }
        self.asked_at = Some(Instant::now());
        // One that does not answer has not become another.
        let Some(version) = register::server_version(client).await else { return };
        if self.version != Some(version)
            && let Some(complaint) = skew::complaint(own, version)
        {
            tracing::warn!("{complaint}");
        }
        self.version = Some(version);
    }
}

/// What is known of the Node in the API, and what was last said of it there.
struct Report {
    api: Api<Node>,
    pace: Pace,
    seen: Node,
    sent: Option<Sent>,
    /// The uid that the lease belongs to.
    owner: watch::Sender<Option<String>>,
    /// The watch has told of the Node that was seen last, so that it will tell when that one goes.
    watched: bool,
    /// The Node was deleted and is not made again yet.
    gone: bool,
    recorder: Recorder,
    metrics: Arc<Metrics>,
}

impl Report {
    /// Takes in what the watch tells: others write to the Node too, such as extended resources or the addresses of a
    /// cloud, and delete it.
    fn hear(&mut self, told: Option<Arc<Node>>) {
        let Some(node) = told else {
            if std::mem::take(&mut self.watched) {
                self.lose();
            }
            return;
        };
        if status::is_newer(&node, self.seen.metadata.resource_version.as_deref()) {
            let mut node = Node::clone(&node);
            // The watch leaves them out.
            node.status.get_or_insert_default().images = self.seen.status.as_mut().and_then(|s| s.images.take());
            self.see(node);
        }
        self.watched = node.metadata.uid == self.seen.metadata.uid;
    }

    fn lose(&mut self) {
        (self.gone, self.watched) = (true, false);
        self.owner.send_replace(None);
    }

    fn see(&mut self, node: Node) {
        self.gone = false;
        let uid = node.metadata.uid.clone();
        self.owner.send_if_modified(|owner| std::mem::replace(owner, uid.clone()) != uid);
        self.seen = node;
    }

    /// Writes the status if it is time, and makes a Node that was deleted again. Gives whether there is more to do at
    /// once.
    async fn round(
        &mut self,
        config: &NodeConfig,
        machine: &Machine,
        docker: &Health,
        told: &Known,
        now: Timestamp,
    ) -> kube::Result<bool> {
        if self.gone {
            tracing::warn!(node = config.name, "the node's object was deleted; it is made again");
            let node = register::once(&self.api, config, told.server).await?;
            self.sent = None;
            self.see(node);
        }
        let wanted = status::wanted(config, machine, docker, told, &self.seen, now);
        let is_news = status::is_news(&self.seen, &wanted, self.sent.as_ref());
        let clock = Instant::now();
        if !is_news && !self.pace.is_due(clock) {
            return Ok(false);
        }
        let Some(patch) = status::diff(&self.seen, &wanted) else { return Ok(false) };
        match self.api.patch_status(&config.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(updated) => {
                tell(&self.recorder, &config.name, self.seen.status.as_ref(), wanted.status.as_ref());
                let version = |node: &Node| node.metadata.resource_version.clone();
                let (before, after) = (version(&self.seen), version(&updated));
                self.metrics.wrote(Written::NodeStatus, &config.name, before.as_deref(), after.as_deref());
                self.pace.sent(clock, is_news, pace::chance());
                self.sent = Some(Sent { wanted, answer: updated.clone() });
                self.see(updated);
                Ok(false)
            }
            Err(kube::Error::Api(answer)) if answer.code == 404 => {
                self.lose();
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

/// What is worth a word when the node starts.
fn tell_of_machine(recorder: &Recorder, object: &ObjectReference, config: &NodeConfig, node: &Node) {
    let machine = Machine::read(&config.data_dir);
    let before = node.status.as_ref().and_then(|s| s.node_info.as_ref()).map_or("", |info| info.boot_id.as_str());
    if !before.is_empty() && before != machine.boot_id {
        let message = format!("Node {} has been rebooted, boot id: {}", config.name, machine.boot_id);
        recorder.record(object, Severity::Warning, "Rebooted", message);
    }
    if machine.cgroup_v1 {
        let message = "cgroup v1 support is in maintenance mode, please migrate to cgroup v2";
        recorder.record(object, Severity::Warning, "CgroupV1", message);
    }
}

/// The events of conditions that turned.
fn tell(recorder: &Recorder, name: &str, before: Option<&NodeStatus>, now: Option<&NodeStatus>) {
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
