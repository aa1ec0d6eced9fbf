//! The kubelet's `/metrics/resource`, which metrics-server reads. It needs these names, exactly the labels container,
//! pod and namespace, and sample times; it drops a pod with a zero, so zeros are left out.

use std::cmp::Reverse;

use windlass_kit::prometheus::{Format, Kind, Text};

use super::{Pod, View, float, pods, seconds, unix_seconds};
use crate::{
    model::{Node, Row, Sample},
    rates::available,
};

type Value = fn(&Row) -> Option<f64>;

/// Renders the page.
#[must_use]
pub fn text(view: &View, format: Format) -> String {
    let snapshot = &view.snapshot;
    // Labels have no uid, and a page must not have two series of equal labels: of pods of one name the newest counts.
    let mut pods = pods(snapshot);
    pods.sort_by_key(|pod| (pod.namespace, pod.name, Reverse(pod.started_at)));
    pods.dedup_by_key(|pod| (pod.namespace, pod.name));
    let mut page = Text::of(format);
    container_families(&mut page, &pods);
    node_families(&mut page, &snapshot.node);
    pod_families(&mut page, &pods);
    page.family("resource_scrape_error", "[STABLE] 1 when some of this could not be read, else 0", Kind::Gauge);
    let failed = snapshot.node.stale || snapshot.rows.iter().any(|row| row.stale);
    page.sample("resource_scrape_error", &[], f64::from(u8::from(failed)));
    page.finish()
}

fn working_set(sample: &Sample) -> Option<u64> {
    sample.memory.map(|memory| memory.working_set_bytes())
}

fn container_families(page: &mut Text, pods: &[Pod<'_>]) {
    let live = |row: &&Row| row.sample.cpu.usage_ns > 0 && working_set(&row.sample).is_some_and(|bytes| bytes > 0);
    let each_container = |page: &mut Text, name: &str, help: &str, kind: Kind, timed: bool, value: Value| {
        page.family(name, help, kind);
        for pod in pods {
            for row in pod.containers.iter().copied().filter(live) {
                if let Some(value) = value(row) {
                    let at = timed.then(|| row.sample.moment.wall.as_millisecond());
                    let labels = [
                        ("container", row.target.container_name.as_str()),
                        ("namespace", pod.namespace),
                        ("pod", pod.name),
                    ];
                    page.sample_at(name, &labels, value, at);
                }
            }
        }
    };
    each_container(
        page,
        "container_cpu_usage_seconds_total",
        "[STABLE] CPU time that the container has used, in seconds",
        Kind::Counter,
        true,
        |row| Some(seconds(row.sample.cpu.usage_ns)),
    );
    each_container(
        page,
        "container_memory_working_set_bytes",
        "[STABLE] Memory of the container that cannot be freed easily, in bytes",
        Kind::Gauge,
        true,
        |row| working_set(&row.sample).map(float),
    );
    each_container(
        page,
        "container_start_time_seconds",
        "[STABLE] When the container started, in seconds since 1970",
        Kind::Gauge,
        false,
        |row| Some(unix_seconds(row.target.started_at)).filter(|at| *at > 0.0),
    );
    each_container(
        page,
        "container_swap_limit_bytes",
        "[ALPHA] Swap that the container may use, in bytes; absent when unlimited",
        Kind::Gauge,
        true,
        |row| {
            let used = row.sample.memory?.swap_bytes?;
            available(row.limits.swap_bytes, used).map(|left| float(left.saturating_add(used)))
        },
    );
    each_container(
        page,
        "container_swap_usage_bytes",
        "[ALPHA] Swap that the container uses, in bytes",
        Kind::Gauge,
        true,
        |row| row.sample.memory?.swap_bytes.map(float),
    );
}

fn node_families(page: &mut Text, node: &Node) {
    let at = Some(node.sample.moment.wall.as_millisecond());
    page.family("node_cpu_usage_seconds_total", "[STABLE] CPU time that the node has used, in seconds", Kind::Counter);
    page.sample_at("node_cpu_usage_seconds_total", &[], seconds(node.sample.cpu.usage_ns), at);
    page.family(
        "node_memory_working_set_bytes",
        "[STABLE] Memory of the node that cannot be freed easily, in bytes",
        Kind::Gauge,
    );
    if let Some(bytes) = working_set(&node.sample) {
        page.sample_at("node_memory_working_set_bytes", &[], float(bytes), at);
    }
    page.family("node_swap_usage_bytes", "[ALPHA] Swap that the node uses, in bytes", Kind::Gauge);
    if let Some(bytes) = node.sample.memory.and_then(|memory| memory.swap_bytes) {
        page.sample_at("node_swap_usage_bytes", &[], float(bytes), at);
    }
}

fn pod_families(page: &mut Text, pods: &[Pod<'_>]) {
    let each_pod = |page: &mut Text, name: &str, help: &str, kind: Kind, value: fn(&super::PodTotal) -> Option<f64>| {
        page.family(name, help, kind);
        for (pod, total) in pods.iter().filter_map(|pod: &Pod<'_>| Some((pod, pod.total()?))) {
            let labels = [("namespace", pod.namespace), ("pod", pod.name)];
            if let Some(value) = value(&total) {
                page.sample_at(name, &labels, value, Some(total.at.as_millisecond()));
            }
        }
    };
    each_pod(
        page,
        "pod_cpu_usage_seconds_total",
        "[STABLE] CPU time that the pod has used, in seconds",
        Kind::Counter,
        |total| Some(seconds(total.cpu.usage_ns)),
    );
    each_pod(
        page,
        "pod_memory_working_set_bytes",
        "[STABLE] Memory of the pod that cannot be freed easily, in bytes",
        Kind::Gauge,
        |total| total.memory.map(|memory| float(memory.working_set_bytes())),
    );
    each_pod(page, "pod_swap_usage_bytes", "[ALPHA] Swap that the pod uses, in bytes", Kind::Gauge, |total| {
        total.memory?.swap_bytes.map(float)
    });
}
