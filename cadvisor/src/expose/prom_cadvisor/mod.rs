//! The kubelet's `/metrics/cadvisor`, with the labels that clusters on containerd have: container, id, image, name,
//! namespace, pod on every series, empty where they have no meaning.

mod families;
mod slow_families;

use std::sync::Arc;

use jiff::Timestamp;
use windlass_kit::prometheus::{Format, Kind, Labels, Text};

use self::families::{CONTAINER_METRICS, DEVICE_METRICS, DISK_METRICS, INTERFACE_METRICS, SAMPLE_METRICS};
use super::{View, float, seconds};
use crate::model::{BlockDevice, ContainerSize, Interface, Row, Sample, SystemCgroup, sum_of_sizes};

/// What a series is of: a container, a pod's own cgroup, or the machine.
struct MetricSource<'a> {
    labels: Labels,
    sample: &'a Sample,
    row: Option<&'a Row>,
    container_id: Option<&'a str>,
    network: &'a [Interface],
    is_machine: bool,
}

fn sources<'a>(view: &'a View) -> Vec<MetricSource<'a>> {
    let snapshot = &view.snapshot;
    let labels = |container, id, image, name, namespace, pod| {
        Labels::of(&[
            ("container", container),
            ("id", id),
            ("image", image),
            ("name", name),
            ("namespace", namespace),
            ("pod", pod),
        ])
    };
    let machine = MetricSource {
        labels: labels("", "/", "", "", "", ""),
        sample: &snapshot.node.sample,
        row: None,
        container_id: None,
        network: &snapshot.node.sample.network,
        is_machine: true,
    };
    let of_row = |row| {
        let row: &Row = row;
        let s = &row.target;
        MetricSource {
            labels: labels(&s.container_name, &row.cgroup, &s.image, &s.name, &s.pod_namespace, &s.pod_name),
            sample: &row.sample,
            row: Some(row),
            container_id: Some(s.container_id.as_str()).filter(|id| !id.is_empty()),
            // Traffic in the node's network namespace is reported with the machine.
            network: if row.host_network { &[] } else { &row.sample.network },
            is_machine: false,
        }
    };
    // As the cgroup roots that a kubelet passes to cAdvisor.
    let of_system = |own: &'a Arc<SystemCgroup>| MetricSource {
        labels: labels("", &own.path, "", "", "", ""),
        sample: &own.sample,
        row: None,
        container_id: None,
        network: &[],
        is_machine: false,
    };
    std::iter::once(machine)
        .chain(snapshot.all_pods.iter().chain(snapshot.runtime_cgroups.iter()).map(of_system))
        .chain(snapshot.pods.values().map(|row| of_row(row)))
        .chain(snapshot.rows.iter().map(|row| of_row(row)))
        .collect()
}

fn put(page: &mut Text, name: &str, source: &MetricSource<'_>, more: &[(&str, &str)], value: f64, at: Option<i64>) {
    page.sample_of(name, &source.labels, more, value, at);
}

