//! A container's limits and samples, in the forms of v1 and v2. The newest sample is complete; older ones have what the
//! history has.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Lookup;
use crate::{
    expose::View,
    history::Point,
    model::{BlockDevice, Interface, Limits, Psi, PsiLine, Row, Sample, SlowStats, TCP_STATES, Udp, sum_of_sizes},
};

/// cAdvisor's value for no limit.
const UNLIMITED: u64 = u64::MAX;

fn at(point: &Point) -> String {
    jiff::Timestamp::from_millisecond(point.at_ms).unwrap_or_default().to_string()
}

fn psi(psi: Option<Psi>) -> Value {
    let stall = |s: PsiLine| json!({"total": s.total_us, "avg10": s.avg10, "avg60": s.avg60, "avg300": s.avg300});
    psi.map_or(Value::Null, |psi| json!({"full": stall(psi.full), "some": stall(psi.some)}))
}

fn cpu(sample: &Sample, slow: Option<&SlowStats>) -> Value {
    let cpu = &sample.cpu;
    json!({
        "usage": {"total": cpu.usage_ns, "user": cpu.user_ns, "system": cpu.system_ns},
        "cfs": {
            "periods": cpu.periods, "throttled_periods": cpu.throttled_periods, "throttled_time": cpu.throttled_ns,
            "bursts_periods": cpu.burst_periods, "burst_time": cpu.burst_ns,
        },
        "schedstat": {"run_time": 0, "runqueue_time": 0, "run_periods": 0},
        "load_average": slow.and_then(|s| s.tasks).map_or(0, |tasks| tasks.running.saturating_mul(1000)),
        "load_d_average": slow.and_then(|s| s.tasks).map_or(0, |tasks| tasks.uninterruptible.saturating_mul(1000)),
        "psi": psi(sample.pressure.cpu),
    })
}

fn memory(sample: &Sample) -> Value {
    // Its `spec` says whether there is a memory controller.
    let memory = sample.memory.unwrap_or_default();
    let faults = json!({"pgfault": memory.faults, "pgmajfault": memory.major_faults, "numa_stats": {}});
    json!({
        "usage": memory.usage_bytes, "max_usage": memory.max_usage_bytes, "cache": memory.cache_bytes,
        "rss": memory.rss_bytes, "swap": memory.swap_bytes, "mapped_file": memory.mapped_file_bytes,
        "working_set": memory.working_set_bytes(), "total_active_file": memory.active_file_bytes,
        "total_inactive_file": memory.inactive_file_bytes, "failcnt": memory.limit_hits,
        "kernel": memory.kernel_bytes, "container_data": faults, "hierarchical_data": faults,
        "events": {"high": memory.high_events, "max": memory.max_events},
        "file_dirty": memory.dirty_bytes, "file_writeback": memory.writeback_bytes,
        "psi": psi(sample.pressure.memory),
    })
}

fn block(view: &View, sample: &Sample) -> Value {
    let each = |read: fn(&BlockDevice) -> u64, write: fn(&BlockDevice) -> u64| -> Vec<Value> {
        let one = |device: &BlockDevice| {
            let (read, write) = (read(device), write(device));
            json!({
                "device": view.snapshot.devices.get(&(device.major, device.minor)).map_or("", String::as_str),
                "major": device.major, "minor": device.minor,
                "stats": {"Read": read, "Write": write, "Total": read.saturating_add(write)},
            })
        };
        sample.block.iter().map(one).collect()
    };
    json!({
        "io_service_bytes": each(|d| d.read_bytes, |d| d.write_bytes),
        "io_serviced": each(|d| d.reads, |d| d.writes),
        "psi": psi(sample.pressure.io),
    })
}

fn interface(i: &Interface) -> Value {
    json!({
        "name": i.name.as_str(), "rx_bytes": i.rx_bytes, "rx_packets": i.rx_packets, "rx_errors": i.rx_errors,
        "rx_dropped": i.rx_dropped, "tx_bytes": i.tx_bytes, "tx_packets": i.tx_packets, "tx_errors": i.tx_errors,
        "tx_dropped": i.tx_dropped,
    })
}

