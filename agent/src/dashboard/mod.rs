//! What the dashboard and `windlass top` show: current usage of the node, its pods and containers next to their requests
//! and limits, and the node's history of the last hour. Contains no environment values. Pure.

mod series;

#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use serde::{Deserialize, Serialize};
use windlass_cadvisor::model::{Filesystem, Row, Sample, Snapshot, Storage};
use windlass_kit::objects::{requests::requests, resources};

pub use series::{Series, series};

/// Usage of the node and its pods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeUsage {
    /// When this was computed.
    pub at: Timestamp,
    /// The machine.
    pub node: Machine,
    /// Its pods, by namespace and name.
    pub pods: Vec<PodUsage>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// The node's name.
    pub name: String,
    /// Logical processors.
    pub cores: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// When the kernel started.
    pub booted: Timestamp,
    /// Distribution and kernel.
    pub system: String,
    /// Its usage.
    pub used: UsageSample,
    /// The file system of the node's data.
    pub disk: Option<DiskUsage>,
    /// The file system of images and writable layers, if it is another one.
    pub images: Option<DiskUsage>,
}

/// Use of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskUsage {
    /// In use.
    pub used_bytes: u64,
    /// Whole size.
    pub capacity_bytes: u64,
}

/// CPU and memory in use, and cumulative counters of I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageSample {
    /// When it was read, in milliseconds since 1970.
    pub at_ms: i64,
    /// Billionths of a core; `None` before the second sample.
    pub cpu_nano: Option<u64>,
    /// Working set.
    pub memory_bytes: u64,
    /// Cumulative bytes received.
    pub rx_bytes: u64,
    /// Cumulative bytes sent.
    pub tx_bytes: u64,
    /// Cumulative bytes read from disks.
    pub read_bytes: u64,
    /// Cumulative bytes written to disks.
    pub write_bytes: u64,
}

/// Requests or limits. `None` is without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_milli: Option<i64>,
    /// Memory.
    pub memory_bytes: Option<i64>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its phase, or the waiting reason of a container.
    pub state: String,
    /// When the node admitted it.
    pub started: Option<Timestamp>,
    /// It uses the host's network, so its traffic counts as the node's.
    pub host_network: bool,
    /// `None` when no container runs.
    pub used: Option<UsageSample>,
    /// Sum of its containers.
    pub requests: Resources,
    /// Sum of its containers, if each has one.
    pub limits: Resources,
    /// Restarts of its containers.
    pub restarts: i32,
    /// Running init containers, and all others.
    pub containers: Vec<ContainerUsage>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsage {
    /// Its name in the pod.
    pub name: String,
    /// Running, or the reason why not.
    pub state: String,
    /// `None` when it does not run.
    pub used: Option<UsageSample>,
    /// Its requests.
    pub requests: Resources,
    /// Its limits.
    pub limits: Resources,
    /// Its restarts.
    pub restarts: i32,
    /// Since when it runs.
    pub started: Option<Timestamp>,
    /// Its last termination.
    pub ended: Option<LastTermination>,
}

/// A termination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastTermination {
    /// When.
    pub at: Timestamp,
    /// Such as `OOMKilled`.
    pub reason: String,
    /// The exit code.
    pub code: i32,
}

/// Computes the usage of the node and its pods from cadvisor's snapshot.
#[must_use]
pub fn node_usage(
    node_name: &str,
    snapshot: &Snapshot,
    storage: &Storage,
    pods: &[Arc<Pod>],
    at: Timestamp,
) -> NodeUsage {
    let mut rows: HashMap<&str, Vec<&Row>> = HashMap::new();
    for row in snapshot.rows.iter() {
        rows.entry(&row.target.pod_uid).or_default().push(row);
    }
    let none = Vec::new();
    let mut pods: Vec<PodUsage> = pods
        .iter()
        .map(|pod| {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            pod_usage(pod, rows.get(uid).unwrap_or(&none), snapshot.pods.get(uid).map(Arc::as_ref))
        })
        .collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let machine = &snapshot.machine;
    let disk = |space: &Filesystem| DiskUsage { used_bytes: space.used_bytes, capacity_bytes: space.capacity_bytes };
    let data = storage.node.as_ref().map(disk);
    NodeUsage {
        at,
        node: Machine {
            name: node_name.to_owned(),
            cores: machine.cores,
            memory_bytes: machine.memory_bytes,
            booted: machine.booted_at,
            system: format!("{}, Linux {}", machine.os_version, machine.kernel_version),
            used: usage_of(&snapshot.node.sample, snapshot.node.usage_nano_cores),
            disk: data,
            images: storage.images.as_ref().map(disk).filter(|_| storage.is_one_file_system != Some(true)),
        },
        pods,
    }
}

fn usage_of(sample: &Sample, cpu_nano: Option<u64>) -> UsageSample {
    UsageSample {
        at_ms: sample.moment.wall.as_millisecond(),
        cpu_nano,
        memory_bytes: sample.memory.map_or(0, |memory| memory.working_set_bytes()),
        rx_bytes: sample.network.iter().map(|i| i.rx_bytes).sum(),
        tx_bytes: sample.network.iter().map(|i| i.tx_bytes).sum(),
        read_bytes: sample.block.iter().map(|d| d.read_bytes).sum(),
        write_bytes: sample.block.iter().map(|d| d.write_bytes).sum(),
    }
}

