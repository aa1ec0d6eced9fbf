//! A snapshot as text for a terminal or a script. Pure.

use super::{
    super::table::{age, bytes, columns, cores},
    model::{Line, Machine, Snapshot, View},
};

const HEADS: [&str; 11] =
    ["NAMESPACE", "POD", "CONTAINER", "STATE", "CPU", "MEMORY", "RECEIVED", "SENT", "READ", "WRITTEN", "RESTARTS"];

pub(super) fn text(snapshot: &Snapshot, view: View) -> String {
    let mut out = node(&snapshot.node).join("\n");
    if view == View::Node {
        return out;
    }
    let mut rows = vec![HEADS.map(str::to_owned)];
    rows.extend(snapshot.items.iter().map(cells));
    if view == View::Pods {
        let without: Vec<[String; 10]> = rows.iter().map(without_container).collect();
        out.push_str(&format!("\n\n{}", columns(&without)));
    } else {
        out.push_str(&format!("\n\n{}", columns(&rows)));
    }
    if snapshot.items.is_empty() {
        out.push_str("\nnothing runs that fits");
    }
    out
}

fn without_container(row: &[String; 11]) -> [String; 10] {
    std::array::from_fn(|i| row[if i < 2 { i } else { i + 1 }].clone())
}

/// A line for each kind of thing that the machine has.
pub(super) fn node(node: &Machine) -> Vec<String> {
    let cpu = node.cpu_nano_cores.map_or_else(unknown, cores);
    let mut lines = vec![
        format!("node {}: {}", node.name, node.system),
        format!("cpu {cpu} of {} cores", node.cores),
        format!("memory {} of {}", bytes(node.memory_bytes), bytes(node.memory_capacity_bytes)),
    ];
    for (name, disk) in [("disk", node.disk), ("images", node.images)] {
        lines.extend(disk.map(|d| format!("{name} {} of {}", bytes(d.used_bytes), bytes(d.capacity_bytes))));
    }
    let rates = &node.rates;
    lines.push(format!("network {} in, {} out", rate(rates.rx_bytes_per_second), rate(rates.tx_bytes_per_second)));
    lines.push(format!(
        "disks {} read, {} written",
        rate(rates.read_bytes_per_second),
        rate(rates.write_bytes_per_second)
    ));
    lines
}

fn unknown() -> String {
    "-".to_owned()
}

fn rate(bytes_per_second: Option<u64>) -> String {
    bytes_per_second.map_or_else(unknown, |n| format!("{}/s", bytes(n)))
}

/// The cells of a line, in the order of the heads.
pub(super) fn cells(line: &Line) -> [String; 11] {
    let of = |used: Option<String>, limit: Option<String>| match (used, limit) {
        (Some(used), Some(limit)) => format!("{used} / {limit}"),
        (Some(used), None) => used,
        (None, _) => unknown(),
    };
    let milli = |m: i64| cores(u64::try_from(m).unwrap_or(0).saturating_mul(1_000_000));
    let rates = &line.rates;
    let restarts = match (line.restarts, line.age_seconds) {
        (restarts, Some(seconds)) => format!("{restarts}, up {}", age(seconds)),
        (restarts, None) => restarts.to_string(),
    };
    [
        line.namespace.clone(),
        line.pod.clone(),
        line.container.clone().unwrap_or_default(),
        line.state.clone(),
        of(line.cpu_nano_cores.map(cores), line.cpu_limit_milli.map(milli)),
        of(line.memory_bytes.map(bytes), line.memory_limit_bytes.and_then(|b| u64::try_from(b).ok()).map(bytes)),
        rate(rates.rx_bytes_per_second),
        rate(rates.tx_bytes_per_second),
        rate(rates.read_bytes_per_second),
        rate(rates.write_bytes_per_second),
        restarts,
    ]
}

pub(super) fn heads() -> [&'static str; 11] {
    HEADS
}
