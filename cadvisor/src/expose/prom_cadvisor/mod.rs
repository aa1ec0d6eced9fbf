//! The kubelet's `/metrics/cadvisor`, with the labels that clusters on containerd have: container, id, image, name,
//! namespace, pod on every series, empty where they have no meaning.

mod extra;
mod families;

use jiff::Timestamp;
use windlass_kit::expo::{Format, Kind, Labels, Text};

use self::families::{OF_DEVICE, OF_DISK, OF_INTERFACE, OF_ROW, PLAIN};
use super::{View, float, seconds};
use crate::model::{BlockDevice, Interface, Row, Sample};

/// One line of the page's table: a container, a pod's own cgroup, or the machine.
struct Subject<'a> {
    labels: Labels,
    sample: &'a Sample,
    row: Option<&'a Row>,
    container_id: Option<&'a str>,
    network: &'a [Interface],
}

fn subjects(view: &View) -> Vec<Subject<'_>> {
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
    let machine = Subject {
        labels: labels("", "/", "", "", "", ""),
        sample: &snapshot.node.sample,
        row: None,
        container_id: None,
        network: &snapshot.node.sample.network,
    };
    let of_row = |row| {
        let row: &Row = row;
        let s = &row.subject;
        Subject {
            labels: labels(&s.container_name, &row.cgroup, &s.image, &s.name, &s.pod_namespace, &s.pod_name),
            sample: &row.sample,
            row: Some(row),
            container_id: Some(s.container_id.as_str()).filter(|id| !id.is_empty()),
            // Traffic in the node's own namespace is told once, with the machine.
            network: if row.host_network { &[] } else { &row.sample.network },
        }
    };
    std::iter::once(machine)
        .chain(snapshot.pods.values().map(|row| of_row(row)))
        .chain(snapshot.rows.iter().map(|row| of_row(row)))
        .collect()
}

fn put(page: &mut Text, name: &str, subject: &Subject<'_>, more: &[(&str, &str)], value: f64, at: Option<i64>) {
    page.sample_of(name, &subject.labels, more, value, at);
}

/// The page; `now` is the time of the scrape.
#[must_use]
pub fn text(view: &View, now: Timestamp, format: Format) -> String {
    let subjects = subjects(view);
    let snapshot = &view.snapshot;
    let machine = &snapshot.machine;
    let mut whole = Text::of(format);
    let page = &mut whole;
    let time = |s: &Subject<'_>| Some(s.sample.at.as_millisecond());

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
    for subject in &subjects {
        #[allow(clippy::cast_precision_loss)]
        put(page, "container_last_seen", subject, &[], now.as_second() as f64, Some(now.as_millisecond()));
    }
    page.family("container_cpu_usage_seconds_total", "CPU time used, in seconds", Kind::Counter);
    for subject in &subjects {
        let value = seconds(subject.sample.cpu.usage_ns);
        put(page, "container_cpu_usage_seconds_total", subject, &[("cpu", "total")], value, time(subject));
    }
    for (name, help, kind, value) in PLAIN {
        page.family(name, help, *kind);
        for subject in &subjects {
            if let Some(value) = value(subject.sample) {
                put(page, name, subject, &[], value, time(subject));
            }
        }
    }
    page.family("container_memory_failures_total", "Page faults so far", Kind::Counter);
    for subject in &subjects {
        let memory = &subject.sample.memory;
        for (kind, value) in [("pgfault", memory.faults), ("pgmajfault", memory.major_faults)] {
            for scope in ["container", "hierarchy"] {
                let more = [("failure_type", kind), ("scope", scope)];
                put(page, "container_memory_failures_total", subject, &more, float(value), time(subject));
            }
        }
    }
    for (name, help, kind, timed, value) in OF_ROW {
        page.family(name, help, *kind);
        for subject in &subjects {
            if let Some(value) = subject.row.and_then(value) {
                put(page, name, subject, &[], value, time(subject).filter(|_| *timed));
            }
        }
    }
    page.family("container_ulimits_soft", "Soft limits of the first process", Kind::Gauge);
    for subject in &subjects {
        if let Some(row) = subject.row.filter(|_| subject.container_id.is_some()) {
            let value = row.limits.open_files.map_or(-1.0, float);
            put(page, "container_ulimits_soft", subject, &[("ulimit", "max_open_files")], value, time(subject));
        }
    }
    for (name, help, value) in OF_INTERFACE {
        page.family(name, help, Kind::Counter);
        for subject in &subjects {
            for interface in subject.network {
                let more = [("interface", interface.name.as_str())];
                put(page, name, subject, &more, float(value(interface)), time(subject));
            }
        }
    }
    extra::families(&subjects, page);
    devices(view, &subjects, page);
    disks(&snapshot.node.disks, &subjects, page);
    filesystems(view, &subjects, page);
    machine_families(view, page);
    whole.finish()
}