/// Renders the page; `now` is the time of the scrape.
#[must_use]
pub fn text(view: &View, now: Timestamp, format: Format) -> String {
    let sources = sources(view);
    let snapshot = &view.snapshot;
    let machine = &snapshot.machine;
    let mut whole = Text::of(format);
    let page = &mut whole;
    let time = |s: &MetricSource<'_>| Some(s.sample.moment.wall.as_millisecond());

    page.family("cadvisor_version_info", "Versions of the kernel, the distribution and this program", Kind::Gauge);
    let versions = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", env!("CARGO_PKG_VERSION")),
        ("dockerVersion", ""),
        ("kernelVersion", machine.kernel_version.as_str()),
        ("osVersion", machine.os_version.as_str()),
    ];
    page.sample("cadvisor_version_info", &versions, 1.0);

    page.family("container_last_seen", "When it was last seen, in seconds since 1970", Kind::Gauge);
    for source in &sources {
        #[allow(clippy::cast_precision_loss)]
        put(page, "container_last_seen", source, &[], now.as_second() as f64, Some(now.as_millisecond()));
    }
    page.family("container_cpu_usage_seconds_total", "CPU time used, in seconds", Kind::Counter);
    for source in &sources {
        let value = seconds(source.sample.cpu.usage_ns);
        put(page, "container_cpu_usage_seconds_total", source, &[("cpu", "total")], value, time(source));
    }
    for (name, help, kind, value) in SAMPLE_METRICS {
        page.family(name, help, *kind);
        for source in &sources {
            if let Some(value) = value(source.sample) {
                put(page, name, source, &[], value, time(source));
            }
        }
    }
    page.family("container_memory_failures_total", "Page faults so far", Kind::Counter);
    for source in &sources {
        let Some(memory) = &source.sample.memory else { continue };
        for (kind, value) in [("pgfault", memory.faults), ("pgmajfault", memory.major_faults)] {
            for scope in ["container", "hierarchy"] {
                let more = [("failure_type", kind), ("scope", scope)];
                put(page, "container_memory_failures_total", source, &more, float(value), time(source));
            }
        }
    }
    for (name, help, kind, timed, value) in CONTAINER_METRICS {
        page.family(name, help, *kind);
        for source in &sources {
            if let Some(value) = source.row.and_then(value) {
                put(page, name, source, &[], value, time(source).filter(|_| *timed));
            }
        }
    }
    page.family("container_ulimits_soft", "Soft limits of the first process", Kind::Gauge);
    for source in &sources {
        if let Some(row) = source.row.filter(|_| source.container_id.is_some()) {
            let value = row.limits.open_files.map_or(-1.0, float);
            put(page, "container_ulimits_soft", source, &[("ulimit", "max_open_files")], value, time(source));
        }
    }
    for (name, help, value) in INTERFACE_METRICS {
        page.family(name, help, Kind::Counter);
        for source in &sources {
            for interface in source.network {
                let more = [("interface", interface.name.as_str())];
                put(page, name, source, &more, float(value(interface)), time(source));
            }
        }
    }
    slow_families::render(&sources, page);
    devices(view, &sources, page);
    disks(&snapshot.node.disks, &sources, page);
    filesystems(view, &sources, page);
    machine_families(view, page);
    whole.finish()
}

