//! What the node says of itself. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
        NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo,
    },
    apimachinery::pkg::{
        api::resource::Quantity as ApiQuantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use serde_json::{Value, json};

use super::{
    NodeConfig,
    capacity::{self, Amounts},
    machine::Machine,
};
use crate::{Pressure, engine::Health, images::StoredImage};

/// What else is known of the node at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) pressure: Pressure,
    /// The machine is about to end.
    pub(super) going_down: bool,
    pub(super) images: Arc<Vec<StoredImage>>,
    /// What RuntimeClasses may name.
    pub(super) runtimes: Arc<BTreeSet<String>>,
    /// Why pods cannot be connected, if so.
    pub(super) network: Option<String>,
}

/// The last status that was sent, and what the API made of it.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) wanted: NodeStatus,
    pub(super) answer: NodeStatus,
}

/// Names of one image that are told; upstream's.
const NAMES_OF_IMAGE: usize = 5;

/// What of upstream's features (`component-helpers/nodedeclaredfeatures` of 1.36) this node has. The scheduler gives pods
/// that need one of them to no other nodes, and the API server refuses changes of pods for which it is missing. In
/// alphabetical order, or the API refuses the node.
const DECLARED_FEATURES: [&str; 2] = [
    // Connections to pods are handed through as clients open them, untranslated.
    "ExtendWebSocketsToKubelet",
    "RestartAllContainersOnContainerExits",
];

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The object that registers the node.
pub(super) fn new_node(config: &NodeConfig, machine: &Machine, now: Timestamp) -> Node {
    let labels = [
        ("kubernetes.io/hostname", config.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture()),
    ];
    let own = |(k, v): (&str, &str)| (k.to_owned(), v.to_owned());
    let annotation = ("volumes.kubernetes.io/controller-managed-attach-detach", "true");
    let nothing = (Known::default(), NodeStatus::default());
    let mut status = node_status(config, machine, &Health::Unknown, &nothing.0, &nothing.1, now);
    status.conditions = None;
    Node {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            labels: Some(labels.into_iter().map(own).collect()),
            annotations: Some([annotation].into_iter().map(own).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(status),
    }
}

pub(super) fn node_status(
    config: &NodeConfig,
    machine: &Machine,
    docker: &Health,
    known: &Known,
    before: &NodeStatus,
    now: Timestamp,
) -> NodeStatus {
    let shown = |all: Amounts| -> BTreeMap<String, ApiQuantity> {
        all.into_iter().map(|(name, amount)| (name, ApiQuantity(amount.to_string()))).collect()
    };
    let capacity = capacity::capacity(machine, config.max_pods);
    let allocatable = capacity::allocatable(&capacity, &config.reserved, &config.thresholds);
    // Extended resources: whoever counts them writes the capacity, and pods may have all of it.
    let extended =
        || before.capacity.iter().flatten().filter(|(name, _)| !is_own(name)).map(|(k, v)| (k.clone(), v.clone()));
    let version = match docker {
        Health::Up { version } => format!("docker://{version}"),
        _ => before.node_info.as_ref().map(|i| i.container_runtime_version.clone()).unwrap_or_default(),
    };
    NodeStatus {
        addresses: Some(addresses(config, before.addresses.as_deref().unwrap_or_default())),
        allocatable: Some(shown(allocatable).into_iter().chain(extended()).collect()),
        capacity: Some(shown(capacity).into_iter().chain(extended()).collect()),
        conditions: Some(conditions(known, docker, before, now)),
        images: Some(images(&known.images, config.max_images)),
        runtime_handlers: Some(runtime_handlers(&known.runtimes)),
        features: Some(NodeFeatures { supplemental_groups_policy: Some(true) }),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(config.api_port) }),
        }),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: version,
            kernel_version: machine.kernel.clone(),
            kubelet_version: config.version.clone(),
            kube_proxy_version: String::new(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: machine.os_image.clone(),
            system_uuid: machine.system_uuid.clone(),
            // A machine without swap says nothing of it: the API refuses a capacity of zero.
            swap: Some(machine.swap_bytes)
                .filter(|bytes| *bytes > 0)
                .map(|bytes| NodeSwapStatus { capacity: Some(bytes) }),
        }),
        declared_features: Some(DECLARED_FEATURES.iter().map(|name| (*name).to_owned()).collect()),
        ..NodeStatus::default()
    }
}