fn sockets(slow: Option<&SlowStats>) -> Map<String, Value> {
    let found = slow.and_then(|s| s.sockets_of).unwrap_or_default();
    // The names of v1: `SynSent` for `synsent`.
    let names = [
        "Established",
        "SynSent",
        "SynRecv",
        "FinWait1",
        "FinWait2",
        "TimeWait",
        "Close",
        "CloseWait",
        "LastAck",
        "Listen",
        "Closing",
    ];
    debug_assert_eq!(names.len(), TCP_STATES.len());
    let tcp =
        |counts: &[u64; 11]| names.iter().zip(counts).map(|(n, c)| ((*n).to_owned(), json!(c))).collect::<Map<_, _>>();
    let udp = |udp: &Udp| json!({"Listen": udp.listen, "Dropped": udp.dropped, "RxQueued": udp.rx_queued, "TxQueued": udp.tx_queued});
    [
        ("tcp".to_owned(), Value::Object(tcp(&found.tcp))),
        ("tcp6".to_owned(), Value::Object(tcp(&found.tcp6))),
        ("udp".to_owned(), udp(&found.udp)),
        ("udp6".to_owned(), udp(&found.udp6)),
    ]
    .into_iter()
    .collect()
}

fn network(sample: &Sample, slow: Option<&SlowStats>) -> Value {
    let mut all = sockets(slow);
    if let Some(first) = sample.network.first().map(interface)
        && let Value::Object(fields) = first
    {
        all.extend(fields);
    }
    all.insert("interfaces".to_owned(), sample.network.iter().map(interface).collect());
    Value::Object(all)
}

fn processes(row: &Row) -> Value {
    let limit = row.limits.open_files.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    json!({
        "process_count": row.sample.pids.processes, "fd_count": row.slow.files, "socket_count": row.slow.sockets,
        "threads_current": row.sample.pids.threads, "threads_max": row.limits.threads.unwrap_or(0),
        "ulimits": [{"name": "max_open_files", "soft_limit": limit, "hard_limit": limit}],
    })
}

fn tasks(slow: Option<&SlowStats>) -> Value {
    let tasks = slow.and_then(|s| s.tasks).unwrap_or_default();
    json!({
        "nr_sleeping": tasks.sleeping, "nr_running": tasks.running, "nr_stopped": tasks.stopped,
        "nr_uninterruptible": tasks.uninterruptible, "nr_io_wait": 0,
    })
}

fn huge_pages(slow: Option<&SlowStats>) -> Value {
    let pages = slow.into_iter().flat_map(|s| &s.huge_pages);
    let one = |p: &crate::model::HugePages| {
        (p.size.clone(), json!({"usage": p.usage_bytes, "max_usage": p.max_usage_bytes, "failcnt": p.failures}))
    };
    Value::Object(pages.map(one).collect())
}

fn labels(row: &Row) -> BTreeMap<&str, &str> {
    let s = &row.target;
    let of_pod = [
        ("io.kubernetes.container.name", s.container_name.as_str()),
        ("io.kubernetes.pod.name", s.pod_name.as_str()),
        ("io.kubernetes.pod.namespace", s.pod_namespace.as_str()),
        ("io.kubernetes.pod.uid", s.pod_uid.as_str()),
    ];
    let own = s.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    own.chain(of_pod.into_iter().filter(|(_, value)| !value.is_empty())).collect()
}

