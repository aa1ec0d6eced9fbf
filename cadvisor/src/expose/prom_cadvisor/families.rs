//! The families of the page that have one value for each target, interface or device.

use jiff::Timestamp;
use windlass_kit::prometheus::Kind;

use super::super::{float, seconds, unix_seconds};
use crate::model::{BlockDevice, Disk, Interface, Limits, Psi, Row, Sample};

pub(super) type SampleMetric = (&'static str, &'static str, Kind, fn(&Sample) -> Option<f64>);

fn stalled(psi: Option<Psi>) -> Option<f64> {
    psi.map(|psi| float(psi.full.total_us) / 1e6)
}

fn waiting(psi: Option<Psi>) -> Option<f64> {
    psi.map(|psi| float(psi.some.total_us) / 1e6)
}

/// Families with one series per target and no further label.
pub(super) const SAMPLE_METRICS: &[SampleMetric] = &[
    ("container_cpu_system_seconds_total", "CPU time in the kernel, in seconds", Kind::Counter, |s| {
        Some(seconds(s.cpu.system_ns))
    }),
    ("container_cpu_user_seconds_total", "CPU time in user mode, in seconds", Kind::Counter, |s| {
        Some(seconds(s.cpu.user_ns))
    }),
    ("container_memory_cache", "Page cache, in bytes", Kind::Gauge, |s| Some(float(s.memory?.cache_bytes))),
    ("container_memory_events_high_total", "Times that memory.high was exceeded", Kind::Counter, |s| {
        s.memory?.high_events.map(float)
    }),
    ("container_memory_events_max_total", "Times that memory.max was about to be exceeded", Kind::Counter, |s| {
        s.memory?.max_events.map(float)
    }),
    ("container_memory_failcnt", "Times that the memory limit was hit", Kind::Counter, |s| {
        Some(float(s.memory?.limit_hits))
    }),
    ("container_memory_file_dirty_bytes", "File pages that wait to be written, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.dirty_bytes))
    }),
    ("container_memory_file_writeback_bytes", "File pages that are being written, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.writeback_bytes))
    }),
    ("container_memory_kernel_usage", "Memory of the kernel, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.kernel_bytes))
    }),
    ("container_memory_mapped_file", "Mapped files, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.mapped_file_bytes))
    }),
    ("container_memory_max_usage_bytes", "Highest memory usage so far, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.max_usage_bytes))
    }),
    ("container_memory_pgscan_total", "Pages scanned for reclaim", Kind::Counter, |s| Some(float(s.memory?.pgscan))),
    ("container_memory_pgsteal_total", "Pages reclaimed", Kind::Counter, |s| Some(float(s.memory?.pgsteal))),
    ("container_memory_rss", "Anonymous memory, in bytes", Kind::Gauge, |s| Some(float(s.memory?.rss_bytes))),
    ("container_memory_swap", "Swap in use, in bytes", Kind::Gauge, |s| s.memory?.swap_bytes.map(float)),
    ("container_memory_total_active_file_bytes", "File pages in recent use, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.active_file_bytes))
    }),
    (
        "container_memory_total_inactive_file_bytes",
        "File pages that can be dropped first, in bytes",
        Kind::Gauge,
        |s| Some(float(s.memory?.inactive_file_bytes)),
    ),
    ("container_memory_usage_bytes", "Memory in use, page cache included, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.usage_bytes))
    }),
    ("container_memory_working_set_bytes", "Memory that cannot be freed easily, in bytes", Kind::Gauge, |s| {
        Some(float(s.memory?.working_set_bytes()))
    }),
    (
        "container_memory_workingset_refault_anon_total",
        "Anonymous pages that came back soon after eviction",
        Kind::Counter,
        |s| Some(float(s.memory?.refault_anon_pages)),
    ),
    (
        "container_memory_workingset_refault_file_total",
        "File pages that came back soon after eviction",
        Kind::Counter,
        |s| Some(float(s.memory?.refault_file_pages)),
    ),
    ("container_oom_events_total", "Processes killed for lack of memory", Kind::Counter, |s| {
        s.memory?.oom_kills.map(float)
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
    ("container_processes", "Processes", Kind::Gauge, |s| s.pids.processes.filter(|n| *n > 0).map(float)),
    ("container_threads", "Threads", Kind::Gauge, |s| s.pids.threads.map(float)),
];

pub(super) type ContainerMetric = (&'static str, &'static str, Kind, bool, fn(&Row) -> Option<f64>);

fn with_quota(row: &Row, value: f64) -> Option<f64> {
    row.limits.cpu_quota_us.map(|_| value)
}

fn limit(of: fn(&Limits) -> Option<u64>, row: &Row) -> Option<f64> {
    Some(of(&row.limits).map_or(0.0, float))
}

/// Families of containers and pods alone. The flag says whether the value carries the sample's timestamp.
pub(super) const CONTAINER_METRICS: &[ContainerMetric] = &[
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
    ("container_file_descriptors", "Open files", Kind::Gauge, true, |r| r.slow.files.map(float)),
    ("container_sockets", "Open sockets", Kind::Gauge, true, |r| r.slow.sockets.map(float)),
    ("container_health_state", "1 healthy, 0 not, -1 without a check of its own", Kind::Gauge, true, |r| {
        (!r.target.container_id.is_empty())
            .then(|| r.target.healthy.map_or(-1.0, |healthy| f64::from(u8::from(healthy))))
    }),
    (
        "container_cpu_load_average_10s",
        "Processes that ran or could run when they were last counted, times 1000",
        Kind::Gauge,
        true,
        |r| r.slow.tasks.map(|tasks| float(tasks.running) * 1000.0),
    ),
    (
        "container_cpu_load_d_average_10s",
        "Processes that waited for a disk when they were last counted, times 1000",
        Kind::Gauge,
        true,
        |r| r.slow.tasks.map(|tasks| float(tasks.uninterruptible) * 1000.0),
    ),
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

pub(super) fn started(row: &Row) -> Timestamp {
    if row.target.container_id.is_empty() { row.target.pod_started_at } else { row.target.started_at }
}

pub(super) type InterfaceMetric = (&'static str, &'static str, fn(&Interface) -> u64);

pub(super) const INTERFACE_METRICS: &[InterfaceMetric] = &[
    ("container_network_receive_bytes_total", "Bytes received", |i| i.rx_bytes),
    ("container_network_receive_errors_total", "Bad packets received", |i| i.rx_errors),
    ("container_network_receive_packets_dropped_total", "Packets received and thrown away", |i| i.rx_dropped),
    ("container_network_receive_packets_total", "Packets received", |i| i.rx_packets),
    ("container_network_transmit_bytes_total", "Bytes sent", |i| i.tx_bytes),
    ("container_network_transmit_errors_total", "Packets that failed to be sent", |i| i.tx_errors),
    ("container_network_transmit_packets_dropped_total", "Packets thrown away instead of sent", |i| i.tx_dropped),
    ("container_network_transmit_packets_total", "Packets sent", |i| i.tx_packets),
];

pub(super) type DeviceMetric = (&'static str, &'static str, fn(&BlockDevice) -> u64);

pub(super) const DEVICE_METRICS: &[DeviceMetric] = &[
    ("container_fs_reads_bytes_total", "Bytes read from the device", |d| d.read_bytes),
    ("container_fs_reads_total", "Requests to read from the device", |d| d.reads),
    ("container_fs_writes_bytes_total", "Bytes written to the device", |d| d.write_bytes),
    ("container_fs_writes_total", "Requests to write to the device", |d| d.writes),
];

type DiskMetric = (&'static str, &'static str, Kind, fn(&Disk) -> f64);

fn milliseconds(ms: u64) -> f64 {
    float(ms) / 1e3
}

/// Families of the machine's block devices. Reads and writes themselves are among [`DEVICE_METRICS`].
pub(super) const DISK_METRICS: &[DiskMetric] = &[
    ("container_fs_io_current", "Requests under way", Kind::Gauge, |d| float(d.in_progress)),
    ("container_fs_io_time_seconds_total", "Time with a request under way, in seconds", Kind::Counter, |d| {
        milliseconds(d.io_ms)
    }),
    (
        "container_fs_io_time_weighted_seconds_total",
        "Time with a request under way times their number, in seconds",
        Kind::Counter,
        |d| milliseconds(d.weighted_ms),
    ),
    ("container_fs_read_seconds_total", "Time that reads took, in seconds", Kind::Counter, |d| milliseconds(d.read_ms)),
    ("container_fs_reads_merged_total", "Reads that were joined with others", Kind::Counter, |d| float(d.reads_merged)),
    ("container_fs_sector_reads_total", "Sectors read", Kind::Counter, |d| float(d.sectors_read)),
    ("container_fs_sector_writes_total", "Sectors written", Kind::Counter, |d| float(d.sectors_written)),
    ("container_fs_write_seconds_total", "Time that writes took, in seconds", Kind::Counter, |d| {
        milliseconds(d.write_ms)
    }),
    ("container_fs_writes_merged_total", "Writes that were joined with others", Kind::Counter, |d| {
        float(d.writes_merged)
    }),
];
