//! Facts about the machine for the node's status, read from the host.

use std::{collections::BTreeMap, fs, path::Path};

use nix::sys::statvfs::statvfs;
use windlass_kit::{
    blocking::{DISK, LaneError},
    quantity::Quantity,
};

/// A snapshot of the machine's facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) cpus: i64,
    pub(super) memory_bytes: i64,
    pub(super) disk_bytes: i64,
    /// Bytes that are huge pages, by resource: `hugepages-2Mi`.
    pub(super) huge_pages: BTreeMap<String, i64>,
    pub(super) swap_bytes: i64,
    /// The host uses cgroup v1.
    pub(super) cgroup_v1: bool,
    pub(super) machine_id: String,
    pub(super) system_uuid: String,
    pub(super) boot_id: String,
    pub(super) kernel: String,
    pub(super) os_image: String,
}

impl Machine {
    /// [`Self::read`] for tasks: the disk may hang.
    ///
    /// # Errors
    /// When others hang there already: nothing is known of the machine then.
    pub(super) async fn read_on_lane(data_dir: &Path) -> Result<Self, LaneError> {
        let data_dir = data_dir.to_owned();
        DISK.call(move || Self::read(&data_dir)).await
    }

    pub(super) fn read(data_dir: &Path) -> Self {
        use procfs::Current as _;
        let memory = procfs::Meminfo::current().ok();
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let disk = statvfs(data_dir).ok();
        let blocks = |of: fn(&nix::sys::statvfs::Statvfs) -> u64| {
            disk.as_ref().map_or(0, |d| number(of(d).saturating_mul(d.fragment_size())))
        };
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        Self {
            cpus: online_cpus(&text("/sys/devices/system/cpu/online")).unwrap_or_else(available_cpus),
            memory_bytes: memory.as_ref().map_or(0, |m| number(m.mem_total)),
            disk_bytes: blocks(|d| d.blocks()),
            huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
            swap_bytes: memory.as_ref().map_or(0, |m| number(m.swap_total)),
            cgroup_v1: !Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            machine_id: text("/etc/machine-id"),
            system_uuid: text("/sys/class/dmi/id/product_uuid"),
            boot_id: boot_id(),
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image: os_name(&release),
        }
    }
}

impl Machine {
    /// Whether the kernel can keep a tmpfs out of swap, which is new in 6.3. A version that cannot be read is an older one.
    pub(super) fn has_tmpfs_noswap(&self) -> bool {
        let mut parts = self.kernel.split(['.', '-']).map(|part| part.parse::<u32>().ok());
        matches!((parts.next().flatten(), parts.next().flatten()), (Some(major), Some(minor)) if (major, minor) >= (6, 3))
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default()
}

/// The kernel's boot id: unlike other identifiers of a machine it is not copied with its disk.
#[must_use]
pub fn boot_id() -> String {
    text("/proc/sys/kernel/random/boot_id")
}

/// How many CPUs are online, of a list such as `0-3,8`. The machine's, whatever the agent's own unit may use of them:
/// pods are not in it.
fn online_cpus(list: &str) -> Option<i64> {
    let one = |range: &str| -> Option<i64> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (i64, i64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last).then_some(last - first + 1)
    };
    list.split(',').map(one).sum()
}

/// The CPUs that this process may use, where the kernel shows no list.
fn available_cpus() -> i64 {
    std::thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(1))
}

/// Reads `hugepages-2048kB/nr_hugepages` and the like below `dir`.
fn huge_pages(dir: &Path) -> BTreeMap<String, i64> {
    let one = |entry: fs::DirEntry| -> Option<(String, i64)> {
        let name = entry.file_name();
        let kib: i64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages: i64 = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        let bytes = kib.checked_mul(1024)?;
        Some((format!("hugepages-{}", Quantity::from_bytes(bytes)), bytes.saturating_mul(pages)))
    };
    fs::read_dir(dir).into_iter().flatten().flatten().filter_map(one).collect()
}

fn os_name(release: &str) -> String {
    let line = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    line.map(|l| l.trim_matches('"').to_owned()).unwrap_or_else(|| "Linux".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_keep_memory_out_of_swap() {
        for (kernel, can) in [
            ("6.3.0", true),
            ("6.12.1-1-default", true),
            ("7.0", true),
            ("6.1.0-9-amd64", false),
            ("5.15.0", false),
            ("", false),
        ] {
            let machine = Machine { kernel: kernel.to_owned(), ..Machine::default() };
            assert_eq!(machine.has_tmpfs_noswap(), can, "{kernel}");
        }
    }

    #[test]
    fn cpus_that_are_online() {
        for (list, cpus) in [("0", Some(1)), ("0-63\n", Some(64)), ("0-1,4,6-7", Some(5)), ("", None), ("3-1", None)] {
            assert_eq!(online_cpus(list), cpus, "{list:?}");
        }
    }

    #[test]
    fn huge_pages_by_their_size() {
        let dir = tempfile::tempdir().unwrap();
        for (size, pages) in [("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "0\n"), ("else", "1")] {
            fs::create_dir(dir.path().join(size)).unwrap();
            fs::write(dir.path().join(size).join("nr_hugepages"), pages).unwrap();
        }
        let wanted = [("hugepages-1Gi".to_owned(), 0), ("hugepages-2Mi".to_owned(), 6 << 20)];
        assert_eq!(huge_pages(dir.path()), wanted.into());
        assert!(huge_pages(Path::new("/nowhere")).is_empty());
    }
}