fn limits(limits: &Limits) -> [(&'static str, Value); 3] {
    let cpu = json!({
        "limit": limits.cpu_shares, "max_limit": 0, "mask": "",
        "quota": limits.cpu_quota_us.unwrap_or(0), "period": limits.cpu_period_us,
    });
    let memory = json!({
        "limit": limits.memory_bytes.unwrap_or(UNLIMITED), "reservation": limits.reservation_bytes.unwrap_or(0),
        "swap_limit": limits.swap_file_bytes.unwrap_or(UNLIMITED),
    });
    [("cpu", cpu), ("memory", memory), ("processes", json!({"limit": limits.threads.unwrap_or(0)}))]
}

fn spec(found: &Lookup<'_>) -> Value {
    let memory = sample_of(found).0.memory.is_some();
    let (started, applied, shown, image, network) = match found {
        Lookup::Machine(view) => {
            let machine = &view.snapshot.machine;
            let applied = Limits {
                memory_bytes: Some(machine.memory_bytes),
                swap_file_bytes: Some(machine.swap_bytes),
                cpu_shares: 1024,
                ..Limits::default()
            };
            (machine.booted_at, applied, BTreeMap::new(), "", true)
        }
        Lookup::Row(row) => {
            let s = &row.target;
            (s.started_at, row.limits, labels(row), s.image.as_str(), !row.sample.network.is_empty())
        }
    };
    let mut all = json!({
        "creation_time": started.to_string(), "start_time": started.to_string(), "labels": shown, "envs": {},
        "has_cpu": true, "has_memory": memory, "has_hugetlb": true, "has_network": network, "has_processes": true,
        "has_filesystem": true, "has_diskio": true, "has_custom_metrics": false, "image": image,
    });
    if let Some(fields) = all.as_object_mut() {
        fields.extend(limits(&applied).map(|(key, value)| (key.to_owned(), value)));
    }
    all
}

/// The same without the quota, which v2 does not have.
pub(super) fn spec_v2(found: &Lookup<'_>) -> Value {
    let mut all = spec(found);
    if let Lookup::Row(row) = found
        && let Some(fields) = all.as_object_mut()
    {
        fields.insert("namespace".to_owned(), json!("docker"));
        fields.insert("aliases".to_owned(), json!(aliases(row)));
    }
    if let Some(cpu) = all["cpu"].as_object_mut() {
        cpu.remove("quota");
        cpu.remove("period");
    }
    all
}

fn aliases(row: &Row) -> Vec<&str> {
    [row.target.name.as_str(), row.target.container_id.as_str()].into_iter().filter(|a| !a.is_empty()).collect()
}

fn filesystem(view: &View, row: &Row) -> Value {
    let storage = &view.storage;
    let (Some(space), Some(size)) = (storage.images, storage.containers.get(row.target.container_id.as_str())) else {
        return json!([]);
    };
    let Some(layer) = size.rootfs else { return json!([]) };
    json!([{
        "device": storage.images_device, "type": "vfs", "capacity": space.capacity_bytes,
        "usage": sum_of_sizes([Some(layer), size.logs]).map(|sum| sum.bytes), "base_usage": layer.bytes,
        "available": space.available_bytes, "has_inodes": layer.inodes.is_some(), "inodes": layer.inodes,
        "inodes_free": space.inodes_free,
    }])
}

fn sample_of<'a>(found: &Lookup<'a>) -> (&'a Sample, Option<&'a SlowStats>) {
    match found {
        Lookup::Machine(view) => (&view.snapshot.node.sample, None),
        Lookup::Row(row) => (&row.sample, Some(row.slow.as_ref())),
    }
}

fn v1_of_sample(view: &View, found: &Lookup<'_>) -> Value {
    let (sample, slow) = sample_of(found);
    let mut all = json!({
        "timestamp": sample.moment.wall.to_string(), "cpu": cpu(sample, slow), "diskio": block(view, sample),
        "memory": memory(sample), "hugetlb": huge_pages(slow), "network": network(sample, slow),
        "task_stats": tasks(slow), "oom_events": sample.memory.and_then(|memory| memory.oom_kills),
    });
    if let (Lookup::Row(row), Some(fields)) = (found, all.as_object_mut()) {
        fields.insert("filesystem".to_owned(), filesystem(view, row));
        fields.insert("processes".to_owned(), processes(row));
        let healthy = row.target.healthy.map_or("", |healthy| if healthy { "healthy" } else { "unhealthy" });
        fields.insert("health".to_owned(), json!({"status": healthy}));
    }
    all
}

fn v1_of_point(point: &Point) -> Value {
    json!({
        "timestamp": at(point),
        "cpu": {"usage": {"total": point.cpu_ns, "user": point.user_ns, "system": point.system_ns}},
        "memory": {"usage": point.usage_bytes, "rss": point.rss_bytes, "working_set": point.working_set_bytes},
        "network": {"rx_bytes": point.rx_bytes, "tx_bytes": point.tx_bytes},
    })
}

