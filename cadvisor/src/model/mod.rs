//! Samples: plain numbers, with the unit in the name of each field.

mod container_rows;
mod machine;
mod process;
mod shared_map;
mod storage;

use std::{collections::BTreeMap, fmt, sync::Arc};

use windlass_kit::moment::Moment;

use crate::config::Target;
pub use container_rows::Rows;
pub use machine::{Disk, DiskInfo, Machine, NetworkDevice, Node, NumaNode};
pub use process::Process;
pub use shared_map::SharedMap;
pub(crate) use shared_map::Spot;
pub use storage::{ContainerSize, Filesystem, Size, Storage, VolumeSize, sum_of_sizes};

/// CPU time used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// All of it.
    pub usage_ns: u64,
    /// Spent in user mode.
    pub user_ns: u64,
    /// Spent in the kernel.
    pub system_ns: u64,
    /// Enforcement periods of the quota that have passed.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled_periods: u64,
    /// Time that threads were throttled.
    pub throttled_ns: u64,
    /// Periods in which saved-up burst was used.
    pub burst_periods: u64,
    /// Time used above the quota.
    pub burst_ns: u64,
}

/// Memory in use now, and counters of its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Everything charged, page cache included.
    pub usage_bytes: u64,
    /// Highest usage so far; 0 where the kernel has none.
    pub max_usage_bytes: u64,
    /// Page cache.
    pub cache_bytes: u64,
    /// Anonymous memory.
    pub rss_bytes: u64,
    /// Swapped out; `None` where the kernel does not account for swap.
    pub swap_bytes: Option<u64>,
    /// Mapped files.
    pub mapped_file_bytes: u64,
    /// Kernel memory charged to the cgroup.
    pub kernel_bytes: u64,
    /// Active file pages.
    pub active_file_bytes: u64,
    /// Inactive file pages.
    pub inactive_file_bytes: u64,
    /// Dirty file pages.
    pub dirty_bytes: u64,
    /// File pages under writeback.
    pub writeback_bytes: u64,
    /// Page faults so far.
    pub faults: u64,
    /// Major page faults.
    pub major_faults: u64,
    /// Times the limit was hit (`memory.failcnt`, v1 only).
    pub limit_hits: u64,
    /// Pages scanned for reclaim (`pgscan`, v2 only).
    pub pgscan: u64,
    /// Pages reclaimed (`pgsteal`, v2 only).
    pub pgsteal: u64,
    /// Refaults of anonymous pages.
    pub refault_anon_pages: u64,
    /// Refaults of file pages.
    pub refault_file_pages: u64,
    /// `high` of `memory.events` (v2 only).
    pub high_events: Option<u64>,
    /// `max` of `memory.events` (v2 only).
    pub max_events: Option<u64>,
    /// OOM kills; `None` where the kernel does not count them.
    pub oom_kills: Option<u64>,
}

impl Memory {
    /// Working set: usage without inactive file pages, never below 0.
    #[must_use]
    pub fn working_set_bytes(&self) -> u64 {
        self.usage_bytes.saturating_sub(self.inactive_file_bytes)
    }

    /// Adds another cgroup's usage, for what the Summary API reports.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, part) in [
            (&mut self.usage_bytes, other.usage_bytes),
            // Working sets must add up, and each is clamped at 0.
            (&mut self.inactive_file_bytes, other.usage_bytes - other.working_set_bytes()),
            (&mut self.rss_bytes, other.rss_bytes),
            (&mut self.faults, other.faults),
            (&mut self.major_faults, other.major_faults),
        ] {
            *sum = sum.saturating_add(part);
        }
        self.swap_bytes = [self.swap_bytes, other.swap_bytes].into_iter().flatten().reduce(u64::saturating_add);
    }
}

/// Counts of tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pids {
    /// Threads and processes, as the pids controller counts; `None` without that controller.
    pub threads: Option<u64>,
    /// Processes in the cgroup itself; `None` where they cannot be listed.
    pub processes: Option<u64>,
}

/// One line of a PSI file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PsiLine {
    /// Share of the last 10 s, in percent.
    pub avg10: f64,
    /// Share of the last 60 s, in percent.
    pub avg60: f64,
    /// Share of the last 300 s, in percent.
    pub avg300: f64,
    /// Total stall time.
    pub total_us: u64,
}

