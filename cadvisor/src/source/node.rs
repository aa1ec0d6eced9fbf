//! The files of the machine itself.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    SourceError,
    cached_file::{Buffer, CachedFile, text_of},
    under,
};
use crate::{
    model::{BlockDevice, Cpu, Disk, DiskInfo, Machine, NetworkDevice, Node, NumaNode, Pressure, Sample},
    parse::{
        self,
        cgroup::{Layout, Mode},
        cpu, machine as parsed,
        memory::{self, MachineEvents},
        net, pids, psi,
    },
};

/// Open files of the machine.
#[derive(Debug)]
pub(crate) struct MachineFiles {
    /// CPU of the root cgroup in nanoseconds; `/proc/stat` has hundredths of a second.
    root_cpu: Option<(Mode, CachedFile)>,
    stat: Option<CachedFile>,
    meminfo: Option<CachedFile>,
    vmstat: Option<CachedFile>,
    loadavg: Option<CachedFile>,
    pressure: [Option<CachedFile>; 3],
    network: Option<CachedFile>,
    routes: Option<CachedFile>,
    disks: Option<CachedFile>,
    root: PathBuf,
}

/// Machine-wide counters, read before the cgroups: where one is unchanged, that of no cgroup has changed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(super) pressure: Pressure,
    /// Page faults and OOM kills; `None` where they could not be read.
    pub(super) events: Option<MachineEvents>,
    /// OOM kills; `None` where the kernel has no counter.
    pub(super) kills: Option<u64>,
}

impl MachineFiles {
    pub(crate) fn open(root: &Path, layout: Option<&Layout>) -> Self {
        let root_cpu = layout.and_then(|layout| {
            let (dir, name) = match layout.mode {
                Mode::V2 => (layout.v2_dir("/")?, "cpu.stat"),
                Mode::V1 | Mode::Hybrid => (layout.v1_dir("cpuacct", "/")?, "cpuacct.usage"),
            };
            Some((layout.mode, open(&under(root, &dir), name)?))
        });
        let proc = root.join("proc");
        let cached = |name: &str| open(&proc, name);
        Self {
            root_cpu,
            stat: cached("stat"),
            meminfo: cached("meminfo"),
            vmstat: cached("vmstat"),
            loadavg: cached("loadavg"),
            pressure: ["pressure/cpu", "pressure/memory", "pressure/io"].map(cached),
            network: cached("self/net/dev"),
            routes: cached("self/net/route"),
            disks: cached("diskstats"),
            root: root.to_owned(),
        }
    }

    /// Reads the counters that are needed before the cgroups.
    pub(crate) fn totals(&self, buffer: &mut Buffer) -> Totals {
        let [cpu, memory, io] = &self.pressure;
        let mut psi_of = |file: &Option<CachedFile>| text_of(file.as_ref(), buffer).ok()?.and_then(psi::pressure);
        let pressure = Pressure { cpu: psi_of(cpu), memory: psi_of(memory), io: psi_of(io) };
        let events = text_of(self.vmstat.as_ref(), buffer).ok().flatten().map(memory::machine_events);
        Totals { pressure, kills: events.and_then(|events| events.oom_kills), events }
    }