/// The newest `count` samples without the newest one.
fn older(past: &[Point], count: usize) -> &[Point] {
    let older = past.get(..past.len().saturating_sub(1)).unwrap_or_default();
    older.get(older.len().saturating_sub(count.saturating_sub(1))..).unwrap_or_default()
}

/// A container in the form of v1.
pub(super) fn container_info(view: &View, found: &Lookup<'_>, past: &[Point], count: usize) -> Value {
    let mut stats: Vec<Value> = older(past, count).iter().map(v1_of_point).collect();
    stats.push(v1_of_sample(view, found));
    let name = found.name();
    let rows = view.snapshot.pods.values().chain(view.snapshot.rows.iter()).map(|row| &*row.cgroup);
    // The direct children; of a deeper cgroup, its ancestor among them.
    let prefix = name.trim_end_matches('/');
    let below: std::collections::BTreeSet<String> = rows
        .filter_map(|path| {
            let first = path.strip_prefix(prefix)?.strip_prefix('/')?.split('/').next()?;
            (!first.is_empty()).then(|| format!("{prefix}/{first}"))
        })
        .collect();
    let below: Vec<Value> = below.into_iter().map(|name| json!({"name": name})).collect();
    let mut all = json!({"name": name, "subcontainers": below, "spec": spec(found), "stats": stats});
    if let (Lookup::Row(row), Some(fields)) = (found, all.as_object_mut())
        && !row.target.container_id.is_empty()
    {
        fields.insert("id".to_owned(), json!(row.target.container_id));
        fields.insert("aliases".to_owned(), json!(aliases(row)));
        fields.insert("namespace".to_owned(), json!("docker"));
    }
    all
}

pub(super) fn v2_of_point(point: &Point) -> Value {
    let mut all = v1_of_point(point);
    if let Some(fields) = all.as_object_mut() {
        let network = json!({"interfaces": [{"name": "", "rx_bytes": point.rx_bytes, "tx_bytes": point.tx_bytes}]});
        fields.insert("network".to_owned(), network);
    }
    all
}

pub(super) fn v2_of_sample(sample: &Sample, usage_nano_cores: Option<u64>) -> Value {
    let mut all = json!({
        "timestamp": sample.moment.wall.to_string(), "cpu": cpu(sample, None), "memory": memory(sample),
        "network": network(sample, None), "load_stats": tasks(None),
    });
    if let (Some(rate), Some(fields)) = (usage_nano_cores, all.as_object_mut()) {
        fields.insert("cpu_inst".to_owned(), json!({"usage": {"total": rate, "per_cpu": [], "user": 0, "system": 0}}));
    }
    all
}

/// Samples in the form of v2.
pub(super) fn v2(view: &View, found: &Lookup<'_>, past: &[Point], count: usize) -> Value {
    let mut all: Vec<Value> = older(past, count).iter().map(v2_of_point).collect();
    let (sample, slow) = sample_of(found);
    let rate = match found {
        Lookup::Machine(view) => view.snapshot.node.usage_nano_cores,
        Lookup::Row(row) => row.usage_nano_cores,
    };
    let mut newest = v2_of_sample(sample, rate);
    if let Some(fields) = newest.as_object_mut() {
        for (key, value) in [
            ("cpu", cpu(sample, slow)),
            ("diskio", block(view, sample)),
            ("hugetlb", huge_pages(slow)),
            ("network", network(sample, slow)),
            ("load_stats", tasks(slow)),
        ] {
            fields.insert(key.to_owned(), value);
        }
        if let Lookup::Row(row) = found {
            fields.insert("processes".to_owned(), processes(row));
            let size = view.storage.containers.get(row.target.container_id.as_str());
            if let Some((layer, logs)) = size.and_then(|size| Some((size.rootfs?, size.logs))) {
                // cAdvisor's spelling.
                let space = json!({
                    "totalUsageBytes": sum_of_sizes([Some(layer), logs]).map(|sum| sum.bytes),
                    "baseUsageBytes": layer.bytes, "containter_inode_usage": layer.inodes,
                });
                fields.insert("filesystem".to_owned(), space);
            }
        }
    }
    all.push(newest);
    Value::Array(all)
}
