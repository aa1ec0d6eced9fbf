//! What the node tells of its machine, read from the host.

use std::{collections::BTreeMap, fs, path::Path};

use nix::sys::statvfs::statvfs;

/// The machine at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) cpus: i64,
    pub(super) memory_bytes: i64,
    pub(super) memory_available_bytes: i64,
    /// Bytes of huge pages by the bytes of one page: every size that the kernel has.
    pub(super) huge_pages: BTreeMap<i64, i64>,
    pub(super) disk_bytes: i64,
    pub(super) disk_available_bytes: i64,
    pub(super) inodes: i64,
    pub(super) inodes_free: i64,
    pub(super) machine_id: String,
    pub(super) system_uuid: String,
    pub(super) boot_id: String,
    pub(super) kernel: String,
    pub(super) os_image: String,
}

impl Machine {
    pub(super) fn read(data_dir: &Path) -> Self {
        use procfs::Current as _;
        let memory = procfs::Meminfo::current().ok();
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let disk = statvfs(data_dir).ok();
        let blocks = |of: fn(&nix::sys::statvfs::Statvfs) -> u64| {
            disk.as_ref().map_or(0, |d| number(of(d).saturating_mul(d.fragment_size())))
        };
        let text = |path: &str| fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default();
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(1)),
            memory_bytes: memory.as_ref().map_or(0, |m| number(m.mem_total)),
            memory_available_bytes: memory.as_ref().and_then(|m| m.mem_available).map_or(0, number),
            huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
            disk_bytes: blocks(|d| d.blocks()),
            disk_available_bytes: blocks(|d| d.blocks_available()),
            inodes: disk.as_ref().map_or(0, |d| number(d.files())),
            inodes_free: disk.as_ref().map_or(0, |d| number(d.files_available())),
            machine_id: text("/etc/machine-id"),
            system_uuid: text("/sys/class/dmi/id/product_uuid"),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image: os_name(&release),
        }
    }
}

/// From folders such as `hugepages-2048kB`.
fn huge_pages(dir: &Path) -> BTreeMap<i64, i64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let kilobytes: i64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count: i64 = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
            let size = kilobytes.checked_mul(1024)?;
            Some((size, size.checked_mul(count)?))
        })
        .collect()
}

fn os_name(release: &str) -> String {
    let line = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    line.map(|l| l.trim_matches('"').to_owned()).unwrap_or_else(|| "Linux".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_of_each_size() {
        let dir = tempfile::tempdir().unwrap();
        for (name, count) in [("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "0\n"), ("other", "7")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        assert_eq!(huge_pages(dir.path()), BTreeMap::from([(2 << 20, 6 << 20), (1 << 30, 0)]));
    }
}
