//! What the node, its pods and their containers use at this moment and used in the last hour, beside what they may
//! use: for people who look, in the terminal or in a browser. Holds no value of any environment. Pure.

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

/// The node and all that runs on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Live {
    /// When this was put together.
    pub at: Timestamp,
    /// The machine.
    pub node: Machine,
    /// Its pods, by namespace and name.
    pub pods: Vec<LivePod>,
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
    /// What is in use.
    pub used: Used,
    /// The file system of the node's data.
    pub disk: Option<Disk>,
    /// That of images and writable layers, where it is another.
    pub images: Option<Disk>,
}

/// Use of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// In use.
    pub used_bytes: u64,
    /// Whole size.
    pub capacity_bytes: u64,
}

/// Amounts in use, and counters of what went in and out so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Used {
    /// When it was read, in milliseconds since 1970.
    pub at_ms: i64,
    /// Billionths of a core; none before a second look.
    pub cpu_nano: Option<u64>,
    /// Memory that cannot be freed easily.
    pub memory_bytes: u64,
    /// Received so far.
    pub rx_bytes: u64,
    /// Sent so far.
    pub tx_bytes: u64,
    /// Read from disks so far.
    pub read_bytes: u64,
    /// Written to disks so far.
    pub write_bytes: u64,
}

/// What is asked for, or the most that may be used. None is without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bounds {
    /// Thousandths of a core.
    pub cpu_milli: Option<i64>,
    /// Memory.
    pub memory_bytes: Option<i64>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LivePod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Running, Pending …, or what its containers wait for.
    pub state: String,
    /// When the node took it.
    pub started: Option<Timestamp>,
    /// Its traffic is the node's.
    pub host_network: bool,
    /// None when nothing of it runs.
    pub used: Option<Used>,
    /// Of all containers together.
    pub requests: Bounds,
    /// Of all containers together, when each has one.
    pub limits: Bounds,
    /// How often containers were started again.
    pub restarts: i32,
    /// Init containers that run, and the others.
    pub containers: Vec<LiveContainer>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveContainer {
    /// Its name in the pod.
    pub name: String,
    /// Running, or why not.
    pub state: String,
    /// None when it does not run.
    pub used: Option<Used>,
    /// What it asks for.
    pub requests: Bounds,
    /// The most that it may use.
    pub limits: Bounds,
    /// How often it was started again.
    pub restarts: i32,
    /// Since when it runs.
    pub started: Option<Timestamp>,
    /// How its last run ended.
    pub ended: Option<Ending>,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// When.
    pub at: Timestamp,
    /// Such as `OOMKilled`.
    pub reason: String,
    /// The exit code.
    pub code: i32,
}

/// Puts it all together.
#[must_use]
pub fn live(node_name: &str, snapshot: &Snapshot, storage: &Storage, pods: &[Arc<Pod>], at: Timestamp) -> Live {
    let mut rows: HashMap<&str, Vec<&Row>> = HashMap::new();
    for row in &snapshot.rows {
        rows.entry(&row.target.pod_uid).or_default().push(row);
    }
    let none = Vec::new();
    let mut pods: Vec<LivePod> = pods
        .iter()
        .map(|pod| {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            pod_of(pod, rows.get(uid).unwrap_or(&none), snapshot.pods.get(uid).map(Arc::as_ref))
        })
        .collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let machine = &snapshot.machine;
    let disk = |space: &Filesystem| Disk { used_bytes: space.used_bytes, capacity_bytes: space.capacity_bytes };
    let data = storage.node.as_ref().map(disk);
    Live {
        at,
        node: Machine {
            name: node_name.to_owned(),
            cores: machine.cores,
            memory_bytes: machine.memory_bytes,
            booted: machine.booted_at,
            system: format!("{}, Linux {}", machine.os_version, machine.kernel_version),
            used: used(&snapshot.node.sample, snapshot.node.usage_nano_cores),
            disk: data,
            images: storage
                .images
                .as_ref()
                .map(disk)
                .filter(|images| Some(images.capacity_bytes) != data.map(|d| d.capacity_bytes)),
        },
        pods,
    }
}

