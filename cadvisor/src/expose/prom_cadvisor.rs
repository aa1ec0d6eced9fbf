//! The kubelet's `/metrics/cadvisor`, with the labels that clusters on containerd have: container, id, image, name,
//! namespace, pod on every series, empty where they have no meaning.

use jiff::Timestamp;
use windlass_kit::expo::{Kind, Text};

use super::{View, float, seconds, unix_seconds};
use crate::model::{BlockDevice, Interface, Limits, Psi, Row, Sample};

/// One line of the page's table: a container, a pod's own cgroup, or the machine.
struct Subject<'a> {
    labels: [(&'a str, &'a str); 6],
    sample: &'a Sample,
    row: Option<&'a Row>,
    container_id: Option<&'a str>,
    network: &'a [Interface],
}

fn subjects(view: &View) -> Vec<Subject<'_>> {
    let snapshot = &view.snapshot;
    let labels = |container, id, image, name, namespace, pod| {
        [("container", container), ("id", id), ("image", image), ("name", name), ("namespace", namespace), ("pod", pod)]
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

type Plain = (&'static str, &'static str, Kind, fn(&Sample) -> Option<f64>);

fn stalled(psi: Option<Psi>) -> Option<f64> {
    psi.map(|psi| float(psi.full.total_us) / 1e6)
}

fn waiting(psi: Option<Psi>) -> Option<f64> {
    psi.map(|psi| float(psi.some.total_us) / 1e6)
}

/// Families with one series per subject and no further label.
const PLAIN: &[Plain] = &[
    ("container_cpu_system_seconds_total", "CPU time in the kernel, in seconds", Kind::Counter, |s| {
        Some(seconds(s.cpu.system_ns))
    }),
    ("container_cpu_user_seconds_total", "CPU time in user mode, in seconds", Kind::Counter, |s| {
        Some(seconds(s.cpu.user_ns))
    }),
    ("container_memory_cache", "Page cache, in bytes", Kind::Gauge, |s| Some(float(s.memory.cache_bytes))),
    ("container_memory_events_high_total", "Times that memory.high was exceeded", Kind::Counter, |s| {
        Some(float(s.memory.high_events))
    }),
    ("container_memory_events_max_total", "Times that memory.max was about to be exceeded", Kind::Counter, |s| {
        Some(float(s.memory.max_events))
    }),
    ("container_memory_failcnt", "Times that the memory limit was hit", Kind::Counter, |s| {
        Some(float(s.memory.limit_hits))
    }),
    ("container_memory_file_dirty_bytes", "File pages that wait to be written, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.dirty_bytes))
    }),
    ("container_memory_file_writeback_bytes", "File pages that are being written, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.writeback_bytes))
    }),
    ("container_memory_kernel_usage", "Memory of the kernel, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.kernel_bytes))
    }),
    ("container_memory_mapped_file", "Mapped files, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.mapped_file_bytes))
    }),
    ("container_memory_max_usage_bytes", "Highest memory usage so far, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.max_usage_bytes))
    }),
    ("container_memory_pgscan_total", "Pages scanned for reclaim", Kind::Counter, |s| {
        Some(float(s.memory.scanned_pages))
    }),
    ("container_memory_pgsteal_total", "Pages reclaimed", Kind::Counter, |s| Some(float(s.memory.stolen_pages))),
    ("container_memory_rss", "Anonymous memory, in bytes", Kind::Gauge, |s| Some(float(s.memory.rss_bytes))),
    ("container_memory_swap", "Swap in use, in bytes", Kind::Gauge, |s| Some(float(s.memory.swap_bytes))),
    ("container_memory_total_active_file_bytes", "File pages in recent use, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.active_file_bytes))
    }),
    (
        "container_memory_total_inactive_file_bytes",
        "File pages that can be dropped first, in bytes",
        Kind::Gauge,
        |s| Some(float(s.memory.inactive_file_bytes)),
    ),
    ("container_memory_usage_bytes", "Memory in use, page cache included, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.usage_bytes))
    }),
    ("container_memory_working_set_bytes", "Memory that cannot be freed easily, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory.working_set_bytes()))
    }),
    (
        "container_memory_workingset_refault_anon_total",
        "Anonymous pages that came back soon after eviction",
        Kind::Counter,
        |s| Some(float(s.memory.refault_anon_pages)),
    ),
    (
        "container_memory_workingset_refault_file_total",
        "File pages that came back soon after eviction",
        Kind::Counter,
        |s| Some(float(s.memory.refault_file_pages)),
    ),
    ("container_oom_events_total", "Processes killed for lack of memory", Kind::Counter, |s| {
        Some(float(s.memory.oom_kills))
    }),
    (
        "container_pressure_cpu_stalled_seconds_total",
        "Time in which all tasks waited for a CPU, in seconds",
        Kind::Counter,
        |s| stalled(s.pressure.cpu),
    ),
    (
        "container_pressure_cpu_waiting_seconds_total",
        "Time in which a task waited for a CPU, in seconds",
        Kind::Counter,
        |s| waiting(s.pressure.cpu),
    ),
    (
        "container_pressure_io_stalled_seconds_total",
        "Time in which all tasks waited for a block device, in seconds",
        Kind::Counter,
        |s| stalled(s.pressure.io),
    ),
    (
        "container_pressure_io_waiting_seconds_total",
        "Time in which a task waited for a block device, in seconds",
        Kind::Counter,
        |s| waiting(s.pressure.io),
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        "Time in which all tasks waited for memory, in seconds",
        Kind::Counter,
        |s| stalled(s.pressure.memory),
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        "Time in which a task waited for memory, in seconds",
        Kind::Counter,
        |s| waiting(s.pressure.memory),
    ),
    ("container_processes", "Processes", Kind::Gauge, |s| Some(float(s.pids.processes)).filter(|n| *n > 0.0)),
    ("container_threads", "Threads", Kind::Gauge, |s| Some(float(s.pids.threads))),
];

