//! The kubelet's Summary API: field names and units are its own. Absent is not zero.

mod system_containers;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::{Pod, View, pods};
use crate::{
    model::{
        ContainerSize, Filesystem, Interface, InterfaceName, Memory, Node, Pressure, Psi, PsiLine, Row, Size, Storage,
        VolumeSize, sum_of_sizes,
    },
    rates::available,
};

/// A time in whole seconds, UTC: the resolution that clients of this API expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = Timestamp::from_second(self.0.as_second()).unwrap_or(self.0);
        serializer.collect_str(&whole)
    }
}

macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(rename_all = "camelCase")]
        #[allow(missing_docs)]
        pub struct $name { $($(#[$attr])* pub $field: $type,)* }
    )*};
}

shapes! {
    /// The response of `/stats/summary`.
    Summary {
        node: NodeStats,
        pods: Vec<PodStats>,
    }
    /// The machine. `start_time` is the start of the kernel.
    NodeStats {
        node_name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        system_containers: Vec<ContainerStats>,
        start_time: Time,
        cpu: CpuStats,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        runtime: Option<RuntimeStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rlimit: Option<RlimitStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    /// File systems of the engine.
    RuntimeStats {
        #[serde(skip_serializing_if = "Option::is_none")]
        image_fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        container_fs: Option<FsStats>,
    }
    /// Process ids: maximum, and in use.
    RlimitStats {
        time: Time,
        maxpid: u64,
        curproc: u64,
    }
    /// Which pod.
    PodReference {
        name: String,
        namespace: String,
        uid: String,
    }
    /// One pod.
    PodStats {
        pod_ref: PodReference,
        start_time: Time,
        containers: Vec<ContainerStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        volume: Vec<VolumeStats>,
        #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
        ephemeral_storage: Option<FsStats>,
        #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
        process_stats: Option<ProcessStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    /// One volume of a pod.
    VolumeStats {
        #[serde(flatten)]
        fs: FsStats,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pvc_ref: Option<PvcReference>,
    }
    /// Which claim.
    PvcReference {
        name: String,
        namespace: String,
    }
    /// Processes of a pod.
    ProcessStats {
        #[serde(rename = "process_count")]
        process_count: u64,
    }
    /// One container, or one daemon of the node.
    ContainerStats {
        name: String,
        start_time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rootfs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    /// CPU: billionths of a core now, nanoseconds so far.
    CpuStats {
        time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_nano_cores: Option<u64>,
        usage_core_nano_seconds: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
    /// Memory: bytes, and page faults so far.
    MemoryStats {
        time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        usage_bytes: u64,
        working_set_bytes: u64,
        rss_bytes: u64,
        page_faults: u64,
        major_page_faults: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
    /// Pressure of block devices.
    IoStats {
        time: Time,
        psi: PsiStats,
    }
    /// Pressure: `total` in microseconds as the kernel counts, averages in percent.
    PsiStats {
        full: PsiData,
        some: PsiData,
    }
    /// One line of a pressure file.
    PsiData {
        total: u64,
        avg10: f64,
        avg60: f64,
        avg300: f64,
    }
    /// Swap in bytes.
    SwapStats {
        time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_available_bytes: Option<u64>,
        swap_usage_bytes: u64,
    }
    /// Traffic: the main interface flat, and all of them.
    NetworkStats {
        time: Time,
        #[serde(flatten, skip_serializing_if = "Option::is_none")]
        main: Option<InterfaceStats>,
        interfaces: Vec<InterfaceStats>,
    }
    /// Traffic of one interface so far.
    InterfaceStats {
        name: String,
        rx_bytes: u64,
        rx_errors: u64,
        tx_bytes: u64,
        tx_errors: u64,
    }
    /// Space. The used part is that of the target, the rest of the file system.
    FsStats {
        time: Time,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        used_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_free: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_used: Option<u64>,
    }
}

/// Builds the response; with `only_cpu_and_memory` everything but CPU, memory and swap is left out.
#[must_use]
pub fn summary(view: &View, only_cpu_and_memory: bool) -> Summary {
    let full = !only_cpu_and_memory;
    let pods = pods(&view.snapshot);
    Summary {
        node: node(view, &pods, full),
        pods: pods.iter().map(|pod| pod_stats(pod, &view.storage, full)).collect(),
    }
}

fn node(view: &View, pods: &[Pod<'_>], full: bool) -> NodeStats {
    let (snapshot, storage) = (&view.snapshot, &view.storage);
    let (node, machine) = (&snapshot.node, &snapshot.machine);
    let sample = &node.sample;
    let time = Time(sample.moment.wall);
    let pressure = shown(&sample.pressure, full);
    let image_fs = storage.images.map(|space| {
        let mut stats = whole(&space);
        stats.used_bytes = view.image_bytes.or(stats.used_bytes);
        stats
    });
    NodeStats {
        node_name: view.node_name.clone(),
        system_containers: system_containers::containers(view, pods),
        start_time: Time(machine.booted_at),
        cpu: CpuStats {
            time,
            usage_nano_cores: node.usage_nano_cores,
            usage_core_nano_seconds: sample.cpu.usage_ns,
            psi: pressure.cpu.map(psi),
        },
        memory: sample.memory.map(|used| {
            let all = Some(machine.memory_bytes).filter(|bytes| *bytes > 0);
            memory(time, &used, all, pressure.memory)
        }),
        io: pressure.io.map(|io| IoStats { time, psi: psi(io) }),
        network: full.then(|| network(time, &sample.network, main_of(node))),
        fs: storage.node.filter(|_| full).map(|space| whole(&space)),
        // Upstream reports the same twice if layers are on the file system of images, which Docker's always are.
        runtime: full.then(|| RuntimeStats { image_fs: image_fs.clone(), container_fs: image_fs }),
        rlimit: machine.max_pids.zip(node.threads).filter(|_| full).map(|(maxpid, curproc)| RlimitStats {
            time,
            maxpid,
            curproc,
        }),
        swap: sample.memory.and_then(|memory| memory.swap_bytes).map(|swap_usage_bytes| SwapStats {
            time,
            swap_available_bytes: node.swap_free_bytes,
            swap_usage_bytes,
        }),
    }
}

fn pod_stats(pod: &Pod<'_>, storage: &Storage, full: bool) -> PodStats {
    let total = pod.total();
    let pressure = pod.own.map(|own| shown(&own.sample.pressure, full)).unwrap_or_default();
    // As upstream, a pod on the host's network reports the host's counters, which must not be summed with other pods'.
    let sandbox = pod.sandbox.filter(|row| full && !row.sample.network.is_empty());
    PodStats {
        pod_ref: PodReference {
            name: pod.name.to_owned(),
            namespace: pod.namespace.to_owned(),
            uid: pod.uid.to_owned(),
        },
        start_time: Time(pod.started_at),
        containers: pod.containers.iter().map(|row| container(row, storage, full)).collect(),
        cpu: total.map(|total| CpuStats {
            time: Time(total.at),
            usage_nano_cores: total.usage_nano_cores,
            usage_core_nano_seconds: total.cpu.usage_ns,
            psi: pressure.cpu.map(psi),
        }),
        memory: total.and_then(|total| {
            total.memory.map(|used| memory(Time(total.at), &used, total.limit_bytes, pressure.memory))
        }),
        io: total.zip(pressure.io).map(|(total, io)| IoStats { time: Time(total.at), psi: psi(io) }),
        network: sandbox
            .map(|row| network(Time(row.sample.moment.wall), &row.sample.network, InterfaceName::new(b"eth0"))),
        volume: if full { volumes(pod, storage) } else { Vec::new() },
        ephemeral_storage: full.then(|| ephemeral(pod, storage)).flatten(),
        process_stats: total
            .and_then(|total| total.processes)
            .filter(|_| full)
            .map(|process_count| ProcessStats { process_count }),
        swap: total.and_then(|total| {
            let swap_usage_bytes = total.memory?.swap_bytes?;
            Some(SwapStats { time: Time(total.at), swap_available_bytes: None, swap_usage_bytes })
        }),
    }
}

fn container(row: &Row, storage: &Storage, full: bool) -> ContainerStats {
    let sample = &row.sample;
    let time = Time(sample.moment.wall);
    let pressure = shown(&sample.pressure, full);
    let size = storage.containers.get(row.target.container_id.as_str());
    ContainerStats {
        name: row.target.container_name.clone(),
        start_time: Time(row.target.started_at),
        cpu: Some(CpuStats {
            time,
            usage_nano_cores: row.usage_nano_cores,
            usage_core_nano_seconds: sample.cpu.usage_ns,
            psi: pressure.cpu.map(psi),
        }),
        memory: sample.memory.map(|used| memory(time, &used, row.limits.memory_bytes, pressure.memory)),
        io: pressure.io.map(|io| IoStats { time, psi: psi(io) }),
        rootfs: storage
            .images
            .filter(|_| full)
            .map(|space| part(&space, size.and_then(|size| Some((size.at, size.rootfs?))))),
        logs: storage
            .logs
            .filter(|_| full)
            .map(|space| part(&space, size.and_then(|size| Some((size.at, size.logs?))))),
        swap: sample.memory.and_then(|memory| memory.swap_bytes).map(|swap_usage_bytes| SwapStats {
            time,
            swap_available_bytes: available(row.limits.swap_bytes, swap_usage_bytes),
            swap_usage_bytes,
        }),
    }
}

fn memory(time: Time, memory: &Memory, limit: Option<u64>, pressure: Option<Psi>) -> MemoryStats {
    let working_set_bytes = memory.working_set_bytes();
    MemoryStats {
        time,
        available_bytes: available(limit, working_set_bytes),
        usage_bytes: memory.usage_bytes,
        working_set_bytes,
        rss_bytes: memory.rss_bytes,
        page_faults: memory.faults,
        major_page_faults: memory.major_faults,
        psi: pressure.map(psi),
    }
}

fn shown(pressure: &Pressure, full: bool) -> Pressure {
    if full { *pressure } else { Pressure::default() }
}

fn psi(psi: Psi) -> PsiStats {
    let data = |stall: PsiLine| PsiData {
        total: stall.total_us,
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    PsiStats { full: data(psi.full), some: data(psi.some) }
}

/// The main interface: eth0 if there is one, as in the kubelet; else that of the default route.
fn main_of(node: &Node) -> Option<InterfaceName> {
    let eth0 = InterfaceName::new(b"eth0");
    let has = |name: Option<InterfaceName>| name.is_some_and(|n| node.sample.network.iter().any(|i| i.name == n));
    if has(eth0) { eth0 } else { node.default_interface }
}

fn network(time: Time, interfaces: &[Interface], main: Option<InterfaceName>) -> NetworkStats {
    let stats = |i: &Interface| InterfaceStats {
        name: i.name.as_str().to_owned(),
        rx_bytes: i.rx_bytes,
        rx_errors: i.rx_errors,
        tx_bytes: i.tx_bytes,
        tx_errors: i.tx_errors,
    };
    NetworkStats {
        time,
        main: interfaces.iter().find(|i| Some(i.name) == main).map(stats),
        interfaces: interfaces.iter().map(stats).collect(),
    }
}

/// A whole file system. One without a fixed number of inodes has none.
fn whole(space: &Filesystem) -> FsStats {
    let inodes = Some(space.inodes).filter(|inodes| *inodes > 0);
    FsStats {
        time: Time(space.at),
        available_bytes: Some(space.available_bytes),
        capacity_bytes: Some(space.capacity_bytes),
        used_bytes: Some(space.used_bytes),
        inodes_free: inodes.map(|_| space.inodes_free),
        inodes,
        inodes_used: inodes.map(|inodes| inodes.saturating_sub(space.inodes_free)),
    }
}

/// The usage of one target in a file system; unknown before the first scan.
fn part(space: &Filesystem, used: Option<(Timestamp, Size)>) -> FsStats {
    FsStats {
        time: Time(used.map_or(space.at, |(at, _)| at.max(space.at))),
        used_bytes: used.map(|(_, size)| size.bytes),
        inodes_used: used.and_then(|(_, size)| size.inodes),
        ..whole(space)
    }
}

fn volumes(pod: &Pod<'_>, storage: &Storage) -> Vec<VolumeStats> {
    let one = |size: &VolumeSize| VolumeStats {
        fs: FsStats { inodes_used: Some(size.inodes_used), ..whole(&size.space) },
        name: size.name.clone(),
        pvc_ref: size
            .claim
            .as_ref()
            .map(|(namespace, name)| PvcReference { name: name.clone(), namespace: namespace.clone() }),
    };
    storage.volumes.get(pod.uid).into_iter().flatten().map(one).collect()
}

fn ephemeral(pod: &Pod<'_>, storage: &Storage) -> Option<FsStats> {
    let sizes: Vec<&ContainerSize> =
        pod.containers.iter().filter_map(|row| storage.containers.get(row.target.container_id.as_str())).collect();
    let volumes = || storage.volumes.get(pod.uid).into_iter().flatten().filter(|volume| volume.ephemeral);
    let at = sizes.iter().map(|size| size.at).chain(volumes().map(|volume| volume.space.at)).max()?;
    let of_containers = sizes.iter().flat_map(|size| [size.rootfs, size.logs]);
    let of_volumes =
        volumes().map(|volume| Some(Size { bytes: volume.space.used_bytes, inodes: Some(volume.inodes_used) }));
    let of_pod = storage.pod_files.get(pod.uid).copied();
    let sum = sum_of_sizes(of_containers.chain(of_volumes).chain([of_pod]));
    Some(part(&storage.node?, sum.map(|sum| (at, sum))))
}