    /// Reads the rest. An unreadable counter fails the whole; momentary values, such as the load, are left out.
    pub(crate) fn read(&self, totals: &Totals, buffer: &mut Buffer, mut sample: Sample) -> Result<Node, SourceError> {
        let failed = |name: &str| {
            let path = self.root.join("proc").join(name);
            move |source: io::Error| SourceError::Read { path, source }
        };
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        sample.pressure = totals.pressure;
        let stat = text_of(self.stat.as_ref(), buffer).map_err(failed("stat"))?.unwrap_or_default();
        if !cpu::machine(stat, &mut sample.cpu) {
            return Err(failed("stat")(invalid()));
        }
        if let Some((mode, file)) = &self.root_cpu {
            let text = file.read(buffer).map_err(failed("cpu usage of the root cgroup"))?;
            let mut exact = Cpu::default();
            let found = if *mode == Mode::V2 { cpu::v2(text, &mut exact) } else { cpu::v1_usage(text, &mut exact) };
            if found {
                sample.cpu.usage_ns = exact.usage_ns;
            }
        }
        let meminfo = text_of(self.meminfo.as_ref(), buffer).map_err(failed("meminfo"))?.unwrap_or_default();
        let (mut used, machine) = memory::machine(meminfo).ok_or_else(|| failed("meminfo")(invalid()))?;
        let events = totals.events.ok_or_else(|| failed("vmstat")(invalid()))?;
        (used.faults, used.major_faults, used.oom_kills) = (events.faults, events.major_faults, events.oom_kills);
        sample.memory = Some(used);
        let disks = text_of(self.disks.as_ref(), buffer).map_err(failed("diskstats"))?.unwrap_or_default();
        let disks: Vec<Disk> = parse::io::disks(disks).filter(|disk| !is_partition(&self.root, disk)).collect();
        sample.block = disks.iter().filter(|disk| !is_layered(&self.root, disk)).map(moved).collect();
        if let Some(text) = text_of(self.network.as_ref(), buffer).map_err(failed("self/net/dev"))? {
            net::devices(text, &mut sample.network);
        }
        let load = text_of(self.loadavg.as_ref(), buffer).ok().flatten();
        let (threads, load) = (load.and_then(pids::machine_threads), load.map_or([0.0; 3], pids::load));
        sample.pids.threads = threads;
        let routes = text_of(self.routes.as_ref(), buffer).ok().flatten();
        Ok(Node {
            sample,
            usage_nano_cores: None,
            swap_free_bytes: Some(machine.swap_free_bytes),
            default_interface: routes.and_then(net::default_interface),
            threads,
            disks,
            load,
            stale: false,
        })
    }
}

/// A file of the machine that there may not be.
fn open(dir: &Path, name: &str) -> Option<CachedFile> {
    let failed = |error: &io::Error| tracing::warn!(%error, file = %dir.join(name).display(), "a file of the machine cannot be opened; its numbers are missing");
    CachedFile::open(dir, name).inspect_err(failed).ok().flatten()
}

fn is_partition(root: &Path, disk: &Disk) -> bool {
    root.join(format!("sys/dev/block/{}:{}/partition", disk.major, disk.minor)).exists()
}

/// Whether its transfers are counted again for the devices below it (device mapper, RAID).
fn is_layered(root: &Path, disk: &Disk) -> bool {
    std::fs::read_dir(root.join(format!("sys/dev/block/{}:{}/slaves", disk.major, disk.minor)))
        .is_ok_and(|mut below| below.next().is_some())
}

