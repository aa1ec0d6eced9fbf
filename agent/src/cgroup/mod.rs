//! The cgroups of pods: their limits, and their removal, since Docker removes cgroups of containers and not their
//! parents.
//!
//! `limits` is pure; this module writes files of cgroupfs, and `systemd` properties of slices. Imports nothing of
//! `pods` and `node`, which both use it.

pub(crate) mod limits;
mod systemd;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use windlass_kit::{objects::resources::Class, quantity::Quantity};

use self::limits::{CPU_PERIOD, HugePages, milli_cpu_to_shares, pod_cgroup, shares_to_weight};
use crate::engine::inspect::Limits;

const ROOT: &str = "/sys/fs/cgroup";
const KUBEPODS: [&str; 2] = ["kubepods", "kubepods.slice"];

/// The hierarchies of the machine: one with cgroup v2, one per controller with v1.
fn hierarchies(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    all.extend(fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir()));
    all
}

/// Sets the limits of a pod's cgroup, which `parent` names as Docker does: CPU and memory, huge pages, and the number
/// of processes and threads. Hierarchies where it does not exist are skipped; a value that the kernel refuses, such as
/// less memory than is in use, is logged and stays as it was.
pub(crate) async fn apply_pod_limits(parent: &str, limits: &Limits, pages: &HugePages, pids: Option<u32>) {
    for (hierarchy, dir) in pod_dirs(Path::new(ROOT), parent) {
        let mut wanted = owned(limit_files(&hierarchy, &dir, limits));
        if has(&hierarchy, &dir, "pids") {
            let max = pids.map_or_else(|| "max".to_owned(), |max| max.to_string());
            wanted.push(("pids.max".to_owned(), max));
        }
        apply(parent, &dir, wanted, systemd::properties(limits, Some(pids))).await;
        if has(&hierarchy, &dir, "hugetlb") {
            write_all(&dir, huge_pages(&dir, pages));
        }
    }
}

/// Sets the limits of a cgroup: through systemd where that owns it; else, and where systemd refuses, through its files.
async fn apply(parent: &str, dir: &Path, wanted: Vec<(String, String)>, properties: Vec<(&'static str, u64)>) {
    let slice = parent.trim_start_matches('/');
    if slice.ends_with(".slice") && is_v2(dir) && wanted.iter().any(|(file, value)| differs(&dir.join(file), value)) {
        match systemd::set(slice, properties).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(slice, %error, "failed to set limits of a slice through systemd; writing its cgroup files, until the next daemon-reload");
            }
        }
    }
    write_all(dir, wanted);
}

fn owned(files: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    files.into_iter().map(|(file, value)| (file.to_owned(), value)).collect()
}

/// Sets what Docker has no option for on one container of a pod: the limits of huge pages, until when only its pod's
/// apply, and with cgroup v2 `memory.oom.group`: whether the OOM killer kills all its processes together.
pub(crate) fn apply_container_limits(parent: &str, id: &str, pages: &HugePages, oom_group: bool) {
    apply_container_limits_below(Path::new(ROOT), parent, id, pages, oom_group);
}

fn apply_container_limits_below(root: &Path, parent: &str, id: &str, pages: &HugePages, oom_group: bool) {
    for (hierarchy, dir) in pod_dirs(root, parent) {
        for dir in [dir.join(id), dir.join(format!("docker-{id}.scope"))] {
            if has(&hierarchy, &dir, "hugetlb") {
                write_all(&dir, huge_pages(&dir, pages));
            }
            if is_v2(&dir) {
                write_all(&dir, [("memory.oom.group".to_owned(), u8::from(oom_group).to_string())]);
            }
        }
    }
}

/// Whether a hierarchy of cgroup v1 has this controller in its name, as `cpu,cpuacct` has both.
fn names(hierarchy: &str, controller: &str) -> bool {
    hierarchy.split(',').any(|name| name == controller)
}

/// Whether a cgroup is one of v2, where a single hierarchy has all controllers.
fn is_v2(dir: &Path) -> bool {
    dir.join("cgroup.controllers").exists()
}

/// Whether a hierarchy may have this controller.
fn has(hierarchy: &str, dir: &Path, controller: &str) -> bool {
    names(hierarchy, controller) || is_v2(dir)
}