fn used(sample: &Sample, cpu_nano: Option<u64>) -> Used {
    Used {
        at_ms: sample.at.as_millisecond(),
        cpu_nano,
        memory_bytes: sample.memory.working_set_bytes(),
        rx_bytes: sample.network.iter().map(|i| i.rx_bytes).sum(),
        tx_bytes: sample.network.iter().map(|i| i.tx_bytes).sum(),
        read_bytes: sample.block.iter().map(|d| d.read_bytes).sum(),
        write_bytes: sample.block.iter().map(|d| d.write_bytes).sum(),
    }
}

fn pod_of(pod: &Pod, rows: &[&Row], own: Option<&Row>) -> LivePod {
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
    let containers: Vec<LiveContainer> = inits
        .iter()
        .filter(shown)
        .chain(&spec.containers)
        .map(|c| container_of(c, statuses.iter().find(|s| s.name == c.name).copied(), find(&c.name)))
        .collect();
    let waits = containers.iter().map(|c| c.state.as_str()).find(|s| *s != "Running" && *s != "Completed");
    let phase = status.phase.as_deref().unwrap_or("Unknown");
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let asked = requests(pod);
    let limit = |resource: &str| -> Option<i64> {
        let each = spec.containers.iter().map(|c| amount(resources::limit(c, resource), resource));
        each.sum::<Option<i64>>().filter(|sum| *sum > 0)
    };
    LivePod {
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
        used: sum(rows, own),
        requests: Bounds {
            cpu_milli: Some(asked.milli_cpu).filter(|n| *n > 0),
            memory_bytes: Some(asked.memory).filter(|n| *n > 0),
        },
        limits: Bounds { cpu_milli: limit("cpu"), memory_bytes: limit("memory") },
        restarts: statuses.iter().map(|s| s.restart_count).sum(),
        containers,
    }
}

fn amount(quantity: Option<windlass_kit::quantity::Quantity>, resource: &str) -> Option<i64> {
    quantity.map(|q| if resource == "cpu" { q.milli() } else { q.units() })
}

fn container_of(container: &Container, status: Option<&ContainerStatus>, row: Option<&Row>) -> LiveContainer {
    let state = status.and_then(|s| s.state.as_ref());
    let running = state.and_then(|s| s.running.as_ref());
    let waiting = state.and_then(|s| s.waiting.as_ref()).and_then(|w| w.reason.clone());
    let over = state.and_then(|s| s.terminated.as_ref());
    let before = status.and_then(|s| s.last_state.as_ref()?.terminated.as_ref());
    let last = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    LiveContainer {
        name: container.name.clone(),
        state: match (running, over) {
            (Some(_), _) => "Running".to_owned(),
            (None, Some(over)) => over.reason.clone().unwrap_or_else(|| "Terminated".to_owned()),
            (None, None) => waiting.unwrap_or_else(|| "Waiting".to_owned()),
        },
        used: row.map(|row| used(&row.sample, row.usage_nano_cores)),
        requests: Bounds {
            cpu_milli: amount(resources::amount(last, "cpu"), "cpu"),
            memory_bytes: amount(resources::amount(last, "memory"), "memory"),
        },
        limits: Bounds {
            cpu_milli: amount(resources::limit(container, "cpu"), "cpu"),
            memory_bytes: amount(resources::limit(container, "memory"), "memory"),
        },
        restarts: status.map_or(0, |s| s.restart_count),
        started: running.and_then(|r| r.started_at.as_ref()).map(|t| t.0),
        ended: over.or(before).and_then(|t| {
            Some(Ending {
                at: t.finished_at.as_ref()?.0,
                reason: t.reason.clone().unwrap_or_default(),
                code: t.exit_code,
            })
        }),
    }
}

/// All containers of a pod: CPU and memory of its own cgroup where it has one, which counts what runs between
/// containers too; the sandbox carries the traffic.
fn sum(rows: &[&Row], own: Option<&Row>) -> Option<Used> {
    let mut total = Used::default();
    let mut rates: Option<u64> = None;
    for row in rows {
        let one = used(&row.sample, row.usage_nano_cores);
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
        total.memory_bytes = own.sample.memory.working_set_bytes();
    }
    rows.first().map(|_| total)
}
