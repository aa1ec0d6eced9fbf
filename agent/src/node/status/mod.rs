//! Computes the Node's status. Pure; `diff` computes the patch that reports it.

mod diff;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
        NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
    },
    apimachinery::pkg::{api::resource::Quantity as ApiQuantity, apis::meta::v1::Time},
};

use super::{
    NodeConfig,
    capacity::{self, Amounts},
    machine::Machine,
    registration::{ARCH, OS},
    skew::{self, Version},
};
use crate::{Pressure, engine::Health, images::StoredImage};
pub(super) use diff::{LastReport, diff, is_newer, needs_report};

/// Inputs of the status besides configuration, machine and Docker.
#[derive(Debug, Clone, Default)]
pub(super) struct StatusInputs {
    pub(super) pressure: Pressure,
    /// The machine is shutting down.
    pub(super) shutting_down: bool,
    pub(super) images: Arc<Vec<StoredImage>>,
    /// Runtimes that RuntimeClasses may name.
    pub(super) runtimes: Arc<BTreeSet<String>>,
    /// Why the pod network is not ready, if so.
    pub(super) network: Option<String>,
    /// The API server's version.
    pub(super) api_version: Option<Version>,
}

/// Most names of one image in the status; upstream's.
const MAX_NAMES_PER_IMAGE: usize = 5;

/// The upstream features (`component-helpers/nodedeclaredfeatures` of 1.36) that this node supports. The scheduler
/// places pods that need one of them on no other nodes, and the API server refuses updates of pods for which it is
/// missing. Sorted, as the API requires.
const DECLARED_FEATURES: [&str; 4] = [
    // WebSocket streams are served as clients open them, untranslated.
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(super) fn node_status(
    config: &NodeConfig,
    machine: &Machine,
    docker: &Health,
    inputs: &StatusInputs,
    before: &NodeStatus,
    now: Timestamp,
) -> NodeStatus {
    let shown = |all: Amounts| -> BTreeMap<String, ApiQuantity> {
        all.into_iter().map(|(name, amount)| (name, ApiQuantity(amount.to_string()))).collect()
    };
    let capacity = capacity::capacity(machine, config.max_pods);
    let allocatable = capacity::allocatable(&capacity, &config.reserved, &config.thresholds);
    // Extended resources: their owner writes the capacity, and all of it is allocatable.
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
        conditions: Some(conditions(inputs, docker, before, now)),
        images: Some(images(&inputs.images, config.max_images)),
        runtime_handlers: Some(runtime_handlers(&inputs.runtimes)),
        features: Some(NodeFeatures { supplemental_groups_policy: Some(true) }),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(config.api_port) }),
        }),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: version,
            kernel_version: machine.kernel.clone(),
            kubelet_version: skew::reported_version(&config.version, inputs.api_version),
            kube_proxy_version: String::new(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: machine.os_image.clone(),
            system_uuid: machine.system_uuid.clone(),
            // Absent without swap: the API refuses a capacity of zero.
            swap: Some(machine.swap_bytes)
                .filter(|bytes| *bytes > 0)
                .map(|bytes| NodeSwapStatus { capacity: Some(bytes) }),
        }),
        declared_features: Some(DECLARED_FEATURES.iter().map(|name| (*name).to_owned()).collect()),
        ..NodeStatus::default()
    }
}

/// Prefix of huge page resources.
pub(super) const HUGE_PAGES: &str = "hugepages-";

/// Whether the node itself reports the amount of a resource.
pub(super) fn is_own(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "ephemeral-storage" | "pods") || resource.starts_with(HUGE_PAGES)
}