/// Whether the amount of a resource is the machine's to tell.
fn is_own(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "ephemeral-storage" | "pods") || resource.starts_with("hugepages-")
}

/// The node's addresses. A list that has them already is another's, such as a cloud controller's, and stays as it is;
/// otherwise addresses of other types stay.
fn addresses(config: &NodeConfig, before: &[NodeAddress]) -> Vec<NodeAddress> {
    let address = |kind: &str, text: String| NodeAddress { type_: kind.to_owned(), address: text };
    let own = [address("InternalIP", config.address.to_string()), address("Hostname", config.name.clone())];
    if own.iter().all(|one| before.contains(one)) {
        return before.to_vec();
    }
    let others = before.iter().filter(|one| own.iter().all(|own| own.type_ != one.type_)).cloned();
    own.iter().cloned().chain(others).collect()
}

/// The largest images; `most` below zero is all.
fn images(stored: &[StoredImage], most: i32) -> Vec<ContainerImage> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let one = |image: &StoredImage| ContainerImage {
        names: Some(image.names.iter().take(NAMES_OF_IMAGE).cloned().collect()),
        size_bytes: Some(image.size),
    };
    stored.iter().filter(|image| !image.names.is_empty()).take(most).map(one).collect()
}

/// The default, and what RuntimeClasses may name. Read-only mounts are made so all the way down by the agent itself.
fn runtime_handlers(names: &BTreeSet<String>) -> Vec<NodeRuntimeHandler> {
    let one = |name: &str| NodeRuntimeHandler {
        name: Some(name.to_owned()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(true),
            user_namespaces: Some(false),
        }),
    };
    [""].into_iter().chain(names.iter().map(String::as_str)).map(one).collect()
}

/// Why pods cannot run here, in upstream's words where it has them.
fn not_ready(known: &Known, docker: &Health) -> Vec<String> {
    let docker = match docker {
        Health::Up { .. } => None,
        Health::Unknown => Some("Docker has not been asked yet".to_owned()),
        Health::Down { reason } => Some(format!("container runtime is down: {reason}")),
    };
    let network = known.network.as_ref().map(|why| {
        format!(
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
             message:Network plugin returns error: cni plugin not initialized: {why}"
        )
    });
    let ending = known.going_down.then(|| "node is shutting down".to_owned());
    [docker, network, ending].into_iter().flatten().collect()
}

fn conditions(known: &Known, docker: &Health, before: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
    let pressure = known.pressure;
    let short = |kind, is: bool, word: &'static str, thing: &'static str| {
        let (reason, message) = if is {
            (format!("KubeletHasInsufficient{word}"), format!("kubelet has insufficient {thing} available"))
        } else {
            (format!("KubeletHasSufficient{word}"), format!("kubelet has sufficient {thing} available"))
        };
        (kind, if is { "True" } else { "False" }, reason, message)
    };
    let disk = if pressure.disk {
        ("DiskPressure", "True", "KubeletHasDiskPressure".to_owned(), "kubelet has disk pressure".to_owned())
    } else {
        ("DiskPressure", "False", "KubeletHasNoDiskPressure".to_owned(), "kubelet has no disk pressure".to_owned())
    };
    let wrong = not_ready(known, docker);
    let ready = match &wrong[..] {
        [] => ("Ready", "True", "KubeletReady".to_owned(), "kubelet is posting ready status".to_owned()),
        [one] => ("Ready", "False", "KubeletNotReady".to_owned(), one.clone()),
        more => ("Ready", "False", "KubeletNotReady".to_owned(), format!("[{}]", more.join(", "))),
    };
    let ours = [
        short("MemoryPressure", pressure.memory, "Memory", "memory"),
        disk,
        short("PIDPressure", pressure.pid, "PID", "PID"),
        ready,
    ];
    ours.into_iter()
        .map(|(kind, value, reason, message)| {
            let earlier = before.conditions.iter().flatten().find(|c| c.type_ == kind);
            let since = earlier.filter(|c| c.status == value).and_then(|c| c.last_transition_time.clone());
            NodeCondition {
                type_: kind.to_owned(),
                status: value.to_owned(),
                reason: Some(reason),
                message: Some(message),
                last_heartbeat_time: Some(seconds(now)),
                last_transition_time: Some(since.unwrap_or_else(|| seconds(now))),
            }
        })
        .collect()
}