fn devices(view: &View, subjects: &[Subject<'_>], page: &mut Text) {
    let device = |d: &BlockDevice| view.snapshot.devices.get(&(d.major, d.minor)).map_or("", String::as_str);
    for (name, help, value) in OF_DEVICE {
        page.family(name, help, Kind::Counter);
        for subject in subjects {
            // Devices without a name share one series: equal label sets would be refused by Prometheus.
            let mut nameless = None;
            for found in &subject.sample.block {
                let label = device(found);
                if label.is_empty() {
                    nameless = Some(nameless.unwrap_or(0_u64).saturating_add(value(found)));
                    continue;
                }
                let at = Some(subject.sample.at.as_millisecond());
                put(page, name, subject, &[("device", label)], float(value(found)), at);
            }
            if let Some(value) = nameless {
                put(page, name, subject, &[("device", "")], float(value), Some(subject.sample.at.as_millisecond()));
            }
        }
    }
    let name = "container_blkio_device_usage_total";
    page.family(name, "Bytes moved by the device, per operation", Kind::Counter);
    for subject in subjects {
        for found in &subject.sample.block {
            let (major, minor) = (found.major.to_string(), found.minor.to_string());
            for (operation, value) in [("Read", found.read_bytes), ("Write", found.write_bytes)] {
                let more = [
                    ("device", device(found)),
                    ("major", major.as_str()),
                    ("minor", minor.as_str()),
                    ("operation", operation),
                ];
                put(page, name, subject, &more, float(value), Some(subject.sample.at.as_millisecond()));
            }
        }
    }
}

fn disks(disks: &[crate::model::Disk], subjects: &[Subject<'_>], page: &mut Text) {
    let Some(machine) = subjects.iter().find(|subject| subject.row.is_none()) else { return };
    for (name, help, kind, value) in OF_DISK {
        page.family(name, help, *kind);
        for disk in disks {
            let more = [("device", disk.name.as_str())];
            put(page, name, machine, &more, value(disk), Some(machine.sample.at.as_millisecond()));
        }
    }
}

fn filesystems(view: &View, subjects: &[Subject<'_>], page: &mut Text) {
    let Some(images) = view.storage.images else { return };
    let more = [("device", view.storage.images_device.as_str())];
    let size_of = |s: &Subject<'_>| s.container_id.and_then(|id| view.storage.containers.get(id));
    // Family, help, the machine's value, and a container's value when its size is known.
    type Value = (&'static str, &'static str, u64, fn(&crate::model::ContainerSize) -> Option<u64>);
    let families: [Value; 4] = [
        ("container_fs_inodes_free", "Free inodes of the file system", images.inodes_free, |_| None),
        (
            "container_fs_inodes_total",
            "Inodes: all of the machine's file system, used ones of a container",
            images.inodes,
            |s| Some(s.rootfs_inodes),
        ),
        ("container_fs_limit_bytes", "Size of the file system, in bytes", images.capacity_bytes, |_| None),
        ("container_fs_usage_bytes", "Bytes used: writable layer and logs of a container", images.used_bytes, |s| {
            Some(s.rootfs_bytes.saturating_add(s.logs_bytes))
        }),
    ];
    for (name, help, whole, part) in families {
        page.family(name, help, Kind::Gauge);
        for subject in subjects {
            // Each value with the time at which it was found: Prometheus refuses another value of the same time.
            let (at, value) = match (subject.row, size_of(subject)) {
                (None, _) => (images.at, whole),
                (Some(_), Some(size)) => part(size).map_or((images.at, whole), |own| (size.at, own)),
                (Some(_), None) => continue,
            };
            put(page, name, subject, &more, float(value), Some(at.as_millisecond()));
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
    text.sample("machine_scrape_error", &[], f64::from(u8::from(machine.memory_bytes == 0)));
}
