//! The node's own duties: its object, its heartbeat, its conditions.
//!
//! `status` and `capacity` decide what the node says of itself and are pure; `machine` reads the host;
//! `eviction` defends it; this module is the loop. Of `pods` only what ends pods or holds all of them is imported.

mod capacity;
pub mod eviction;
mod lease;
mod machine;
mod own;
pub mod shutdown;
mod status;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus, ObjectReference};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::KernelLog;
use windlass_kit::{
    backoff::Backoff,
    events::{Recorder, Severity},
    heartbeat::Heartbeats,
    net::Cidr,
};

use crate::{
    Pressure, STUCK_AFTER,
    engine::Health,
    images::StoredImage,
    metrics::{Metrics, Written},
    network::CniConfig,
    scratch,
};
pub use capacity::{Amounts, parse_reserved};
use eviction::thresholds::Threshold;
use machine::Machine;
pub(crate) use own::follow;
use status::{Belief, Known, Sent, is_newer};

/// Settings of the node's duties.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The node's name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
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
    /// Where the network plugins are, if pods are connected by those: the node is not ready before there are any.
    pub cni: Option<CniConfig>,
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
    /// The node's object as the API has it, which others write to as well.
    pub node: watch::Receiver<Option<Arc<Node>>>,
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

/// Why the node could not do its duties.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No range of addresses was given in time.
    #[error(
        "node {node:?} was given no range of addresses for its pods within {seconds} s; does a controller give them (spec.podCIDR)?"
    )]
    NoRange {
        /// Which node.
        node: String,
        /// How long it waited.
        seconds: u64,
    },
    /// The range cannot be used.
    #[error("node {node:?} was given {range:?} for its pods, which is not an IPv4 range")]
    Range {
        /// Which node.
        node: String,
        /// What it was given.
        range: String,
    },
}

/// The status is computed this often, and sent when it changed or when it is this old.
const STATUS_EVERY: Duration = Duration::from_secs(10);
const STATUS_AGE: Duration = Duration::from_secs(300);
/// How soon it is computed again while the network of pods is not ready, which holds up all of them.
const SOON: Duration = Duration::from_secs(1);

/// Makes the node's object, or finds it made; tried until it works or `shutdown`.
pub async fn register(client: &Client, config: &NodeConfig, shutdown: &CancellationToken) -> Option<Node> {
    let api: Api<Node> = Api::all(client.clone());
    let machine = Machine::read(&config.data_dir);
    let wanted = status::new_node(config, &machine, Timestamp::now());
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    loop {
        match make(&api, &wanted).await {
            Ok(node) => return Some(node),
            Err(error) => {
                tracing::warn!(node = config.name, %error, "the node could not be registered; it is tried again")
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(backoff.next_delay()) => {}
        }
    }
}

/// Makes the node's object, or finds it made.
async fn make(api: &Api<Node>, wanted: &Node) -> kube::Result<Node> {
    match api.create(&PostParams::default(), wanted).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            api.get(wanted.metadata.name.as_deref().unwrap_or_default()).await
        }
        other => other,
    }
}

/// The range of addresses for this node's pods: from the file of an earlier start, or from the API, which is
/// waited for.
///
/// # Errors
/// When none comes within a minute of the node being in the API, or it cannot be used.
pub async fn pod_cidrs(client: &Client, name: &str, file: &Path) -> Result<Vec<Cidr>, NodeError> {
    const PATIENCE: u64 = 60;
    if let Some(ranges) = std::fs::read_to_string(file).ok().and_then(|t| parse_ranges(t.trim())) {
        return Ok(ranges);
    }
    let api: Api<Node> = Api::all(client.clone());
    // The patience is with controllers; an API that does not answer is waited for without an end.
    let mut deadline = None;
    let mut wait = Duration::from_millis(5);
    loop {
        let node = api.get_opt(name).await.ok().flatten();
        if node.is_some() {
            deadline.get_or_insert_with(|| tokio::time::Instant::now() + Duration::from_secs(PATIENCE));
        }
        let given = node.and_then(|n| n.spec);
        let given = given.and_then(|s| s.pod_cidrs.filter(|all| !all.is_empty()).or(s.pod_cidr.map(|one| vec![one])));
        if let Some(text) = given.map(|all| all.join(",")) {
            let ranges =
                parse_ranges(&text).ok_or_else(|| NodeError::Range { node: name.to_owned(), range: text.clone() })?;
            if let Some(parent) = file.parent() {
                let _ = std::fs::create_dir_all(parent);
            }
            if let Err(error) = scratch::write(file, format!("{text}\n").as_bytes()) {
                tracing::warn!(%error, file = %file.display(), "the range of pods could not be kept; the next start asks again");
            }
            return Ok(ranges);
        }
        if deadline.is_some_and(|at| tokio::time::Instant::now() >= at) {
            return Err(NodeError::NoRange { node: name.to_owned(), seconds: PATIENCE });
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_millis(500));
    }
}

/// Reads `10.244.0.0/24,fd00::/64`: IPv4 first, one of a family at most, each with room for pods.
#[must_use]
pub fn parse_ranges(text: &str) -> Option<Vec<Cidr>> {
    let mut ranges = text.split(',').map(|t| Cidr::parse(t.trim())).collect::<Option<Vec<Cidr>>>()?;
    ranges.sort_by_key(Cidr::family);
    let roomy = |r: &Cidr| r.length() >= 1 && r.length() <= r.family().bits() - 2;
    let apart = ranges.windows(2).all(|pair| pair[0].family() != pair[1].family());
    (apart && ranges.iter().all(roomy)).then_some(ranges)
}