fn seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// The conditions that are the node's own; others, such as NetworkUnavailable, are written by controllers.
const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];

/// Whether the API has something else than what is wanted, beyond the time of the heartbeat.
fn differs(known: &NodeStatus, wanted: &NodeStatus) -> bool {
    let told = |status: &NodeStatus| -> Vec<(String, String, Option<String>, Option<String>)> {
        let own = status.conditions.iter().flatten().filter(|c| CONDITIONS.contains(&c.type_.as_str()));
        let mut all: Vec<_> =
            own.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone(), c.message.clone())).collect();
        all.sort();
        all
    };
    told(known) != told(wanted)
        || known.capacity != wanted.capacity
        || known.allocatable != wanted.allocatable
        || known.addresses != wanted.addresses
        || known.node_info != wanted.node_info
        || known.daemon_endpoints != wanted.daemon_endpoints
        || known.images != wanted.images
        || known.runtime_handlers != wanted.runtime_handlers
        || known.features != wanted.features
        || known.declared_features != wanted.declared_features
}

/// Whether the status must be sent before it is too old. What the API has not taken, such as a field that an older one
/// does not know, is not sent again as long as nothing has changed on either side.
pub(super) fn is_news(known: &NodeStatus, wanted: &NodeStatus, sent: Option<&Sent>) -> bool {
    let in_vain = |sent: &Sent| !differs(&sent.wanted, wanted) && !differs(&sent.answer, known);
    differs(known, wanted) && !sent.is_some_and(in_vain)
}

/// Whether this object is later than the one of `version`.
pub(super) fn is_newer(node: &Node, version: Option<&str>) -> bool {
    let number = |text: Option<&str>| text.and_then(|t| t.parse::<u64>().ok());
    let own = node.metadata.resource_version.as_deref();
    match (number(own), number(version)) {
        (Some(own), Some(version)) => own > version,
        _ => own != version,
    }
}

/// What is sent, as a strategic merge patch: the wanted status, without what the API has of ours and must not.
pub(super) fn patch(known: &NodeStatus, wanted: &NodeStatus) -> Value {
    let mut patch = json!(wanted);
    for (list, known, wanted) in
        [("capacity", &known.capacity, &wanted.capacity), ("allocatable", &known.allocatable, &wanted.allocatable)]
    {
        let gone = known.iter().flat_map(BTreeMap::keys).filter(|name| !wanted.iter().any(|w| w.contains_key(*name)));
        gone.for_each(|name| patch[list][name] = Value::Null);
    }
    // They would be merged by their types, of which a list may have one more than once.
    if known.addresses != wanted.addresses
        && let Some(list) = patch["addresses"].as_array_mut()
    {
        list.push(json!({"$patch": "replace"}));
    }
    patch
}

/// How long Docker may be away before the node says so; upstream's.
const PATIENCE: Duration = Duration::from_secs(30);

/// Docker's health as the node tells it: an engine that is restarted is not news at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Belief {
    up: Option<Health>,
    down_since: Option<Timestamp>,
}

impl Belief {
    /// What is told now, and how long that holds if nothing happens.
    pub(super) fn of(&mut self, docker: Health, now: Timestamp) -> (Health, Option<Duration>) {
        if !matches!(docker, Health::Down { .. }) {
            self.down_since = None;
            if docker != Health::Unknown {
                self.up = Some(docker.clone());
            }
            return (docker, None);
        }
        let since = *self.down_since.get_or_insert(now);
        let away = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
        match self.up.clone().zip(PATIENCE.checked_sub(away).filter(|left| !left.is_zero())) {
            Some((up, left)) => (up, Some(left)),
            None => (docker, None),
        }
    }
}

#[cfg(test)]
mod tests;
