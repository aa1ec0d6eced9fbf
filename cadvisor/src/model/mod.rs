//! Samples: plain numbers, the unit in every field's name.

mod machine;
mod process;

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::config::Subject;
pub use machine::{Disk, DiskInfo, Machine, NetworkDevice, Node, NumaNode};
pub use process::Process;

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
    /// Time that threads were held back.
    pub throttled_ns: u64,
    /// Periods in which more than the quota was used by saved-up burst.
    pub burst_periods: u64,
    /// Time used above the quota.
    pub burst_ns: u64,
}

/// Memory in use now, and counters of its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Everything charged, page cache included.
    pub usage_bytes: u64,
    /// Highest usage so far; 0 where the kernel does not tell.
    pub max_usage_bytes: u64,
    /// Page cache.
    pub cache_bytes: u64,
    /// Anonymous memory.
    pub rss_bytes: u64,
    /// Swapped out.
    pub swap_bytes: u64,
    /// Mapped files.
    pub mapped_file_bytes: u64,
    /// Memory of the kernel charged to the group.
    pub kernel_bytes: u64,
    /// File pages in recent use.
    pub active_file_bytes: u64,
    /// File pages that can be dropped first.
    pub inactive_file_bytes: u64,
    /// File pages waiting to be written.
    pub dirty_bytes: u64,
    /// File pages being written.
    pub writeback_bytes: u64,
    /// Page faults so far.
    pub faults: u64,
    /// Page faults that needed a read from disk.
    pub major_faults: u64,
    /// Times the limit was hit (v1 only).
    pub limit_hits: u64,
    /// Pages scanned for reclaim (v2 only).
    pub scanned_pages: u64,
    /// Pages reclaimed (v2 only).
    pub stolen_pages: u64,
    /// Anonymous pages that came back soon after eviction.
    pub refault_anon_pages: u64,
    /// File pages that came back soon after eviction.
    pub refault_file_pages: u64,
    /// Times `memory.high` was exceeded (v2 only).
    pub high_events: u64,
    /// Times `memory.max` was about to be exceeded (v2 only).
    pub max_events: u64,
    /// Processes killed for lack of memory.
    pub oom_kills: u64,
}

impl Memory {
    /// What cannot be freed easily: usage without inactive file pages, never below 0.
    #[must_use]
    pub fn working_set_bytes(&self) -> u64 {
        self.usage_bytes.saturating_sub(self.inactive_file_bytes)
    }
}

/// Counts of tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pids {
    /// Threads and processes, as the pids controller counts.
    pub threads: u64,
    /// Processes in the group itself.
    pub processes: u64,
}

/// One line of a pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    /// Share of the last 10 s, in percent.
    pub avg10: f64,
    /// Share of the last 60 s, in percent.
    pub avg60: f64,
    /// Share of the last 300 s, in percent.
    pub avg300: f64,
    /// Stalled time so far.
    pub total_us: u64,
}

/// One pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Psi {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited; zeros where the kernel leaves the line out.
    pub full: Stall,
}

impl Psi {
    /// Whether nothing has waited for minutes.
    pub(crate) fn is_calm(&self) -> bool {
        let still = |stall: &Stall| stall.avg10 <= 0.0 && stall.avg60 <= 0.0 && stall.avg300 <= 0.0;
        still(&self.some) && still(&self.full)
    }
}

/// The three pressure files; absent on plain v1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Waiting for a CPU.
    pub cpu: Option<Psi>,
    /// Waiting for memory.
    pub memory: Option<Psi>,
    /// Waiting for a block device.
    pub io: Option<Psi>,
}

/// Transfers to one block device so far.
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

/// Name of a network interface, kept in place (the kernel allows 15 bytes).
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
    /// Bad packets received.
    pub rx_errors: u64,
    /// Received and thrown away.
    pub rx_dropped: u64,
    /// Sent.
    pub tx_bytes: u64,
    /// Sent.
    pub tx_packets: u64,
    /// Failed to send.
    pub tx_errors: u64,
    /// Thrown away instead of sent.
    pub tx_dropped: u64,
}

/// All that one look at a cgroup gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Wall clock at the reading.
    pub at: jiff::Timestamp,
    /// Monotonic clock at the reading: what rates are computed with.
    pub mono_ns: u64,
    /// CPU.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Tasks.
    pub pids: Pids,
    /// Pressure stall information.
    pub pressure: Pressure,
    /// Block devices with any transfer, in order of device number.
    pub block: Vec<BlockDevice>,
    /// Interfaces, loopback left out; only of sandboxes and of the node.
    pub network: Vec<Interface>,
}

impl Sample {
    /// An empty sample taken at that time.
    #[must_use]
    pub fn empty(at: jiff::Timestamp, mono_ns: u64) -> Self {
        Self {
            at,
            mono_ns,
            cpu: Cpu::default(),
            memory: Memory::default(),
            pids: Pids::default(),
            pressure: Pressure::default(),
            block: Vec::new(),
            network: Vec::new(),
        }
    }
}

/// What a cgroup is allowed. None means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Relative weight, in the terms of v1 (1024 is Docker's default).
    pub cpu_shares: u64,
    /// CPU time per period.
    pub cpu_quota_us: Option<u64>,
    /// Length of a period.
    pub cpu_period_us: u64,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Memory kept back for it (v2) or softly limited (v1).
    pub reservation_bytes: Option<u64>,
    /// Swap alone, whatever the cgroup version counts.
    pub swap_bytes: Option<u64>,
    /// The swap file as read: memory and swap together on v1, swap alone on v2.
    pub swap_file_bytes: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open files of the init process (soft limit).
    pub open_files: Option<u64>,
}

