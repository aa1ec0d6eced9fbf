//! What the node says of itself. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
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
}

/// Names of one image that are told; upstream's.
const NAMES_OF_IMAGE: usize = 5;

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
    let version = match docker {
        Health::Up { version } => format!("docker://{version}"),
        _ => before.node_info.as_ref().map(|i| i.container_runtime_version.clone()).unwrap_or_default(),
    };
    NodeStatus {
        addresses: Some(addresses(config)),
        allocatable: Some(shown(capacity::allocatable(&capacity, &config.reserved, &config.thresholds))),
        capacity: Some(shown(capacity)),
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
            swap: Some(NodeSwapStatus { capacity: Some(machine.swap_bytes) }),
        }),
        // The API server hands connections through as clients open them, untranslated.
        declared_features: Some(vec!["ExtendWebSocketsToKubelet".to_owned()]),
        ..NodeStatus::default()
    }
}

fn addresses(config: &NodeConfig) -> Vec<NodeAddress> {
    let address = |kind: &str, text: String| NodeAddress { type_: kind.to_owned(), address: text };
    let internal: IpAddr = config.address;
    vec![address("InternalIP", internal.to_string()), address("Hostname", config.name.clone())]
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
    let ready = match docker {
        _ if known.going_down => ("Ready", "False", "KubeletNotReady".to_owned(), "node is shutting down".to_owned()),
        Health::Up { .. } => ("Ready", "True", "KubeletReady".to_owned(), "kubelet is posting ready status".to_owned()),
        Health::Unknown => ("Ready", "False", "KubeletNotReady".to_owned(), "Docker has not been asked yet".to_owned()),
        Health::Down { reason } => {
            ("Ready", "False", "KubeletNotReady".to_owned(), format!("container runtime is down: {reason}"))
        }
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

/// Whether there is news beyond the time of the heartbeat.
pub(super) fn differs(known: &NodeStatus, wanted: &NodeStatus) -> bool {
    let told = |status: &NodeStatus| -> Vec<(String, String, Option<String>, Option<String>)> {
        let all = status.conditions.iter().flatten();
        let mut all: Vec<_> =
            all.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone(), c.message.clone())).collect();
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
mod tests {
    use super::*;

    fn config() -> NodeConfig {
        NodeConfig {
            name: "n".into(),
            address: "192.0.2.1".parse().unwrap(),
            api_port: 10250,
            data_dir: "/".into(),
            version: "v1".into(),
            max_pods: 110,
            reserved: Vec::new(),
            thresholds: Vec::new(),
            max_images: 50,
            hold_pods: true,
        }
    }

    fn machine() -> Machine {
        Machine { cpus: 2, memory_bytes: 4 << 30, disk_bytes: 1000, ..Machine::default() }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn of(status: &NodeStatus, kind: &str) -> NodeCondition {
        status.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap().clone()
    }

    #[test]
    fn the_node_is_ready_when_docker_answers() {
        let (early, late) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:01:00Z"));
        let up = Health::Up { version: "20.10".into() };
        let first = node_status(&config(), &machine(), &up, &Known::default(), &NodeStatus::default(), early);
        assert_eq!(
            (of(&first, "Ready").status.as_str(), of(&first, "Ready").reason.as_deref()),
            ("True", Some("KubeletReady"))
        );
        assert_eq!(first.node_info.as_ref().unwrap().container_runtime_version, "docker://20.10");
        let same = node_status(&config(), &machine(), &up, &Known::default(), &first, late);
        assert!(!differs(&first, &same), "a later heartbeat alone is no news");
        assert_eq!(of(&same, "Ready").last_transition_time, of(&first, "Ready").last_transition_time);
        let down = Health::Down { reason: "no socket".into() };
        let down = node_status(&config(), &machine(), &down, &Known::default(), &same, late);
        assert!(differs(&same, &down));
        let ready = of(&down, "Ready");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref(), ready.message.as_deref()),
            ("False", Some("KubeletNotReady"), Some("container runtime is down: no socket"))
        );
        assert_eq!(ready.last_transition_time, Some(seconds(late)));
        assert_eq!(down.node_info.unwrap().container_runtime_version, "docker://20.10", "the version stays known");
    }

    #[test]
    fn pressure_is_told() {
        let known = Known { pressure: Pressure { memory: true, disk: true, pid: false }, ..Known::default() };
        let before = NodeStatus::default();
        let status = node_status(&config(), &machine(), &Health::Unknown, &known, &before, at("2026-01-01T00:00:00Z"));
        assert_eq!(of(&status, "MemoryPressure").reason.as_deref(), Some("KubeletHasInsufficientMemory"));
        assert_eq!(of(&status, "DiskPressure").status, "True");
        assert_eq!(of(&status, "PIDPressure").status, "False");
    }

    #[test]
    fn the_largest_images_and_a_few_names_of_each() {
        let image = |count: usize, size| StoredImage { names: (0..count).map(|n| format!("i:{n}")).collect(), size };
        let stored = [image(9, 300), image(0, 200), image(1, 100), image(2, 50)];
        let told: Vec<(usize, Option<i64>)> =
            images(&stored, 2).into_iter().map(|i| (i.names.unwrap().len(), i.size_bytes)).collect();
        assert_eq!(told, [(5, Some(300)), (1, Some(100))]);
        assert_eq!(images(&stored, -1).len(), 3);
        assert!(images(&stored, 0).is_empty());
    }

    #[test]
    fn docker_may_be_away_for_half_a_minute() {
        let seconds = |n: i64| Timestamp::from_second(1_700_000_000 + n).unwrap();
        let (up, down) = (Health::Up { version: "20.10".into() }, Health::Down { reason: "gone".into() });
        let mut belief = Belief::default();
        assert_eq!(belief.of(down.clone(), seconds(0)), (down.clone(), None), "it never answered");
        assert_eq!(belief.of(up.clone(), seconds(1)), (up.clone(), None));
        assert_eq!(belief.of(down.clone(), seconds(10)), (up.clone(), Some(Duration::from_secs(30))));
        assert_eq!(belief.of(down.clone(), seconds(39)), (up.clone(), Some(Duration::from_secs(1))));
        assert_eq!(belief.of(down.clone(), seconds(40)), (down.clone(), None));
        assert_eq!(belief.of(up.clone(), seconds(41)), (up.clone(), None));
        assert_eq!(belief.of(down, seconds(50)).0, up, "it begins anew");
    }
}
