//! Computes lines from two usage samples: rates, filter and order. Pure.

use std::cmp::Ordering;

use jiff::Timestamp;
use serde::Serialize;
use windlass_agent::dashboard::{DiskUsage, NodeUsage, PodUsage, UsageSample};

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum View {
    /// A line for each pod
    Pods,
    /// A line for each container
    Containers,
    /// The machine alone
    Node,
}

/// What lines are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// The busiest first
    Cpu,
    /// The largest first
    Memory,
    /// The most traffic first
    Network,
    /// The most read and written first
    Disk,
    /// The most often restarted first
    Restarts,
    /// By namespace and name
    Name,
}

/// The filter and order of lines.
#[derive(Debug, Clone)]
pub(super) struct Query {
    pub(super) view: View,
    pub(super) sort: Sort,
    pub(super) reverse: bool,
    pub(super) namespace: Option<String>,
    /// Part of `namespace/pod/container state`; empty for all.
    pub(super) filter: String,
}

/// Bytes per second since the previous sample; `None` without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rates {
    pub(super) rx_bytes_per_second: Option<u64>,
    pub(super) tx_bytes_per_second: Option<u64>,
    pub(super) read_bytes_per_second: Option<u64>,
    pub(super) write_bytes_per_second: Option<u64>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) system: String,
    pub(super) cores: u64,
    pub(super) cpu_nano_cores: Option<u64>,
    pub(super) memory_bytes: u64,
    pub(super) memory_capacity_bytes: u64,
    pub(super) disk: Option<DiskUsage>,
    pub(super) images: Option<DiskUsage>,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

/// A pod or a container.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) namespace: String,
    pub(super) pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<String>,
    pub(super) state: String,
    pub(super) cpu_nano_cores: Option<u64>,
    pub(super) cpu_limit_milli: Option<i64>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) memory_limit_bytes: Option<i64>,
    #[serde(flatten)]
    pub(super) rates: Rates,
    pub(super) restarts: i32,
    pub(super) age_seconds: Option<i64>,
}

/// The result of a refresh.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Snapshot {
    pub(super) at: Timestamp,
    pub(super) node: Machine,
    pub(super) items: Vec<Line>,
}

/// The snapshot of `now`, with rates since `before`.
pub(super) fn snapshot(before: Option<&NodeUsage>, now: &NodeUsage, query: &Query) -> Snapshot {
    let node = &now.node;
    let mut items: Vec<Line> = now.pods.iter().flat_map(|pod| lines(before, now, pod, query.view)).collect();
    let filter = query.filter.to_lowercase();
    items.retain(|line| {
        let container = line.container.as_deref().unwrap_or("");
        let text = format!("{}/{}/{container} {}", line.namespace, line.pod, line.state).to_lowercase();
        text.contains(&filter) && query.namespace.as_ref().is_none_or(|n| *n == line.namespace)
    });
    items.sort_by(|a, b| {
        let order = compare(a, b, query.sort);
        if query.reverse { order.reverse() } else { order }
    });
    Snapshot {
        at: now.at,
        node: Machine {
            name: node.name.clone(),
            system: node.system.clone(),
            cores: node.cores,
            cpu_nano_cores: node.used.cpu_nano,
            memory_bytes: node.used.memory_bytes,
            memory_capacity_bytes: node.memory_bytes,
            disk: node.disk,
            images: node.images,
            rates: rates(before.map(|b| &b.node.used), Some(&node.used)),
        },
        items,
    }
}

fn lines(before: Option<&NodeUsage>, now: &NodeUsage, pod: &PodUsage, view: View) -> Vec<Line> {
    let earlier = before.and_then(|b| b.pods.iter().find(|p| p.uid == pod.uid));
    let age = |since: Option<Timestamp>| since.map(|t| now.at.as_second() - t.as_second());
    let line = Line {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        container: None,
        state: pod.state.clone(),
        cpu_nano_cores: pod.used.and_then(|u| u.cpu_nano),
        cpu_limit_milli: pod.limits.cpu_milli,
        memory_bytes: pod.used.map(|u| u.memory_bytes),
        memory_limit_bytes: pod.limits.memory_bytes,
        rates: rates(earlier.and_then(|p| p.used.as_ref()), pod.used.as_ref()),
        restarts: pod.restarts,
        age_seconds: age(pod.started),
    };
    match view {
        View::Node => Vec::new(),
        View::Pods => {
            // The node's own traffic would show at each such pod.
            let rates = if pod.host_network {
                Rates { rx_bytes_per_second: None, tx_bytes_per_second: None, ..line.rates }
            } else {
                line.rates
            };
            vec![Line { rates, ..line }]
        }
        View::Containers => pod
            .containers
            .iter()
            .map(|c| {
                let earlier =
                    earlier.and_then(|p| p.containers.iter().find(|e| e.name == c.name && e.started == c.started));
                let rates = rates(earlier.and_then(|e| e.used.as_ref()), c.used.as_ref());
                Line {
                    container: Some(c.name.clone()),
                    state: c.state.clone(),
                    cpu_nano_cores: c.used.and_then(|u| u.cpu_nano),
                    cpu_limit_milli: c.limits.cpu_milli,
                    memory_bytes: c.used.map(|u| u.memory_bytes),
                    memory_limit_bytes: c.limits.memory_bytes,
                    // Containers share the pod's network.
                    rates: Rates { rx_bytes_per_second: None, tx_bytes_per_second: None, ..rates },
                    restarts: c.restarts,
                    age_seconds: age(c.started),
                    ..line.clone()
                }
            })
            .collect(),
    }
}

fn rates(before: Option<&UsageSample>, now: Option<&UsageSample>) -> Rates {
    let (Some(before), Some(now)) = (before, now) else { return Rates::default() };
    let passed = u64::try_from(now.at_ms - before.at_ms).unwrap_or(0);
    let rate = |of: fn(&UsageSample) -> u64| of(now).checked_sub(of(before))?.saturating_mul(1000).checked_div(passed);
    Rates {
        rx_bytes_per_second: rate(|u| u.rx_bytes),
        tx_bytes_per_second: rate(|u| u.tx_bytes),
        read_bytes_per_second: rate(|u| u.read_bytes),
        write_bytes_per_second: rate(|u| u.write_bytes),
    }
}

fn compare(a: &Line, b: &Line, sort: Sort) -> Ordering {
    let name = (&a.namespace, &a.pod, &a.container).cmp(&(&b.namespace, &b.pod, &b.container));
    let both = |x: Option<u64>, y: Option<u64>| x.into_iter().chain(y).reduce(u64::saturating_add);
    let key = |line: &Line| match sort {
        Sort::Cpu => line.cpu_nano_cores,
        Sort::Memory => line.memory_bytes,
        Sort::Network => both(line.rates.rx_bytes_per_second, line.rates.tx_bytes_per_second),
        Sort::Disk => both(line.rates.read_bytes_per_second, line.rates.write_bytes_per_second),
        Sort::Restarts => u64::try_from(line.restarts).ok(),
        Sort::Name => None,
    };
    key(b).cmp(&key(a)).then(name)
}