/// What is counted only now and then because it costs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seldom {
    /// Open files of all processes of the container.
    pub files: u64,
    /// Those that are sockets.
    pub sockets: u64,
    /// What its processes were doing at that moment.
    pub tasks: Tasks,
    /// Huge pages of each size that the machine has.
    pub huge_pages: Vec<HugePages>,
    /// Connections in the network namespace; only of those whose network is told.
    pub sockets_of: Option<Sockets>,
}

/// How many processes were in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Wait for something that a signal can end.
    pub sleeping: u64,
    /// Run or could run.
    pub running: u64,
    /// Held by a signal or a debugger.
    pub stopped: u64,
    /// Wait for something that no signal ends: a disk, mostly.
    pub uninterruptible: u64,
}

/// Huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugePages {
    /// As the kernel writes it: `2MB`.
    pub size: String,
    /// In use.
    pub usage_bytes: u64,
    /// Most that was in use; 0 where the kernel does not tell (v2).
    pub max_usage_bytes: u64,
    /// Times that the limit was hit.
    pub failures: u64,
}

/// States of TCP as the kernel numbers them, from 1.
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
    /// Of IPv4, by state as in [`TCP_STATES`].
    pub tcp: [u64; 11],
    /// Of IPv6.
    pub tcp6: [u64; 11],
    /// Of IPv4.
    pub udp: Udp,
    /// Of IPv6.
    pub udp6: Udp,
}

/// UDP sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Udp {
    /// Sockets.
    pub listen: u64,
    /// Datagrams thrown away.
    pub dropped: u64,
    /// Bytes that wait to be read.
    pub rx_queued: u64,
    /// Bytes that wait to be sent.
    pub tx_queued: u64,
}

/// One container (or one pod's own cgroup) in a snapshot.
#[derive(Debug, Clone)]
pub struct Row {
    /// Who it is.
    pub subject: Arc<Subject>,
    /// Path below the cgroup root.
    pub cgroup: Arc<str>,
    /// The newest sample.
    pub sample: Sample,
    /// CPU rate over the last stretch of at least a second; none before two samples exist.
    pub usage_nano_cores: Option<u64>,
    /// What it is allowed.
    pub limits: Limits,
    /// What is counted now and then.
    pub seldom: Arc<Seldom>,
    /// Shares the node's network namespace, so that its traffic is the node's.
    pub host_network: bool,
    /// The newest attempt to read failed: the numbers are those of the attempt before.
    pub stale: bool,
}

/// A daemon of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemRow {
    /// As in the configuration.
    pub name: String,
    /// When the process started.
    pub started_at: jiff::Timestamp,
    /// When it was read.
    pub at: jiff::Timestamp,
    /// Monotonic clock at the reading.
    pub mono_ns: u64,
    /// CPU.
    pub cpu: Cpu,
    /// Resident memory stands in usage, working set and rss.
    pub memory: Memory,
    /// CPU rate.
    pub usage_nano_cores: Option<u64>,
}

/// The result of one round: what every page is rendered from.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Wall clock when the round ended.
    pub at: jiff::Timestamp,
    /// Monotonic clock when the round ended.
    pub mono_ns: u64,
    /// The machine's constants.
    pub machine: Arc<Machine>,
    /// The machine.
    pub node: Node,
    /// Containers, sorted by namespace, pod, container, id.
    pub rows: Vec<Arc<Row>>,
    /// Pods that have a cgroup of their own, by uid.
    pub pods: BTreeMap<Arc<str>, Arc<Row>>,
    /// Daemons of the node.
    pub system: Vec<SystemRow>,
    /// Names of block devices by (major, minor).
    pub devices: Arc<BTreeMap<(u32, u32), String>>,
}

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filesystem {
    /// When it was asked.
    pub at: jiff::Timestamp,
    /// Whole size.
    pub capacity_bytes: u64,
    /// Free for ordinary users.
    pub available_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// Inodes altogether; 0 where the file system has no fixed number.
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
}

/// Size of what one container has written, from the last walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerSize {
    /// When the walk ended.
    pub at: jiff::Timestamp,
    /// Blocks in the writable layer.
    pub rootfs_bytes: u64,
    /// Files and directories in the writable layer.
    pub rootfs_inodes: u64,
    /// Blocks in log files.
    pub logs_bytes: u64,
    /// Log files.
    pub logs_inodes: u64,
    /// A walk is under way for longer than walks should take.
    pub stale: bool,
}

/// Size of a volume, from the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSize {
    /// Its name in the pod.
    pub name: String,
    /// Namespace and name of the claim that it comes from.
    pub claim: Option<(String, String)>,
    /// Goes with the pod and lies on the node's disk, so that it counts as ephemeral storage.
    pub ephemeral: bool,
    /// What it uses, and the space and inodes of its file system.
    pub space: Filesystem,
    /// Files and directories in it.
    pub inodes_used: u64,
    /// The newest look has not ended: its file system does not answer.
    pub stale: bool,
}

/// The result of the background walks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Storage {
    /// The file system of the data directory.
    pub node: Option<Filesystem>,
    /// The file system of Docker's data root.
    pub images: Option<Filesystem>,
    /// Device name of the images' file system, for labels.
    pub images_device: String,
    /// By container id.
    pub containers: BTreeMap<String, ContainerSize>,
    /// By pod uid.
    pub volumes: BTreeMap<String, Vec<VolumeSize>>,
    /// Bytes of all layers of images, where Docker keeps a list of them.
    pub image_bytes: Option<u64>,
}