/// Keeps the lease and the status until `shutdown`. Both go through `heartbeat`, whose requests must have a short time
/// limit and connections of their own: a node whose heartbeat waits behind something else is taken for dead.
///
/// # Errors
/// Never; it has the shape of the other tasks.
pub async fn run(
    (client, heartbeat): (Client, Client),
    config: NodeConfig,
    node: Node,
    mut news: News,
    (heartbeats, metrics): (Heartbeats, Arc<Metrics>),
    shutdown: CancellationToken,
) -> Result<(), NodeError> {
    let recorder = metrics.recorder(client, &config.name);
    let object = reference(&config.name);
    recorder.record(&object, Severity::Normal, "Starting", "Starting windlass.");
    let mut kernel = KernelLog::open();
    let mut belief = Belief::default();
    let mut held = false;
    tell_of_machine(&recorder, &object, &config, &node);
    let heart = heartbeats.begin("node lease", "", STUCK_AFTER);
    let leases =
        tokio::spawn(lease::renew(heartbeat.clone(), node.clone(), (heart, Arc::clone(&metrics)), shutdown.clone()));
    let heart = heartbeats.begin("node status", "", STUCK_AFTER);
    let api: Api<Node> = Api::all(heartbeat);
    let mut version = node.metadata.resource_version;
    let mut known = node.status.unwrap_or_default();
    let mut sent: Option<Sent> = None;
    let mut sent_at: Option<tokio::time::Instant> = None;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    loop {
        heart.beat();
        let machine = Machine::read(&config.data_dir);
        let now = Timestamp::now();
        let (docker, holds) = belief.of(news.docker.borrow_and_update().clone(), now);
        // What others have written meanwhile, such as extended resources, or the addresses of a cloud.
        if let Some(node) = news.node.borrow_and_update().as_deref().filter(|node| is_newer(node, version.as_deref())) {
            version.clone_from(&node.metadata.resource_version);
            known = NodeStatus { images: known.images.take(), ..node.status.clone().unwrap_or_default() };
        }
        let network = config.cni.as_ref().and_then(|cni| cni.check().err());
        let told = Known {
            pressure: *news.pressure.borrow_and_update(),
            going_down: *news.going_down.borrow_and_update(),
            images: news.images.borrow().clone(),
            runtimes: news.runtimes.borrow().clone(),
            network: network.map(|why| why.to_string()),
        };
        // Whoever was over a limit of a cgroup was not the machine's fault.
        for victim in kernel.kills().into_iter().filter(|kill| kill.constraint == "CONSTRAINT_NONE") {
            let message = format!("System OOM encountered, victim process: {}, pid: {}", victim.name, victim.pid);
            recorder.record(&object, Severity::Warning, "SystemOOM", message);
        }
        if config.hold_pods && crate::pods::hold_all(&held_to(&config)).await && !std::mem::replace(&mut held, true) {
            let message = "Updated Node Allocatable limit across pods";
            recorder.record(&object, Severity::Normal, "NodeAllocatableEnforced", message);
        }
        let wanted = status::node_status(&config, &machine, &docker, &told, &known, now);
        let due =
            sent_at.is_none_or(|at| at.elapsed() >= STATUS_AGE) || status::is_news(&known, &wanted, sent.as_ref());
        let every = if told.network.is_some() { SOON } else { STATUS_EVERY };
        let mut wait = holds.map_or(every, |holds| holds.min(every));
        // Until Docker has answered or refused there is nothing true to say.
        if due && docker != Health::Unknown {
            let patch = serde_json::json!({"status": status::patch(&known, &wanted)});
            match api.patch_status(&config.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
                Ok(updated) => {
                    tell(&recorder, &object, &config.name, &known, &wanted);
                    let after = updated.metadata.resource_version.as_deref();
                    metrics.wrote(Written::NodeStatus, &config.name, version.as_deref(), after);
                    version = updated.metadata.resource_version;
                    known = updated.status.unwrap_or_default();
                    sent = Some(Sent { wanted, answer: known.clone() });
                    sent_at = Some(tokio::time::Instant::now());
                    backoff.reset();
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 => {
                    tracing::warn!(node = config.name, "the node's object was deleted; it is made again");
                    if let Err(error) = make(&api, &status::new_node(&config, &machine, now)).await {
                        tracing::warn!(node = config.name, %error, "the node could not be registered; it is tried again");
                    }
                    wait = backoff.next_delay();
                }
                Err(error) => {
                    tracing::warn!(%error, "the node's status could not be written; it is tried again");
                    wait = backoff.next_delay();
                }
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            changed = news.docker.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = news.pressure.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            changed = news.going_down.changed() => if changed.is_err() { shutdown.cancelled().await; break },
            () = tokio::time::sleep(wait) => {}
        }
    }
    heart.end();
    let _ = leases.await;
    Ok(())
}

/// The node as events name it; upstream gives its name for its uid.
#[must_use]
pub fn reference(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
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
fn tell(recorder: &Recorder, object: &ObjectReference, name: &str, before: &NodeStatus, now: &NodeStatus) {
    let value = |status: &NodeStatus, kind: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == kind).map(|c| c.status.clone())
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
            recorder.record(object, Severity::Normal, reason, format!("Node {name} status is now: {reason}"));
        }
    }
}