/// One PSI file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Psi {
    /// At least one task stalled.
    pub some: PsiLine,
    /// All tasks stalled; zeros where the kernel omits the line.
    pub full: PsiLine,
}

impl Psi {
    /// Whether all averages are zero.
    pub(crate) fn is_zero(&self) -> bool {
        let still = |stall: &PsiLine| stall.avg10 <= 0.0 && stall.avg60 <= 0.0 && stall.avg300 <= 0.0;
        still(&self.some) && still(&self.full)
    }
}

/// The three PSI files; absent on plain v1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Stalled on CPU.
    pub cpu: Option<Psi>,
    /// Stalled on memory.
    pub memory: Option<Psi>,
    /// Stalled on I/O.
    pub io: Option<Psi>,
}

/// Counters of one block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockDevice {
    /// Device number.
    pub major: u32,
    /// Device number.
    pub minor: u32,
    /// Read so far.
    pub read_bytes: u64,
    /// Written so far.
    pub write_bytes: u64,
    /// Read requests so far.
    pub reads: u64,
    /// Write requests so far.
    pub writes: u64,
}

/// Name of a network interface, without an allocation (the kernel allows 15 bytes).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName {
    bytes: [u8; 16],
    len: u8,
}

impl InterfaceName {
    /// None when the name is empty, longer than 15 bytes, or not UTF-8.
    #[must_use]
    pub fn new(name: &[u8]) -> Option<Self> {
        if name.is_empty() || name.len() > 15 || std::str::from_utf8(name).is_err() {
            return None;
        }
        let mut bytes = [0; 16];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes, len: u8::try_from(name.len()).ok()? })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.bytes.get(..usize::from(self.len)).and_then(|b| std::str::from_utf8(b).ok()).unwrap_or("")
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Traffic of one interface so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// Its name in its namespace.
    pub name: InterfaceName,
    /// Received.
    pub rx_bytes: u64,
    /// Received.
    pub rx_packets: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Dropped on receive.
    pub rx_dropped: u64,
    /// Sent.
    pub tx_bytes: u64,
    /// Sent.
    pub tx_packets: u64,
    /// Transmit errors.
    pub tx_errors: u64,
    /// Dropped on transmit.
    pub tx_dropped: u64,
}

/// One sample of a cgroup. Each part is of this round, or proven unchanged since the one before: a file that cannot be read
/// fails the whole sample, and what is `None` the kernel does not have.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// When it was read.
    pub moment: Moment,
    /// CPU.
    pub cpu: Cpu,
    /// Memory; `None` without the memory controller.
    pub memory: Option<Memory>,
    /// Tasks.
    pub pids: Pids,
    /// Pressure stall information.
    pub pressure: Pressure,
    /// Block devices with transfers, in order of device number.
    pub block: Vec<BlockDevice>,
    /// Interfaces without loopback; only of sandboxes and of the node.
    pub network: Vec<Interface>,
}

impl Sample {
    /// An empty sample of this time.
    #[must_use]
    pub fn empty(moment: Moment) -> Self {
        Self {
            moment,
            cpu: Cpu::default(),
            memory: None,
            pids: Pids::default(),
            pressure: Pressure::default(),
            block: Vec::new(),
            network: Vec::new(),
        }
    }
}

/// Limits of a cgroup. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU shares as on v1 (1024 is Docker's default).
    pub cpu_shares: u64,
    /// CFS quota per period.
    pub cpu_quota_us: Option<u64>,
    /// CFS period.
    pub cpu_period_us: u64,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// `memory.min` (v2) or the soft limit (v1).
    pub reservation_bytes: Option<u64>,
    /// Swap alone, on both versions.
    pub swap_bytes: Option<u64>,
    /// Swap as read: memory and swap together on v1, swap alone on v2.
    pub swap_file_bytes: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open files of the init process (soft limit).
    pub open_files: Option<u64>,
}

/// Counters that are read rarely, because they are expensive or change slowly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlowStats {
    /// Open files of all processes of the container; `None` when there are too many to count.
    pub files: Option<u64>,
    /// Those that are sockets; `None` when there are too many files to look at.
    pub sockets: Option<u64>,
    /// States of its processes; `None` when there are too many.
    pub tasks: Option<Tasks>,
    /// Huge pages of each page size.
    pub huge_pages: Vec<HugePages>,
    /// Sockets in the network namespace; only of containers that report it.
    pub sockets_of: Option<Sockets>,
}