fn pod_usage(pod: &Pod, rows: &[&Row], own: Option<&Row>) -> PodUsage {
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let statuses: Vec<&ContainerStatus> =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten()).collect();
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let find = |name: &str| -> Option<&Row> {
        let same = rows.iter().filter(|row| row.target.container_name == name);
        same.max_by_key(|row| row.target.started_at).copied()
    };
    let shown = |container: &&Container| find(&container.name).is_some();
    let containers: Vec<ContainerUsage> = inits
        .iter()
        .filter(shown)
        .chain(&spec.containers)
        .map(|c| container_usage(c, statuses.iter().find(|s| s.name == c.name).copied(), find(&c.name)))
        .collect();
    let waits = containers.iter().map(|c| c.state.as_str()).find(|s| *s != "Running" && *s != "Completed");
    let phase = status.phase.as_deref().unwrap_or("Unknown");
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let requests_of_pod = requests(pod);
    let limit = |resource: &str| -> Option<i64> {
        let each = spec.containers.iter().map(|c| amount(resources::limit(c, resource), resource));
        each.sum::<Option<i64>>().filter(|sum| *sum > 0)
    };
    PodUsage {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        state: match (deleted, phase, waits) {
            (true, ..) => "Terminating",
            (_, "Running" | "Pending", Some(waits)) => waits,
            _ => phase,
        }
        .to_owned(),
        started: status.start_time.as_ref().map(|t| t.0),
        host_network: spec.host_network == Some(true),
        used: sum_usage(rows, own),
        requests: Resources {
            cpu_milli: Some(requests_of_pod.milli_cpu).filter(|n| *n > 0),
            memory_bytes: Some(requests_of_pod.memory).filter(|n| *n > 0),
        },
        limits: Resources { cpu_milli: limit("cpu"), memory_bytes: limit("memory") },
        restarts: statuses.iter().map(|s| s.restart_count).sum(),
        containers,
    }
}

fn amount(quantity: Option<windlass_kit::quantity::Quantity>, resource: &str) -> Option<i64> {
    quantity.map(|q| if resource == "cpu" { q.milli() } else { q.units() })
}

fn container_usage(container: &Container, status: Option<&ContainerStatus>, row: Option<&Row>) -> ContainerUsage {
    let state = status.and_then(|s| s.state.as_ref());
    let running = state.and_then(|s| s.running.as_ref());
    let waiting = state.and_then(|s| s.waiting.as_ref()).and_then(|w| w.reason.clone());
    let terminated = state.and_then(|s| s.terminated.as_ref());
    let before = status.and_then(|s| s.last_state.as_ref()?.terminated.as_ref());
    let last = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    ContainerUsage {
        name: container.name.clone(),
        state: match (running, terminated) {
            (Some(_), _) => "Running".to_owned(),
            (None, Some(terminated)) => terminated.reason.clone().unwrap_or_else(|| "Terminated".to_owned()),
            (None, None) => waiting.unwrap_or_else(|| "Waiting".to_owned()),
        },
        used: row.map(|row| usage_of(&row.sample, row.usage_nano_cores)),
        requests: Resources {
            cpu_milli: amount(resources::amount(last, "cpu"), "cpu"),
            memory_bytes: amount(resources::amount(last, "memory"), "memory"),
        },
        limits: Resources {
            cpu_milli: amount(resources::limit(container, "cpu"), "cpu"),
            memory_bytes: amount(resources::limit(container, "memory"), "memory"),
        },
        restarts: status.map_or(0, |s| s.restart_count),
        started: running.and_then(|r| r.started_at.as_ref()).map(|t| t.0),
        ended: terminated.or(before).and_then(|t| {
            Some(LastTermination {
                at: t.finished_at.as_ref()?.0,
                reason: t.reason.clone().unwrap_or_default(),
                code: t.exit_code,
            })
        }),
    }
}

/// The usage of a pod: CPU and memory of its cgroup if it has one, which includes what runs outside its containers;
/// else the sum of its containers. The sandbox counts the traffic.
fn sum_usage(rows: &[&Row], own: Option<&Row>) -> Option<UsageSample> {
    let mut total = UsageSample::default();
    let mut rates: Option<u64> = None;
    for row in rows {
        let one = usage_of(&row.sample, row.usage_nano_cores);
        total.at_ms = total.at_ms.max(one.at_ms);
        total.memory_bytes += one.memory_bytes;
        total.read_bytes += one.read_bytes;
        total.write_bytes += one.write_bytes;
        if !row.host_network {
            total.rx_bytes += one.rx_bytes;
            total.tx_bytes += one.tx_bytes;
        }
        rates = one.cpu_nano.map(|rate| rates.unwrap_or(0) + rate).or(rates);
    }
    total.cpu_nano = rates;
    if let Some(own) = own {
        total.cpu_nano = own.usage_nano_cores;
        total.memory_bytes = own.sample.memory.map_or(0, |memory| memory.working_set_bytes());
    }
    rows.first().map(|_| total)
}