type OfRow = (&'static str, &'static str, Kind, bool, fn(&Row) -> Option<f64>);

fn with_quota(row: &Row, value: f64) -> Option<f64> {
    row.limits.cpu_quota_us.map(|_| value)
}

fn limit(of: fn(&Limits) -> Option<u64>, row: &Row) -> Option<f64> {
    Some(of(&row.limits).map_or(0.0, float))
}

/// Families of containers and pods alone. The flag says whether the sample's time goes with the value.
const OF_ROW: &[OfRow] = &[
    (
        "container_cpu_cfs_burst_periods_total",
        "Periods in which saved-up CPU time was used",
        Kind::Counter,
        true,
        |r| with_quota(r, float(r.sample.cpu.burst_periods)),
    ),
    ("container_cpu_cfs_burst_seconds_total", "CPU time used above the quota, in seconds", Kind::Counter, true, |r| {
        with_quota(r, seconds(r.sample.cpu.burst_ns))
    }),
    ("container_cpu_cfs_periods_total", "Enforcement periods that have passed", Kind::Counter, true, |r| {
        with_quota(r, float(r.sample.cpu.periods))
    }),
    ("container_cpu_cfs_throttled_periods_total", "Periods in which the quota was used up", Kind::Counter, true, |r| {
        with_quota(r, float(r.sample.cpu.throttled_periods))
    }),
    (
        "container_cpu_cfs_throttled_seconds_total",
        "Time that threads were held back, in seconds",
        Kind::Counter,
        true,
        |r| with_quota(r, seconds(r.sample.cpu.throttled_ns)),
    ),
    ("container_file_descriptors", "Open files", Kind::Gauge, true, |r| Some(float(r.descriptors.files))),
    ("container_sockets", "Open sockets", Kind::Gauge, true, |r| Some(float(r.descriptors.sockets))),
    ("container_spec_cpu_period", "Length of an enforcement period, in microseconds", Kind::Gauge, false, |r| {
        Some(float(r.limits.cpu_period_us))
    }),
    ("container_spec_cpu_quota", "CPU time per period, in microseconds", Kind::Gauge, false, |r| {
        r.limits.cpu_quota_us.map(float)
    }),
    ("container_spec_cpu_shares", "Relative weight for CPU time", Kind::Gauge, false, |r| {
        Some(float(r.limits.cpu_shares))
    }),
    ("container_spec_memory_limit_bytes", "Memory limit, in bytes; 0 when unlimited", Kind::Gauge, false, |r| {
        limit(|l| l.memory_bytes, r)
    }),
    (
        "container_spec_memory_reservation_limit_bytes",
        "Memory kept back, in bytes; 0 when none",
        Kind::Gauge,
        false,
        |r| limit(|l| l.reservation_bytes, r),
    ),
    (
        "container_spec_memory_swap_limit_bytes",
        "Swap limit as the cgroup version counts, in bytes; 0 when unlimited",
        Kind::Gauge,
        false,
        |r| limit(|l| l.swap_file_bytes, r),
    ),
    ("container_start_time_seconds", "When it started, in seconds since 1970", Kind::Gauge, false, |r| {
        Some(unix_seconds(started(r)))
    }),
    ("container_threads_max", "Threads allowed; 0 when unlimited", Kind::Gauge, true, |r| limit(|l| l.threads, r)),
];

