//! The machine: its numbers, and what it is.

use super::{InterfaceName, Sample};

/// One block device of the machine: counters so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disk {
    /// Device number.
    pub major: u32,
    /// Device number.
    pub minor: u32,
    /// Path below `/dev`.
    pub name: String,
    /// Requests.
    pub reads: u64,
    /// Requests that were joined with others.
    pub reads_merged: u64,
    /// 512 bytes each.
    pub sectors_read: u64,
    /// Time that requests took.
    pub read_ms: u64,
    /// Requests.
    pub writes: u64,
    /// Requests that were joined with others.
    pub writes_merged: u64,
    /// 512 bytes each.
    pub sectors_written: u64,
    /// Time that requests took.
    pub write_ms: u64,
    /// Requests under way now.
    pub in_progress: u64,
    /// Time with a request under way.
    pub io_ms: u64,
    /// The same, times the number of requests.
    pub weighted_ms: u64,
}

/// The machine in a snapshot.
#[derive(Debug, Clone)]
pub struct Node {
    /// The newest sample.
    pub sample: Sample,
    /// CPU rate.
    pub usage_nano_cores: Option<u64>,
    /// Swap not in use.
    pub swap_free_bytes: u64,
    /// Name of the interface that the default route leaves by.
    pub default_interface: Option<InterfaceName>,
    /// Threads that exist now.
    pub threads: u64,
    /// Block devices, without partitions, loops and memory.
    pub disks: Vec<Disk>,
    /// Load over 1, 5 and 15 minutes.
    pub load: [f64; 3],
}

/// What does not change while the machine runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// When the kernel started.
    pub booted_at: jiff::Timestamp,
    /// Logical processors.
    pub cores: u64,
    /// Physical cores.
    pub physical_cores: u64,
    /// Processor packages.
    pub sockets: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// Swap space.
    pub swap_bytes: u64,
    /// Most process ids that can exist.
    pub max_pids: u64,
    /// Of this start of the kernel.
    pub boot_id: String,
    /// Of the installation.
    pub machine_id: String,
    /// Of the firmware.
    pub system_uuid: String,
    /// Release of the kernel.
    pub kernel_version: String,
    /// Name of the distribution.
    pub os_version: String,
    /// Who made the processor.
    pub vendor: String,
    /// Fastest clock of the first processor.
    pub frequency_khz: u64,
    /// Huge pages: size in KiB, and how many are set aside.
    pub huge_pages: Vec<(u64, u64)>,
    /// Network devices that are not containers' or bridges'.
    pub network: Vec<NetworkDevice>,
    /// Block devices.
    pub disks: Vec<DiskInfo>,
    /// NUMA nodes.
    pub nodes: Vec<NumaNode>,
}

/// A network device of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkDevice {
    /// Its name.
    pub name: String,
    /// Hardware address.
    pub address: String,
    /// Megabits a second; 0 when it does not say.
    pub speed: u64,
    /// Largest packet.
    pub mtu: u64,
}

/// A block device of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskInfo {
    /// Name below `/dev`.
    pub name: String,
    /// Device number.
    pub major: u32,
    /// Device number.
    pub minor: u32,
    /// Bytes.
    pub size: u64,
    /// What orders its requests.
    pub scheduler: String,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub id: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Cores: number, package, logical processors.
    pub cores: Vec<(u64, u64, Vec<u64>)>,
}
