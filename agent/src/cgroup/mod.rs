//! The cgroups of pods: their limits, and their removal, since Docker removes cgroups of containers and not their
//! parents.
//!
//! `limits` and `tree` are pure; `owner` knows what is wanted, and has it written: this module writes files of cgroupfs,
//! `systemd` properties of slices. Imports nothing of
//! `pods` and `node`, which both use it.

mod kubepods;
pub(crate) mod limits;
mod systemd;
pub(crate) mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
};

use windlass_kit::objects::resources::Class;

pub(crate) use self::kubepods::Cgroups;
use self::limits::{HugePages, pod_cgroup};

const ROOT: &str = "/sys/fs/cgroup";
const KUBEPODS: [&str; 2] = ["kubepods", "kubepods.slice"];

/// The hierarchies of the machine: one with cgroup v2, one per controller with v1.
fn hierarchies(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    all.extend(fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir()));
    all
}

/// What Docker has no option for.
#[derive(Debug, Default)]
pub(crate) struct ContainerLimits {
    /// Huge pages.
    pub(crate) pages: HugePages,
    /// Bytes of swap besides the memory, with cgroup v2: Docker takes a limit of swap only together with one of memory.
    pub(crate) swap: i64,
    /// With cgroup v2, whether the OOM killer kills all processes of the container together.
    pub(crate) oom_group: bool,
}

/// Sets what Docker has no option for on one container of a pod, until when only its pod's limits apply.
pub(crate) fn apply_container_limits(parent: &str, id: &str, limits: &ContainerLimits) {
    apply_container_limits_below(Path::new(ROOT), parent, id, limits);
}

fn apply_container_limits_below(root: &Path, parent: &str, id: &str, limits: &ContainerLimits) {
    for (hierarchy, dir) in pod_dirs(root, parent) {
        for dir in [dir.join(id), dir.join(format!("docker-{id}.scope"))] {
            if has(&hierarchy, &dir, "hugetlb") {
                write_all(&dir, huge_pages(&dir, &limits.pages));
            }
            if is_v2(&dir) {
                let oom_group = ("memory.oom.group".to_owned(), u8::from(limits.oom_group).to_string());
                write_all(&dir, [oom_group, ("memory.swap.max".to_owned(), limits.swap.to_string())]);
            }
        }
    }
}

/// Whether a hierarchy of cgroup v1 has this controller in its name, as `cpu,cpuacct` has both.
fn names(hierarchy: &str, controller: &str) -> bool {
    hierarchy.split(',').any(|name| name == controller)
}

/// The version of the machine's cgroups.
pub(crate) fn version() -> u8 {
    if is_v2(Path::new(ROOT)) { 2 } else { 1 }
}

/// Whether a cgroup is one of v2, where a single hierarchy has all controllers.
fn is_v2(dir: &Path) -> bool {
    dir.join("cgroup.controllers").exists()
}

/// Whether a hierarchy may have this controller.
fn has(hierarchy: &str, dir: &Path, controller: &str) -> bool {
    names(hierarchy, controller) || is_v2(dir)
}

/// Whether a file exists and has another value. No limit of memory reads as a very large one with cgroup v1.
fn differs(path: &Path, value: &str) -> bool {
    let is_none = |text: &str| value == "-1" && text.parse::<i64>().is_ok_and(|bytes| bytes > 1 << 62);
    match fs::read_to_string(path) {
        Ok(text) => text.trim() != value && !is_none(text.trim()),
        Err(_) => path.exists(),
    }
}

fn write_all(dir: &Path, files: impl IntoIterator<Item = (String, String)>) {
    for (file, value) in files {
        let path = dir.join(file);
        if !differs(&path, &value) {
            continue;
        }
        if let Err(error) = fs::write(&path, &value) {
            tracing::warn!(file = %path.display(), value, %error, "failed to write cgroup limit; parent and child limits still apply");
        }
    }
}

/// The files that limit huge pages, for each page size of the kernel, with their values: 0 for a size that is not in
/// `pages`, as upstream has it. The names are those of cgroup v1 and of v2.
fn huge_pages(dir: &Path, pages: &HugePages) -> Vec<(String, String)> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut all: Vec<(String, String)> = files
        .filter_map(|file| {
            let size = file.strip_prefix("hugetlb.")?;
            let size = size.strip_suffix(".limit_in_bytes").or_else(|| size.strip_suffix(".max"))?;
            // Reservations have the same limit as usage.
            let size = size.strip_suffix(".rsvd").unwrap_or(size);
            let bytes = pages.get(size).copied().unwrap_or(0).max(0);
            Some((file.clone(), bytes.to_string()))
        })
        .collect();
    all.sort();
    all
}

/// The path of a cgroup within each hierarchy, from the name that Docker is given for it.
fn relative(parent: &str) -> String {
    if parent.ends_with(".slice") {
        // systemd nests slices by the components of their names.
        let stem = parent.trim_end_matches(".slice");
        let ends = stem.match_indices('-').map(|(at, _)| at).chain([stem.len()]);
        ends.map(|end| format!("{}.slice", &stem[..end])).collect::<Vec<_>>().join("/")
    } else {
        parent.trim_start_matches('/').to_owned()
    }
}