fn moved(disk: &Disk) -> BlockDevice {
    BlockDevice {
        major: disk.major,
        minor: disk.minor,
        read_bytes: disk.sectors_read.saturating_mul(512),
        write_bytes: disk.sectors_written.saturating_mul(512),
        reads: disk.reads,
        writes: disk.writes,
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn line(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn network_devices(root: &Path) -> Vec<NetworkDevice> {
    let dir = root.join("sys/class/net");
    let outer = names(&dir).into_iter().filter(|name| !net::is_inner(name.as_bytes()));
    let device = |name: String| {
        let field = |field: &str| line(&dir.join(&name).join(field));
        NetworkDevice {
            address: field("address"),
            // Virtual devices have -1.
            speed: field("speed").parse().unwrap_or(0),
            mtu: field("mtu").parse().unwrap_or(0),
            name,
        }
    };
    outer.map(device).collect()
}

fn block_devices(root: &Path) -> Vec<DiskInfo> {
    let dir = root.join("sys/block");
    let real = names(&dir).into_iter().filter(|name| !["loop", "ram", "sr"].iter().any(|p| name.starts_with(p)));
    real.filter_map(|name| {
        let field = |field: &str| line(&dir.join(&name).join(field));
        let (major, minor) =
            field("dev").split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))?;
        // The active one is in brackets.
        let schedulers = field("queue/scheduler");
        let scheduler =
            schedulers.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("none", |(s, _)| s);
        let size = field("size").parse::<u64>().unwrap_or(0).saturating_mul(512);
        Some(DiskInfo { major, minor, size, scheduler: scheduler.to_owned(), name })
    })
    .collect()
}

fn numbered(dir: &Path, prefix: &str) -> Vec<(u64, String)> {
    let of = |name: String| Some((name.strip_prefix(prefix)?.parse().ok()?, name));
    let mut all: Vec<(u64, String)> = names(dir).into_iter().filter_map(of).collect();
    all.sort_unstable();
    all
}

fn numa_nodes(root: &Path) -> Vec<NumaNode> {
    let dir = root.join("sys/devices/system/node");
    let node = |(id, name): (u64, String)| {
        let dir = dir.join(name);
        let memory = parsed::node_memory(line(&dir.join("meminfo")).as_bytes());
        let mut cores: Vec<(u64, u64, Vec<u64>)> = Vec::new();
        for (thread, name) in numbered(&dir, "cpu") {
            let topology = dir.join(name).join("topology");
            let (Ok(core), Ok(package)) =
                (line(&topology.join("core_id")).parse(), line(&topology.join("physical_package_id")).parse())
            else {
                continue;
            };
            match cores.iter_mut().find(|(c, p, _)| (*c, *p) == (core, package)) {
                Some((.., threads)) => threads.push(thread),
                None => cores.push((core, package, vec![thread])),
            }
        }
        NumaNode { id, memory_bytes: memory, cores }
    };
    numbered(&dir, "node").into_iter().map(node).collect()
}

/// Reads what does not change while the machine runs. Missing values stay empty.
pub(crate) fn machine(root: &Path, fallback_boot: jiff::Timestamp) -> Machine {
    let read = |path: &str| std::fs::read(root.join(path)).unwrap_or_default();
    let text = |path: &str| String::from_utf8_lossy(&read(path)).trim().to_owned();
    let boot = parsed::boot_second(&read("proc/stat"))
        .and_then(|second| jiff::Timestamp::from_second(i64::try_from(second).ok()?).ok())
        .unwrap_or(fallback_boot);
    let cpuinfo = read("proc/cpuinfo");
    let (cores, physical_cores, sockets) = parsed::processors(&cpuinfo);
    let (vendor, frequency_khz) = parsed::processor(&cpuinfo);
    let fastest = parse::number(&read("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"));
    let huge = root.join("sys/kernel/mm/hugepages");
    let huge_pages = names(&huge).into_iter().filter_map(|name| {
        let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some((size, line(&huge.join(&name).join("nr_hugepages")).parse().unwrap_or(0)))
    });
    let memory = memory::machine(&read("proc/meminfo")).map(|(_, memory)| memory).unwrap_or_default();
    let first = |paths: [&str; 2]| paths.iter().map(|path| text(path)).find(|t| !t.is_empty()).unwrap_or_default();
    Machine {
        booted_at: boot,
        cores,
        physical_cores,
        sockets,
        memory_bytes: memory.total_bytes,
        swap_bytes: memory.swap_total_bytes,
        max_pids: max_pids(root),
        boot_id: text("proc/sys/kernel/random/boot_id"),
        machine_id: first(["etc/machine-id", "var/lib/dbus/machine-id"]),
        system_uuid: text("sys/class/dmi/id/product_uuid"),
        kernel_version: text("proc/sys/kernel/osrelease"),
        os_version: first(["etc/os-release", "usr/lib/os-release"])
            .lines()
            .find_map(parsed::distribution)
            .unwrap_or_default(),
        vendor,
        frequency_khz: fastest.unwrap_or(frequency_khz),
        huge_pages: huge_pages.collect(),
        network: network_devices(root),
        disks: block_devices(root),
        nodes: numa_nodes(root),
    }
}

/// The maximum number of process ids; `None` if the kernel reports neither limit.
pub(super) fn max_pids(root: &Path) -> Option<u64> {
    let limit = |name: &str| parse::number(&std::fs::read(root.join("proc/sys/kernel").join(name)).ok()?);
    ["pid_max", "threads-max"].into_iter().filter_map(limit).min()
}

/// `/dev/` name of a block device.
pub(crate) fn block_device_name(root: &Path, major: u32, minor: u32) -> Option<String> {
    let link = std::fs::read_link(root.join(format!("sys/dev/block/{major}:{minor}"))).ok()?;
    Some(format!("/dev/{}", link.file_name()?.to_str()?))
}
