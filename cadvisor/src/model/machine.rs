//! The machine: its counters and its properties.

use windlass_kit::moment::Moment;

use super::{InterfaceName, Sample};

/// Counters of one block device of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disk {
    /// Device number.
    pub major: u32,
    /// Device number.
    pub minor: u32,
    /// Path below `/dev`.
    pub name: String,
    /// Read requests.
    pub reads: u64,
    /// Merged read requests.
    pub reads_merged: u64,
    /// Sectors of 512 bytes read.
    pub sectors_read: u64,
    /// Time spent on reads.
    pub read_ms: u64,
    /// Write requests.
    pub writes: u64,
    /// Merged write requests.
    pub writes_merged: u64,
    /// Sectors of 512 bytes written.
    pub sectors_written: u64,
    /// Time spent on writes.
    pub write_ms: u64,
    /// Requests in progress.
    pub in_progress: u64,
    /// Time with requests in progress.
    pub io_ms: u64,
    /// The same, weighted by the number of requests.
    pub weighted_ms: u64,
}

/// The machine in a snapshot.
#[derive(Debug, Clone)]
pub struct Node {
    /// The newest sample.
    pub sample: Sample,
    /// CPU rate in billionths of a core.
    pub usage_nano_cores: Option<u64>,
    /// Free swap, if known.
    pub swap_free_bytes: Option<u64>,
    /// The interface of the default route.
    pub default_interface: Option<InterfaceName>,
    /// Existing threads, if known.
    pub threads: Option<u64>,
    /// Block devices, without partitions, loop devices and RAM disks.
    pub disks: Vec<Disk>,
    /// Load averages over 1, 5 and 15 minutes.
    pub load: [f64; 3],
    /// The last read failed: the numbers are those of the read before.
    pub stale: bool,
}

impl Node {
    /// A machine of which nothing could be read yet.
    pub(crate) fn unknown(moment: Moment) -> Self {
        Self {
            sample: Sample::empty(moment),
            usage_nano_cores: None,
            swap_free_bytes: None,
            default_interface: None,
            threads: None,
            disks: Vec::new(),
            load: [0.0; 3],
            stale: true,
        }
    }
}

/// Properties that do not change while the machine runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// Boot time of the kernel.
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
    /// Maximal number of process ids, if known.
    pub max_pids: Option<u64>,
    /// Id of this boot.
    pub boot_id: String,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// UUID of the firmware.
    pub system_uuid: String,
    /// Release of the kernel.
    pub kernel_version: String,
    /// Name of the distribution.
    pub os_version: String,
    /// Vendor of the processor.
    pub vendor: String,
    /// Maximal clock rate of the first processor.
    pub frequency_khz: u64,
    /// Huge pages: size in KiB, and number of reserved pages.
    pub huge_pages: Vec<(u64, u64)>,
    /// Network devices, without those of containers and bridges.
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
    /// Speed in Mbit/s; 0 when unknown.
    pub speed: u64,
    /// MTU in bytes.
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
    /// Size in bytes.
    pub size: u64,
    /// I/O scheduler.
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