fn started(row: &Row) -> Timestamp {
    if row.subject.container_id.is_empty() { row.subject.pod_started_at } else { row.subject.started_at }
}

type OfInterface = (&'static str, &'static str, fn(&Interface) -> u64);

const OF_INTERFACE: &[OfInterface] = &[
    ("container_network_receive_bytes_total", "Bytes received", |i| i.rx_bytes),
    ("container_network_receive_errors_total", "Bad packets received", |i| i.rx_errors),
    ("container_network_receive_packets_dropped_total", "Packets received and thrown away", |i| i.rx_dropped),
    ("container_network_receive_packets_total", "Packets received", |i| i.rx_packets),
    ("container_network_transmit_bytes_total", "Bytes sent", |i| i.tx_bytes),
    ("container_network_transmit_errors_total", "Packets that failed to be sent", |i| i.tx_errors),
    ("container_network_transmit_packets_dropped_total", "Packets thrown away instead of sent", |i| i.tx_dropped),
    ("container_network_transmit_packets_total", "Packets sent", |i| i.tx_packets),
];

type OfDevice = (&'static str, &'static str, fn(&BlockDevice) -> u64);

const OF_DEVICE: &[OfDevice] = &[
    ("container_fs_reads_bytes_total", "Bytes read from the device", |d| d.read_bytes),
    ("container_fs_reads_total", "Requests to read from the device", |d| d.reads),
    ("container_fs_writes_bytes_total", "Bytes written to the device", |d| d.write_bytes),
    ("container_fs_writes_total", "Requests to write to the device", |d| d.writes),
];

struct Page<'a> {
    text: Text,
    labels: Vec<(&'a str, &'a str)>,
}

impl<'a> Page<'a> {
    fn put(&mut self, name: &str, subject: &Subject<'a>, more: &[(&'a str, &'a str)], value: f64, at: Option<i64>) {
        self.labels.clear();
        self.labels.extend(subject.labels.iter().chain(more));
        self.text.sample_at(name, &self.labels, value, at);
    }
}

