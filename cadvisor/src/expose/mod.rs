//! The formats of the kubelet and cAdvisor. Pure: a [`View`] in, serializable structs or text out. May import the
//! model, `rates` and `history`.

pub mod prom_cadvisor;
pub(crate) mod prom_kubelet;
pub mod prom_resource;
pub(crate) mod rest;
pub mod summary;

use std::{collections::BTreeMap, sync::Arc};

use crate::model::{Cpu, Memory, Row, Snapshot, Storage};

#[cfg(test)]
pub(crate) mod tests;

/// The input of every page.
#[derive(Debug, Clone)]
pub struct View {
    /// Name of the node.
    pub node_name: String,
    /// The newest snapshot.
    pub snapshot: Arc<Snapshot>,
    /// The newest disk usage.
    pub storage: Arc<Storage>,
    /// Bytes of images, if known.
    pub image_bytes: Option<u64>,
    /// The memory limit of all pods together, if there is one.
    pub pods_memory_bytes: Option<u64>,
}

/// The containers of one pod.
#[derive(Debug)]
struct Pod<'a> {
    uid: &'a str,
    name: &'a str,
    namespace: &'a str,
    started_at: jiff::Timestamp,
    sandbox: Option<&'a Row>,
    containers: Vec<&'a Row>,
    own: Option<&'a Row>,
}

/// CPU and memory of a pod: its own cgroup's, or the sum of its containers (sandbox included).
#[derive(Debug, Clone, Copy)]
struct PodTotal {
    at: jiff::Timestamp,
    cpu: Cpu,
    memory: Option<Memory>,
    usage_nano_cores: Option<u64>,
    processes: Option<u64>,
    limit_bytes: Option<u64>,
}

impl Pod<'_> {
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sandbox.into_iter().chain(self.containers.iter().copied())
    }

    fn total(&self) -> Option<PodTotal> {
        let first = self.rows().next()?;
        let mut total = PodTotal {
            at: first.sample.moment.wall,
            cpu: Cpu::default(),
            memory: None,
            usage_nano_cores: None,
            processes: None,
            limit_bytes: None,
        };
        for row in self.rows() {
            total.at = total.at.max(row.sample.moment.wall);
            let processes = [total.processes, row.sample.pids.processes];
            total.processes = processes.into_iter().flatten().reduce(u64::saturating_add);
            total.cpu.usage_ns = total.cpu.usage_ns.saturating_add(row.sample.cpu.usage_ns);
            if let Some(memory) = &row.sample.memory {
                total.memory.get_or_insert_default().add(memory);
            }
            if let Some(rate) = row.usage_nano_cores {
                total.usage_nano_cores = Some(total.usage_nano_cores.unwrap_or(0).saturating_add(rate));
            }
        }
        // The sandbox has no limit; the pod has one when all its other containers have.
        total.limit_bytes =
            self.containers.iter().map(|row| row.limits.memory_bytes).sum::<Option<u64>>().filter(|limit| *limit > 0);
        if let Some(own) = self.own {
            total.at = own.sample.moment.wall;
            total.cpu = own.sample.cpu;
            total.memory = own.sample.memory;
            total.usage_nano_cores = own.usage_nano_cores;
            total.limit_bytes = own.limits.memory_bytes.or(total.limit_bytes);
        }
        Some(total)
    }
}

/// Groups rows by pod, in order of namespace, name and uid; containers outside pods are left out.
fn pods(snapshot: &Snapshot) -> Vec<Pod<'_>> {
    let mut pods: BTreeMap<(&str, &str, &str), Pod<'_>> = BTreeMap::new();
    for row in snapshot.rows.iter().map(Arc::as_ref).filter(|row| !row.target.pod_uid.is_empty()) {
        let target = &row.target;
        let pod = pods.entry((&target.pod_namespace, &target.pod_name, &target.pod_uid)).or_insert_with(|| Pod {
            uid: &target.pod_uid,
            name: &target.pod_name,
            namespace: &target.pod_namespace,
            started_at: target.pod_started_at,
            sandbox: None,
            containers: Vec::new(),
            own: snapshot.pods.get(target.pod_uid.as_str()).map(Arc::as_ref),
        });
        if !target.is_sandbox() {
            // Of two instances of one container, the newer counts.
            match pod.containers.iter_mut().find(|known| known.target.container_name == target.container_name) {
                Some(known) if known.target.started_at < target.started_at => *known = row,
                Some(_) => {}
                None => pod.containers.push(row),
            }
        } else if pod.sandbox.is_none_or(|known| known.target.started_at < target.started_at) {
            pod.sandbox = Some(row);
        }
    }
    pods.into_values().collect()
}

#[allow(clippy::cast_precision_loss)]
fn float(value: u64) -> f64 {
    value as f64
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

#[allow(clippy::cast_precision_loss)]
fn unix_seconds(at: jiff::Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1e3
}