/// Number of processes in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Interruptible sleep.
    pub sleeping: u64,
    /// Running or runnable.
    pub running: u64,
    /// Stopped by a signal or a debugger.
    pub stopped: u64,
    /// Uninterruptible sleep, mostly for a disk.
    pub uninterruptible: u64,
}

/// Huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugePages {
    /// As the kernel writes it: `2MB`.
    pub size: String,
    /// In use.
    pub usage_bytes: u64,
    /// Highest usage; 0 where the kernel has none (v2).
    pub max_usage_bytes: u64,
    /// Times the limit was hit.
    pub failures: u64,
}

/// TCP states in the order of their numbers in the kernel, from 1.
pub const TCP_STATES: [&str; 11] = [
    "established",
    "synsent",
    "synrecv",
    "finwait1",
    "finwait2",
    "timewait",
    "close",
    "closewait",
    "lastack",
    "listen",
    "closing",
];

/// Sockets of a network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sockets {
    /// TCP sockets of IPv4, by state as in [`TCP_STATES`].
    pub tcp: [u64; 11],
    /// TCP sockets of IPv6.
    pub tcp6: [u64; 11],
    /// UDP sockets of IPv4.
    pub udp: Udp,
    /// UDP sockets of IPv6.
    pub udp6: Udp,
}

/// UDP sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Udp {
    /// Sockets.
    pub listen: u64,
    /// Dropped datagrams.
    pub dropped: u64,
    /// Bytes in receive queues.
    pub rx_queued: u64,
    /// Bytes in send queues.
    pub tx_queued: u64,
}

/// One container (or one pod's own cgroup) in a snapshot.
#[derive(Debug, Clone)]
pub struct Row {
    /// The container.
    pub target: Arc<Target>,
    /// Path below the cgroup root.
    pub cgroup: Arc<str>,
    /// The newest sample.
    pub sample: Sample,
    /// CPU rate over at least one second, in billionths of a core; `None` before there are two samples.
    pub usage_nano_cores: Option<u64>,
    /// Its limits.
    pub limits: Limits,
    /// Its slow counters.
    pub slow: Arc<SlowStats>,
    /// In the node's network namespace, so that its traffic is the node's.
    pub host_network: bool,
    /// The last read failed: the numbers are those of the read before.
    pub stale: bool,
}

/// A daemon of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemRow {
    /// Its name in the configuration.
    pub name: String,
    /// When the process started.
    pub started_at: jiff::Timestamp,
    /// When it was read.
    pub moment: Moment,
    /// CPU.
    pub cpu: Cpu,
    /// Memory of its cgroups, or else the resident memory of its process, as usage, working set and rss.
    pub memory: Option<Memory>,
    /// CPU rate.
    pub usage_nano_cores: Option<u64>,
}

/// A system cgroup reported besides those of pods and containers: that of all pods, and those of daemons.
#[derive(Debug, Clone)]
pub struct SystemCgroup {
    /// Path below the cgroup root.
    pub path: Arc<str>,
    /// The newest sample.
    pub sample: Sample,
    /// CPU rate.
    pub usage_nano_cores: Option<u64>,
}

/// The result of one housekeeping, from which every page is rendered.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its end.
    pub moment: Moment,
    /// The machine's properties.
    pub machine: Arc<Machine>,
    /// The machine.
    pub node: Arc<Node>,
    /// Containers, sorted by namespace, pod, container, id.
    pub rows: Rows,
    /// Pods with a cgroup of their own, by uid.
    pub pods: SharedMap<Arc<str>, Arc<Row>>,
    /// Daemons of the node.
    pub system: Arc<Vec<SystemRow>>,
    /// The cgroup of all pods, which also has what ended ones have left there.
    pub all_pods: Option<Arc<SystemCgroup>>,
    /// The cgroups of the engine and of what it starts besides containers.
    pub runtime_cgroups: Arc<Vec<Arc<SystemCgroup>>>,
    /// Names of block devices by (major, minor).
    pub devices: Arc<BTreeMap<(u32, u32), String>>,
}