/// The page; `now` is the time of the scrape.
#[must_use]
pub fn text(view: &View, now: Timestamp) -> String {
    let subjects = subjects(view);
    let snapshot = &view.snapshot;
    let machine = &snapshot.machine;
    let mut page = Page { text: Text::new(), labels: Vec::with_capacity(10) };
    let time = |s: &Subject<'_>| Some(s.sample.at.as_millisecond());

    page.text.family("cadvisor_version_info", "Versions of the kernel, the distribution and this program", Kind::Gauge);
    let versions = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", env!("CARGO_PKG_VERSION")),
        ("dockerVersion", ""),
        ("kernelVersion", machine.kernel_version.as_str()),
        ("osVersion", machine.os_version.as_str()),
    ];
    page.text.sample("cadvisor_version_info", &versions, 1.0);

    page.text.family("container_last_seen", "When it was last seen, in seconds since 1970", Kind::Gauge);
    for subject in &subjects {
        #[allow(clippy::cast_precision_loss)]
        page.put("container_last_seen", subject, &[], now.as_second() as f64, Some(now.as_millisecond()));
    }
    page.text.family("container_cpu_usage_seconds_total", "CPU time used, in seconds", Kind::Counter);
    for subject in &subjects {
        let value = seconds(subject.sample.cpu.usage_ns);
        page.put("container_cpu_usage_seconds_total", subject, &[("cpu", "total")], value, time(subject));
    }
    for (name, help, kind, value) in PLAIN {
        page.text.family(name, help, *kind);
        for subject in &subjects {
            if let Some(value) = value(subject.sample) {
                page.put(name, subject, &[], value, time(subject));
            }
        }
    }
    page.text.family("container_memory_failures_total", "Page faults so far", Kind::Counter);
    for subject in &subjects {
        let memory = &subject.sample.memory;
        for (kind, value) in [("pgfault", memory.faults), ("pgmajfault", memory.major_faults)] {
            for scope in ["container", "hierarchy"] {
                let more = [("failure_type", kind), ("scope", scope)];
                page.put("container_memory_failures_total", subject, &more, float(value), time(subject));
            }
        }
    }
    for (name, help, kind, timed, value) in OF_ROW {
        page.text.family(name, help, *kind);
        for subject in &subjects {
            if let Some(value) = subject.row.and_then(value) {
                page.put(name, subject, &[], value, time(subject).filter(|_| *timed));
            }
        }
    }
    page.text.family("container_ulimits_soft", "Soft limits of the first process", Kind::Gauge);
    for subject in &subjects {
        if let Some(row) = subject.row.filter(|_| subject.container_id.is_some()) {
            let value = row.limits.open_files.map_or(-1.0, float);
            page.put("container_ulimits_soft", subject, &[("ulimit", "max_open_files")], value, time(subject));
        }
    }
    for (name, help, value) in OF_INTERFACE {
        page.text.family(name, help, Kind::Counter);
        for subject in &subjects {
            for interface in subject.network {
                let more = [("interface", interface.name.as_str())];
                page.put(name, subject, &more, float(value(interface)), time(subject));
            }
        }
    }
    devices(view, &subjects, &mut page);
    filesystems(view, &subjects, &mut page);
    machine_families(view, &mut page.text);
    page.text.finish()
}

fn devices<'a>(view: &'a View, subjects: &[Subject<'a>], page: &mut Page<'a>) {
    let device = |d: &BlockDevice| view.snapshot.devices.get(&(d.major, d.minor)).map_or("", String::as_str);
    for (name, help, value) in OF_DEVICE {
        page.text.family(name, help, Kind::Counter);
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
                page.put(name, subject, &[("device", label)], float(value(found)), at);
            }
            if let Some(value) = nameless {
                page.put(name, subject, &[("device", "")], float(value), Some(subject.sample.at.as_millisecond()));
            }
        }
    }
    let name = "container_blkio_device_usage_total";
    page.text.family(name, "Bytes moved by the device, per operation", Kind::Counter);
    for subject in subjects {
        for found in &subject.sample.block {
            let (major, minor) = (found.major.to_string(), found.minor.to_string());
            for (operation, value) in [("Read", found.read_bytes), ("Write", found.write_bytes)] {
                let mut labels: Vec<(&str, &str)> = subject.labels.to_vec();
                labels.extend([
                    ("device", device(found)),
                    ("major", major.as_str()),
                    ("minor", minor.as_str()),
                    ("operation", operation),
                ]);
                page.text.sample_at(name, &labels, float(value), Some(subject.sample.at.as_millisecond()));
            }
        }
    }
}

fn filesystems<'a>(view: &'a View, subjects: &[Subject<'a>], page: &mut Page<'a>) {
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
        page.text.family(name, help, Kind::Gauge);
        for subject in subjects {
            let (at, value) = match (subject.row, size_of(subject)) {
                (None, _) => (images.at, whole),
                (Some(_), Some(size)) => (size.at, part(size).unwrap_or(whole)),
                (Some(_), None) => continue,
            };
            page.put(name, subject, &more, float(value), Some(at.as_millisecond()));
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
    text.family("machine_scrape_error", "1 when the machine could not be read, else 0", Kind::Gauge);
    text.sample("machine_scrape_error", &[], f64::from(u8::from(machine.memory_bytes == 0)));
}
