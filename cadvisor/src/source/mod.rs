//! The only module that accesses `/proc`, `/sys` and containers' directories. Thin: reads bytes into reused buffers and
//! passes them to `parse`. No state beyond open files; may not import tokio.

mod cached_file;
mod cgroup_v1;
mod cgroup_v2;
mod container;
mod disk;
mod kernel_log;
mod node;
mod node_signals;
mod pressure;
mod processes;
mod system_daemons;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

pub(crate) use cached_file::Buffer;
use cached_file::CachedFile;
pub(crate) use container::ContainerFiles;
#[cfg(test)]
use disk::walk;
pub(crate) use disk::{is_mount, layers, logs, pod_files, space, tree};
pub use kernel_log::KernelLog;
pub(crate) use node::{MachineFiles, Totals, block_device_name, machine};
pub use node_signals::{Capacity, NodeSignals};
pub(crate) use processes::processes;
pub(crate) use system_daemons::{cgroup_of, daemon, daemon_pid, parent_pid};

use crate::{
    model::{BlockDevice, Memory},
    parse::{
        self,
        cgroup::{Layout, Mode, layout},
    },
};

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The container or its cgroup was removed, which is normal: its row is dropped.
    #[error("cgroup of container {container} was removed")]
    Removed {
        /// Its id.
        container: String,
    },
    /// The process is not in a cgroup named after the container: it has ended, and its id was reused.
    #[error(
        "process {pid} is not in a cgroup of container {container}: it has ended, or the engine names cgroups differently"
    )]
    NotInCgroup {
        /// The process id.
        pid: i32,
        /// The container's id.
        container: String,
    },
    /// No cgroup file system is mounted.
    #[error(
        "no cgroup file system is mounted according to {path}; mount cgroup2 (or the v1 controllers) on /sys/fs/cgroup"
    )]
    NoCgroups {
        /// The mount table.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        source: std::io::Error,
    },
}

/// Bytes of memory that a cgroup uses now, its page cache included, as the kernel's limit counts them; `None` where the
/// directory has no memory controller. Either version.
#[must_use]
pub fn memory_in_use(dir: &Path) -> Option<u64> {
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok();
    read("memory.current").or_else(|| read("memory.usage_in_bytes"))
}

/// Joins a path of the kernel or the caller with the configured root.
pub(crate) fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Finds the cgroup hierarchies of the machine.
pub(crate) fn cgroups(root: &Path) -> Result<Layout, SourceError> {
    let path = root.join("proc/self/mountinfo");
    let table = std::fs::read_to_string(&path).map_err(|source| SourceError::Read { path: path.clone(), source })?;
    layout(&table).ok_or(SourceError::NoCgroups { path })
}

/// Whether containers have memory in their cgroups. What cannot be read is not warned of.
pub(crate) fn has_memory_controller(root: &Path, layout: &Layout) -> bool {
    if layout.mode != Mode::V2 {
        return layout.v1_dir("memory", "/").is_some();
    }
    let controllers = layout.v2_dir("/").map(|dir| under(root, &dir).join("cgroup.controllers"));
    let Some(Ok(controllers)) = controllers.map(std::fs::read_to_string) else { return true };
    controllers.split_ascii_whitespace().any(|controller| controller == "memory")
}

/// The counters that are not read at each housekeeping, and what decides which files are.
#[derive(Debug, Default, Clone, Copy)]
struct SlowFiles {
    /// `None` where the kernel has no such counter.
    max_usage_bytes: Option<u64>,
    limit_hits: u64,
    kernel_bytes: u64,
    /// There is a CPU quota, so that the cgroup may be throttled.
    has_quota: bool,
    /// There is a memory limit, so that it may be hit.
    has_memory_limit: bool,
    /// The machine's OOM kills when those of the cgroup were read last (v1).
    machine_kills: Option<u64>,
}

/// The files that a memory controller has on any kernel.
#[derive(Debug)]
struct MemoryFiles {
    usage: CachedFile,
    stat: CachedFile,
}

impl MemoryFiles {
    /// The memory in use; the rest is read later.
    fn usage(&self, buffer: &mut Buffer) -> io::Result<Memory> {
        let usage_bytes = parse::number(self.usage.read(buffer)?).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Memory { usage_bytes, ..Memory::default() })
    }
}

/// Whether no bytes were transferred between two samples.
fn no_transfer(before: &[BlockDevice], now: &[BlockDevice]) -> bool {
    let bytes = |device: &BlockDevice| (device.major, device.minor, device.read_bytes, device.write_bytes);
    before.iter().map(bytes).eq(now.iter().map(bytes))
}

/// The page sizes that a directory has files of: `hugetlb.2MB.usage_in_bytes` → `2MB`.
fn huge_page_sizes(dir: &Path, end: &str) -> Vec<String> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut sizes: Vec<String> = names
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(end)?;
            (!size.contains('.')).then(|| size.to_owned())
        })
        .collect();
    sizes.sort_unstable();
    sizes
}