/// The directories of a cgroup, each with the name of its hierarchy.
fn pod_dirs(root: &Path, parent: &str) -> Vec<(String, PathBuf)> {
    let relative = relative(parent);
    hierarchies(root)
        .into_iter()
        .map(|h| (h.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(), h.join(&relative)))
        .filter(|(_, dir)| dir.is_dir())
        .collect()
}

/// Removes the cgroups of one pod where they are empty, whatever its QoS class and the cgroup driver were.
fn remove_pod(uid: &str) {
    let classes = [Class::Guaranteed, Class::Burstable, Class::BestEffort];
    let paths = classes.map(|class| [false, true].map(|systemd| relative(&pod_cgroup(class, uid, systemd))));
    classes.iter().for_each(|class| systemd::remove_drop_ins(&pod_cgroup(*class, uid, true)));
    for hierarchy in hierarchies(Path::new(ROOT)) {
        for path in paths.iter().flatten() {
            // Most do not exist, and one that is not empty stays.
            let _ = fs::remove_dir(hierarchy.join(path));
        }
    }
}

/// Removes every empty cgroup of pods, from the leaves up. One that has processes stays.
pub(crate) fn remove_all() {
    for hierarchy in hierarchies(Path::new(ROOT)) {
        for top in KUBEPODS {
            remove_empty(&hierarchy.join(top));
        }
    }
    systemd::remove_all_drop_ins();
}

fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_cgroup_is_found_in_each_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("cpu,cpuacct/kubepods/burstable/pod1")).unwrap();
        fs::create_dir_all(root.path().join("memory/kubepods.slice/kubepods-pod1.slice")).unwrap();
        fs::create_dir_all(root.path().join("pids")).unwrap();
        let names = |parent: &str| pod_dirs(root.path(), parent).into_iter().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(names("/kubepods/burstable/pod1"), ["cpu,cpuacct"]);
        assert_eq!(names("kubepods-pod1.slice"), ["memory"]);
        assert!(names("/kubepods/pod2").is_empty());
    }

    #[test]
    fn the_processes_of_a_container_are_killed_together_and_do_not_swap() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("kubepods/pod1");
        for dir in [pod.join("v2"), pod.join("docker-v2.scope"), pod.join("v1")] {
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("memory.oom.group"), "0\n").unwrap();
            fs::write(dir.join("memory.swap.max"), "max\n").unwrap();
        }
        for dir in ["v2", "docker-v2.scope"] {
            fs::write(pod.join(dir).join("cgroup.controllers"), "memory\n").unwrap();
        }
        // The single hierarchy of v2 is the root itself.
        let read = |dir: &str, file: &str| fs::read_to_string(pod.join(dir).join(file)).unwrap().trim().to_owned();
        let said = |dir: &str| (read(dir, "memory.oom.group"), read(dir, "memory.swap.max"));
        let set = |id: &str, swap: i64, oom_group: bool| {
            let limits = ContainerLimits { swap, oom_group, ..ContainerLimits::default() };
            apply_container_limits_below(root.path(), "/kubepods/pod1", id, &limits);
        };
        let wanted = |group: &str, swap: &str| (group.to_owned(), swap.to_owned());
        set("v2", 0, true);
        assert_eq!((said("v2"), said("docker-v2.scope")), (wanted("1", "0"), wanted("1", "0")));
        set("v2", 4096, false);
        assert_eq!(said("v2"), wanted("0", "4096"));
        set("v1", 0, true);
        assert_eq!(said("v1"), wanted("0", "max"), "no such files on v1");
    }

    #[test]
    fn huge_pages_in_the_files_of_each_version() {
        let dir = tempfile::tempdir().unwrap();
        for file in [
            "hugetlb.2MB.limit_in_bytes",
            "hugetlb.2MB.rsvd.limit_in_bytes",
            "hugetlb.2MB.usage_in_bytes",
            "hugetlb.1GB.max",
            "hugetlb.64KB.rsvd.max",
            "memory.max",
        ] {
            fs::write(dir.path().join(file), "9223372036854771712\n").unwrap();
        }
        let pages = HugePages::from([("2MB".to_owned(), 4 << 20), ("64KB".to_owned(), 65536)]);
        write_all(dir.path(), huge_pages(dir.path(), &pages));
        for (file, value) in [
            ("hugetlb.2MB.limit_in_bytes", "4194304"),
            ("hugetlb.2MB.rsvd.limit_in_bytes", "4194304"),
            ("hugetlb.1GB.max", "0"),
            ("hugetlb.64KB.rsvd.max", "65536"),
            ("hugetlb.2MB.usage_in_bytes", "9223372036854771712\n"),
            ("memory.max", "9223372036854771712\n"),
        ] {
            assert_eq!(fs::read_to_string(dir.path().join(file)).unwrap(), value, "{file}");
        }
        assert!(huge_pages(&dir.path().join("none"), &pages).is_empty());
    }
}