fn devices(view: &View, sources: &[MetricSource<'_>], page: &mut Text) {
    let device = |d: &BlockDevice| view.snapshot.devices.get(&(d.major, d.minor)).map_or("", String::as_str);
    for (name, help, value) in DEVICE_METRICS {
        page.family(name, help, Kind::Counter);
        for source in sources {
            // Devices without a name share one series: Prometheus refuses duplicate label sets.
            let mut nameless = None;
            for found in &source.sample.block {
                let label = device(found);
                if label.is_empty() {
                    nameless = Some(nameless.unwrap_or(0_u64).saturating_add(value(found)));
                    continue;
                }
                let at = Some(source.sample.moment.wall.as_millisecond());
                put(page, name, source, &[("device", label)], float(value(found)), at);
            }
            if let Some(value) = nameless {
                put(
                    page,
                    name,
                    source,
                    &[("device", "")],
                    float(value),
                    Some(source.sample.moment.wall.as_millisecond()),
                );
            }
        }
    }
    let name = "container_blkio_device_usage_total";
    page.family(name, "Bytes moved by the device, per operation", Kind::Counter);
    for source in sources {
        for found in &source.sample.block {
            let (major, minor) = (found.major.to_string(), found.minor.to_string());
            for (operation, value) in [("Read", found.read_bytes), ("Write", found.write_bytes)] {
                let more = [
                    ("device", device(found)),
                    ("major", major.as_str()),
                    ("minor", minor.as_str()),
                    ("operation", operation),
                ];
                put(page, name, source, &more, float(value), Some(source.sample.moment.wall.as_millisecond()));
            }
        }
    }
}

fn disks(disks: &[crate::model::Disk], sources: &[MetricSource<'_>], page: &mut Text) {
    let Some(machine) = sources.iter().find(|source| source.is_machine) else { return };
    for (name, help, kind, value) in DISK_METRICS {
        page.family(name, help, *kind);
        for disk in disks {
            let more = [("device", disk.name.as_str())];
            put(page, name, machine, &more, value(disk), Some(machine.sample.moment.wall.as_millisecond()));
        }
    }
}

fn filesystems(view: &View, sources: &[MetricSource<'_>], page: &mut Text) {
    let Some(images) = view.storage.images else { return };
    let more = [("device", view.storage.images_device.as_str())];
    let size_of = |s: &MetricSource<'_>| s.container_id.and_then(|id| view.storage.containers.get(id));
    // A container's value of a family: that of its file system, or its own if its size is known.
    enum Part {
        OfFileSystem,
        Own(fn(&ContainerSize) -> Option<u64>),
    }
    let families = [
        ("container_fs_inodes_free", "Free inodes of the file system", images.inodes_free, Part::OfFileSystem),
        (
            "container_fs_inodes_total",
            "Inodes: all of the machine's file system, used ones of a container",
            images.inodes,
            Part::Own(|s| s.rootfs?.inodes),
        ),
        ("container_fs_limit_bytes", "Size of the file system, in bytes", images.capacity_bytes, Part::OfFileSystem),
        (
            "container_fs_usage_bytes",
            "Bytes used: writable layer and logs of a container",
            images.used_bytes,
            // Without the layer it is not the usage.
            Part::Own(|s| sum_of_sizes([Some(s.rootfs?), s.logs]).map(|sum| sum.bytes)),
        ),
    ];
    for (name, help, whole, part) in families {
        page.family(name, help, Kind::Gauge);
        for source in sources {
            // Each value with the time of its scan: Prometheus refuses different values of one time.
            let (at, value) = match (size_of(source), &part) {
                _ if source.is_machine => (images.at, Some(whole)),
                (Some(_), Part::OfFileSystem) => (images.at, Some(whole)),
                (Some(size), Part::Own(of)) => (size.at, of(size)),
                (None, _) => continue,
            };
            if let Some(value) = value {
                put(page, name, source, &more, float(value), Some(at.as_millisecond()));
            }
        }
    }
}

fn machine_families(view: &View, text: &mut Text) {
    let snapshot = &view.snapshot;
    let machine = &snapshot.machine;
    text.family("container_scrape_error", "1 when a container could not be read, else 0", Kind::Gauge);
    text.sample("container_scrape_error", &[], f64::from(u8::from(snapshot.rows.iter().any(|row| row.stale))));
    let labels = [
        ("boot_id", machine.boot_id.as_str()),
        ("machine_id", machine.machine_id.as_str()),
        ("system_uuid", machine.system_uuid.as_str()),
    ];
    for (name, help, value) in [
        ("machine_cpu_cores", "Logical processors", machine.cores),
        ("machine_cpu_physical_cores", "Physical cores", machine.physical_cores),
        ("machine_cpu_sockets", "Processor packages", machine.sockets),
        ("machine_memory_bytes", "Main memory, in bytes", machine.memory_bytes),
        ("machine_swap_bytes", "Swap space, in bytes", machine.swap_bytes),
    ] {
        text.family(name, help, Kind::Gauge);
        text.sample(name, &labels, float(value));
    }
    let at_node = |id: u64| {
        let mut all: Vec<(&str, String)> = labels.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        all.push(("node_id", id.to_string()));
        all
    };
    let put = |text: &mut Text, name: &str, labels: &[(&str, String)], value: u64| {
        let labels: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (*key, value.as_str())).collect();
        text.sample(name, &labels, float(value));
    };
    text.family("machine_node_memory_capacity_bytes", "Memory of a NUMA node, in bytes", Kind::Gauge);
    for node in &machine.nodes {
        put(text, "machine_node_memory_capacity_bytes", &at_node(node.id), node.memory_bytes);
    }
    text.family("machine_thread_siblings_count", "Logical processors of a core", Kind::Gauge);
    for node in &machine.nodes {
        for (core, _, threads) in &node.cores {
            for thread in threads {
                let mut labels = at_node(node.id);
                labels.extend([("core_id", core.to_string()), ("thread_id", thread.to_string())]);
                put(text, "machine_thread_siblings_count", &labels, threads.len() as u64);
            }
        }
    }
    text.family("machine_scrape_error", "1 when the machine could not be read, else 0", Kind::Gauge);
    text.sample("machine_scrape_error", &[], f64::from(u8::from(machine.memory_bytes == 0 || snapshot.node.stale)));
}
