//! What the node says of itself. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures, NodeSpec, NodeStatus,
        NodeSystemInfo,
    },
    apimachinery::pkg::{
        api::resource::Quantity as ApiQuantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use windlass_kit::quantity::Quantity;

use super::{NodeConfig, machine::Machine};
use crate::engine::Health;

/// Upstream's hard eviction thresholds: what pods may not have of memory, and of the disk in percent.
const MEMORY_KEPT: i64 = 100 << 20;
const DISK_KEPT_PERCENT: i64 = 10;
const INODES_KEPT_PERCENT: i64 = 5;

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
    let mut status = node_status(config, machine, &Health::Unknown, &NodeStatus::default(), now);
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
    before: &NodeStatus,
    now: Timestamp,
) -> NodeStatus {
    let amount = |q: Quantity| ApiQuantity(q.to_string());
    let resources = |memory: i64, disk: i64| -> BTreeMap<String, ApiQuantity> {
        let mut all = BTreeMap::from([
            ("cpu".to_owned(), amount(Quantity::from_units(machine.cpus))),
            ("memory".to_owned(), amount(Quantity::from_bytes(memory))),
            ("ephemeral-storage".to_owned(), amount(Quantity::from_bytes(disk))),
            ("pods".to_owned(), amount(Quantity::from_units(i64::from(config.max_pods)))),
        ]);
        all.extend(machine.huge_pages.iter().map(|(size, bytes)| {
            (format!("hugepages-{}", Quantity::from_bytes(*size)), amount(Quantity::from_bytes(*bytes)))
        }));
        all
    };
    // What is set aside for huge pages is nobody's memory else.
    let set_aside: i64 = machine.huge_pages.values().sum();
    let version = match docker {
        Health::Up { version } => format!("docker://{version}"),
        _ => before.node_info.as_ref().map(|i| i.container_runtime_version.clone()).unwrap_or_default(),
    };
    NodeStatus {
        addresses: Some(addresses(config)),
        allocatable: Some(resources(
            (machine.memory_bytes - MEMORY_KEPT - set_aside).max(0),
            machine.disk_bytes - machine.disk_bytes / 100 * DISK_KEPT_PERCENT,
        )),
        capacity: Some(resources(machine.memory_bytes, machine.disk_bytes)),
        conditions: Some(conditions(machine, docker, before, now)),
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
            ..NodeSystemInfo::default()
        }),
        features: Some(NodeFeatures { supplemental_groups_policy: Some(true) }),
        ..NodeStatus::default()
    }
}

fn addresses(config: &NodeConfig) -> Vec<NodeAddress> {
    let address = |kind: &str, text: String| NodeAddress { type_: kind.to_owned(), address: text };
    let internal: IpAddr = config.address;
    vec![address("InternalIP", internal.to_string()), address("Hostname", config.name.clone())]
}

fn conditions(machine: &Machine, docker: &Health, before: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
    let low = |left: i64, of: i64, percent: i64| of > 0 && left < of / 100 * percent;
    let memory = machine.memory_available_bytes < MEMORY_KEPT;
    let disk = low(machine.disk_available_bytes, machine.disk_bytes, DISK_KEPT_PERCENT)
        || low(machine.inodes_free, machine.inodes, INODES_KEPT_PERCENT);
    let pressure = |kind, is: bool, word: &'static str, thing: &'static str| {
        let (reason, message) = if is {
            (format!("KubeletHasInsufficient{word}"), format!("kubelet has insufficient {thing} available"))
        } else {
            (format!("KubeletHasSufficient{word}"), format!("kubelet has sufficient {thing} available"))
        };
        (kind, if is { "True" } else { "False" }, reason, message)
    };
    let disk = if disk {
        ("DiskPressure", "True", "KubeletHasDiskPressure".to_owned(), "kubelet has disk pressure".to_owned())
    } else {
        ("DiskPressure", "False", "KubeletHasNoDiskPressure".to_owned(), "kubelet has no disk pressure".to_owned())
    };
    let ready = match docker {
        Health::Up { .. } => ("Ready", "True", "KubeletReady".to_owned(), "kubelet is posting ready status".to_owned()),
        Health::Unknown => ("Ready", "False", "KubeletNotReady".to_owned(), "Docker has not been asked yet".to_owned()),
        Health::Down { reason } => {
            ("Ready", "False", "KubeletNotReady".to_owned(), format!("container runtime is down: {reason}"))
        }
    };
    let ours = [
        pressure("MemoryPressure", memory, "Memory", "memory"),
        disk,
        pressure("PIDPressure", false, "PID", "PID"),
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
        }
    }

    fn machine() -> Machine {
        Machine {
            cpus: 2,
            memory_bytes: 4 << 30,
            memory_available_bytes: 2 << 30,
            disk_bytes: 1000,
            disk_available_bytes: 500,
            inodes: 100,
            inodes_free: 50,
            ..Machine::default()
        }
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
        let first = node_status(&config(), &machine(), &up, &NodeStatus::default(), early);
        assert_eq!(
            (of(&first, "Ready").status.as_str(), of(&first, "Ready").reason.as_deref()),
            ("True", Some("KubeletReady"))
        );
        assert_eq!(first.node_info.as_ref().unwrap().container_runtime_version, "docker://20.10");
        let same = node_status(&config(), &machine(), &up, &first, late);
        assert!(!differs(&first, &same), "a later heartbeat alone is no news");
        assert_eq!(of(&same, "Ready").last_transition_time, of(&first, "Ready").last_transition_time);
        let down = node_status(&config(), &machine(), &Health::Down { reason: "no socket".into() }, &same, late);
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
        let full = Machine { memory_available_bytes: 1 << 20, disk_available_bytes: 50, ..machine() };
        let status =
            node_status(&config(), &full, &Health::Unknown, &NodeStatus::default(), at("2026-01-01T00:00:00Z"));
        assert_eq!(of(&status, "MemoryPressure").reason.as_deref(), Some("KubeletHasInsufficientMemory"));
        assert_eq!(of(&status, "DiskPressure").status, "True");
        assert_eq!(of(&status, "PIDPressure").status, "False");
    }
}
