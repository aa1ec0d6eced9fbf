//! Reads the eviction signals from the machine; `state` evaluates them.

use std::{collections::BTreeMap, fs, path::Path};

use nix::sys::statvfs::statvfs;

use super::thresholds::Signal;

/// Capacity and available amount of one signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Observation {
    /// Available; bytes, inodes or processes.
    pub(super) available: i64,
    /// Capacity.
    pub(super) capacity: i64,
}

/// The observation of each signal; one that could not be read is absent.
pub(super) type Observations = BTreeMap<Signal, Observation>;

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Memory capacity, and available memory: free pages and inactive file pages. Upstream's arithmetic for the root cgroup
/// of cgroups v2, which is the same machine on v1.
pub(super) fn memory(meminfo: &procfs::Meminfo) -> Observation {
    let idle = meminfo.mem_free.saturating_add(meminfo.inactive_file.unwrap_or(0)).min(meminfo.mem_total);
    Observation { available: number(idle), capacity: number(meminfo.mem_total) }
}

/// Reads memory only: cheap enough for every second.
pub(super) fn read_memory() -> Option<Observation> {
    use procfs::Current as _;
    procfs::Meminfo::current().ok().map(|m| memory(&m))
}

/// Bytes and inodes of the file system of a directory. A dead network file system can hang this.
fn fs_space(path: &Path) -> Option<(Observation, Observation)> {
    let there = path.ancestors().find(|p| p.exists())?;
    let found = statvfs(there).ok()?;
    let bytes = |blocks: u64| number(blocks.saturating_mul(found.fragment_size()));
    Some((
        Observation { available: bytes(found.blocks_available()), capacity: bytes(found.blocks()) },
        Observation { available: number(found.files_available()), capacity: number(found.files()) },
    ))
}

/// Free process ids: `loadavg` is the text of `/proc/loadavg`, whose fourth word ends in the number of processes.
fn pids(loadavg: &str, max: i64) -> Option<Observation> {
    let running: i64 = loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
    Some(Observation { available: max.saturating_sub(running), capacity: max })
}

/// Reads all signals but the pods' memory. Blocking.
pub(super) fn read(node_dir: &Path, image_dir: &Path) -> Observations {
    let mut all = BTreeMap::new();
    all.extend(read_memory().map(|memory| (Signal::Memory, memory)));
    for (dir, bytes, inodes) in
        [(node_dir, Signal::NodeFs, Signal::NodeFsInodes), (image_dir, Signal::ImageFs, Signal::ImageFsInodes)]
    {
        if let Some((space, files)) = fs_space(dir) {
            all.insert(bytes, space);
            // Some file systems allocate inodes dynamically.
            all.extend((files.capacity > 0).then_some((inodes, files)));
        }
    }
    let limit = |name: &str| -> Option<i64> {
        fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
    };
    let max = limit("pid_max").into_iter().chain(limit("threads-max")).min();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.extend(max.and_then(|max| pids(&load, max)).map(|found| (Signal::Pid, found)));
    all
}

/// The memory that all pods together have left of their limit.
pub(super) fn allocatable_memory(limit: i64, working_sets: impl Iterator<Item = u64>) -> Observation {
    let used = working_sets.fold(0, u64::saturating_add);
    Observation { available: limit.saturating_sub(number(used)), capacity: limit }
}

/// Whether two directories are on one file system; true if unknown.
pub(super) fn same_file_system(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path.ancestors().find(|p| p.exists())?).ok().map(|m| m.dev());
    match (device(a), device(b)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loadavg() {
        let found = pids("0.10 0.20 0.30 3/417 12345\n", 1000);
        assert_eq!(found, Some(Observation { available: 583, capacity: 1000 }));
        assert_eq!(pids("", 1000), None);
        assert_eq!(pids("0.1 0.2 0.3 many 1", 1000), None);
    }

    #[test]
    fn allocatable_memory_of_pods() {
        assert_eq!(allocatable_memory(100, [30, 50].into_iter()), Observation { available: 20, capacity: 100 });
        assert_eq!(allocatable_memory(100, [130].into_iter()).available, -30);
    }

    /// The machine that runs the tests has memory, a disk and processes.
    #[test]
    fn a_real_machine() {
        let dir = tempfile::tempdir().unwrap();
        let all = read(&dir.path().join("not/there/yet"), Path::new("/proc"));
        for signal in [Signal::Memory, Signal::NodeFs, Signal::Pid] {
            let seen = all[&signal];
            assert!(seen.available > 0 && seen.available <= seen.capacity, "{signal:?}: {seen:?}");
        }
        assert!(!all.contains_key(&Signal::ImageFsInodes), "procfs counts no inodes");
        assert!(!same_file_system(Path::new("/proc"), Path::new("/sys")));
        assert!(same_file_system(Path::new("/proc"), Path::new("/proc/self")));
    }
}