/// Whether a file exists and has another value.
fn differs(path: &Path, value: &str) -> bool {
    match fs::read_to_string(path) {
        Ok(text) => text.trim() != value,
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

/// Sets the limits of the cgroup of all pods, `kubepods`, whichever driver creates it. Gives whether it exists yet.
pub(crate) async fn apply_kubepods_limits(amounts: &BTreeMap<String, Quantity>) -> bool {
    let of = |resource: &str| amounts.get(resource).copied();
    let limits = Limits {
        memory: of("memory").map_or(0, Quantity::units),
        cpu_shares: milli_cpu_to_shares(of("cpu").map_or(0, Quantity::milli)),
        cpu_quota: 0,
    };
    let mut found = false;
    for name in KUBEPODS {
        for (hierarchy, dir) in pod_dirs(Path::new(ROOT), name) {
            found |= dir.is_dir();
            let wanted = owned(limit_files(&hierarchy, &dir, &limits));
            apply(name, &dir, wanted, systemd::properties(&limits, None)).await;
        }
    }
    found
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

/// The files of one hierarchy that take CPU and memory limits, with their values.
fn limit_files(hierarchy: &str, dir: &Path, limits: &Limits) -> Vec<(&'static str, String)> {
    let or = |value: i64, none: &str| if value > 0 { value.to_string() } else { none.to_owned() };
    if is_v2(dir) {
        return vec![
            ("cpu.weight", shares_to_weight(limits.cpu_shares).to_string()),
            ("cpu.max", format!("{} {}", or(limits.cpu_quota, "max"), CPU_PERIOD)),
            ("memory.max", or(limits.memory, "max")),
        ];
    }
    let mut all = Vec::new();
    if names(hierarchy, "cpu") {
        all.push(("cpu.shares", limits.cpu_shares.to_string()));
        all.push(("cpu.cfs_quota_us", or(limits.cpu_quota, "-1")));
    }
    if names(hierarchy, "memory") {
        all.push(("memory.limit_in_bytes", or(limits.memory, "-1")));
    }
    all
}

/// Removes the cgroups of one pod where they are empty, whatever its QoS class and the cgroup driver were.
pub(crate) fn remove_pod(uid: &str) {
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

    const LIMITS: Limits = Limits { memory: 1 << 20, cpu_shares: 512, cpu_quota: 0 };

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
    fn the_processes_of_a_container_are_killed_together() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("kubepods/pod1");
        for dir in [pod.join("v2"), pod.join("docker-v2.scope"), pod.join("v1")] {
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("memory.oom.group"), "0\n").unwrap();
        }
        for dir in ["v2", "docker-v2.scope"] {
            fs::write(pod.join(dir).join("cgroup.controllers"), "memory\n").unwrap();
        }
        // The single hierarchy of v2 is the root itself.
        let said = |dir: &str| fs::read_to_string(pod.join(dir).join("memory.oom.group")).unwrap().trim().to_owned();
        apply_container_limits_below(root.path(), "/kubepods/pod1", "v2", &HugePages::new(), true);
        assert_eq!((said("v2"), said("docker-v2.scope")), ("1".to_owned(), "1".to_owned()));
        apply_container_limits_below(root.path(), "/kubepods/pod1", "v2", &HugePages::new(), false);
        assert_eq!(said("v2"), "0");
        apply_container_limits_below(root.path(), "/kubepods/pod1", "v1", &HugePages::new(), true);
        assert_eq!(said("v1"), "0", "no such file on v1");
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

    #[test]
    fn limits_in_the_words_of_each_version() {
        let dir = tempfile::tempdir().unwrap();
        let said = |hierarchy: &str| limit_files(hierarchy, dir.path(), &LIMITS);
        assert_eq!(said("cpu,cpuacct"), [("cpu.shares", "512".to_owned()), ("cpu.cfs_quota_us", "-1".to_owned())]);
        assert_eq!(said("memory"), [("memory.limit_in_bytes", "1048576".to_owned())]);
        assert!(said("pids").is_empty());
        fs::write(dir.path().join("cgroup.controllers"), "").unwrap();
        assert_eq!(
            said("unified"),
            [
                ("cpu.weight", "20".to_owned()),
                ("cpu.max", "max 100000".to_owned()),
                ("memory.max", "1048576".to_owned())
            ]
        );
    }
}