/// The node's addresses. A list that contains them already belongs to someone else, such as a cloud controller, and is
/// kept; otherwise addresses of other types are kept. With an external cloud provider its controller writes them: until
/// then the node has its hostname and the configured addresses.
fn addresses(config: &NodeConfig, before: &[NodeAddress]) -> Vec<NodeAddress> {
    let address = |kind: &str, text: String| NodeAddress { type_: kind.to_owned(), address: text };
    if config.external_cloud && !before.is_empty() {
        return before.to_vec();
    }
    let report_ips = !config.external_cloud || config.node_ip_configured;
    let ips = config.addresses.iter().filter(|_| report_ips).map(|ip| address("InternalIP", ip.to_string()));
    let own: Vec<NodeAddress> = ips.chain([address("Hostname", config.name.clone())]).collect();
    if own.iter().all(|one| before.contains(one)) {
        return before.to_vec();
    }
    let others = before.iter().filter(|one| own.iter().all(|own| own.type_ != one.type_)).cloned();
    own.iter().cloned().chain(others).collect()
}

/// The annotation that passes the configured addresses to an external cloud provider.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Sets that annotation, or removes it if no address is configured.
pub(super) fn provided_ip(config: &NodeConfig, annotations: &mut BTreeMap<String, String>) {
    if config.external_cloud && config.node_ip_configured {
        annotations.insert(PROVIDED_IP.to_owned(), config.addresses.to_string());
    } else {
        annotations.remove(PROVIDED_IP);
    }
}

/// The desired Node, derived from the one in the API: the status, and the labels and annotations that every report
/// reconciles.
pub(super) fn desired_node(
    config: &NodeConfig,
    machine: &Machine,
    docker: &Health,
    inputs: &StatusInputs,
    seen: &Node,
    now: Timestamp,
) -> Node {
    let mut node = seen.clone();
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in [(OS, "linux"), (ARCH, architecture())] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    provided_ip(config, node.metadata.annotations.get_or_insert_default());
    let before = seen.status.clone().unwrap_or_default();
    node.status = Some(node_status(config, machine, docker, inputs, &before, now));
    node
}

/// The largest images; a negative maximum is all.
fn images(stored: &[StoredImage], max_images: i32) -> Vec<ContainerImage> {
    let max_images = usize::try_from(max_images).unwrap_or(usize::MAX);
    let one = |image: &StoredImage| ContainerImage {
        names: Some(image.names.iter().take(MAX_NAMES_PER_IMAGE).cloned().collect()),
        // The API omits a zero.
        size_bytes: Some(image.size).filter(|bytes| *bytes != 0),
    };
    stored.iter().filter(|image| !image.names.is_empty()).take(max_images).map(one).collect()
}

/// The default handler and Docker's runtimes. Recursive read-only mounts are made by the agent itself.
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

/// Why the node is not ready, in upstream's words where it has them.
fn not_ready(inputs: &StatusInputs, docker: &Health) -> Vec<String> {
    let docker = match docker {
        Health::Up { .. } => None,
        Health::Unknown => Some("Docker has not been asked yet".to_owned()),
        Health::Down { reason } => Some(format!("container runtime is down: {reason}")),
    };
    let ending = inputs.shutting_down.then(|| "node is shutting down".to_owned());
    [docker, inputs.network.clone(), ending].into_iter().flatten().collect()
}

fn conditions(inputs: &StatusInputs, docker: &Health, before: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
    let pressure = inputs.pressure;
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
    let wrong = not_ready(inputs, docker);
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

/// How long Docker may be down before the node reports it; upstream's.
const RUNTIME_DOWN_TOLERANCE: Duration = Duration::from_secs(30);

/// Docker's health as reported: a restart of the engine is not reported at once.
#[derive(Debug, Clone, Default)]
pub(super) struct RuntimeHealth {
    up: Option<Health>,
    down_since: Option<Timestamp>,
}

impl RuntimeHealth {
    /// The health to report now, and for how long it holds.
    pub(super) fn observe(&mut self, docker: Health, now: Timestamp) -> (Health, Option<Duration>) {
        if !matches!(docker, Health::Down { .. }) {
            self.down_since = None;
            if docker != Health::Unknown {
                self.up = Some(docker.clone());
            }
            return (docker, None);
        }
        let since = *self.down_since.get_or_insert(now);
        let away = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
        match self.up.clone().zip(RUNTIME_DOWN_TOLERANCE.checked_sub(away).filter(|left| !left.is_zero())) {
            Some((up, left)) => (up, Some(left)),
            None => (docker, None),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
