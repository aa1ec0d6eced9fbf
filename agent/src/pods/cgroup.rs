//! Takes away the cgroups that pods leave: Docker removes those of containers, not their parents.

use std::{
    fs,
    path::{Path, PathBuf},
};

const ROOT: &str = "/sys/fs/cgroup";
const KUBEPODS: [&str; 2] = ["kubepods", "kubepods.slice"];

/// The hierarchies of the machine: one on v2, one for each controller on v1.
fn hierarchies(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    all.extend(fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir()));
    all
}

/// Removes the cgroups of one pod, where they are empty.
pub(crate) fn remove_pod(uid: &str) {
    let (plain, systemd) = (format!("pod{uid}"), format!("pod{}.slice", uid.replace('-', "_")));
    for hierarchy in hierarchies(Path::new(ROOT)) {
        for top in KUBEPODS {
            let top = hierarchy.join(top);
            if !top.is_dir() {
                continue;
            }
            let classes = fs::read_dir(&top).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir());
            for class in classes.chain([top.clone()]) {
                for entry in fs::read_dir(&class).into_iter().flatten().flatten() {
                    let name = entry.file_name();
                    let name = name.to_string_lossy();
                    if name == plain.as_str() || name.ends_with(&systemd) {
                        let _ = fs::remove_dir(entry.path());
                    }
                }
            }
        }
    }
}

/// Removes every cgroup of pods that is empty, from the leaves up. What still holds processes stays.
pub(crate) fn remove_all() {
    for hierarchy in hierarchies(Path::new(ROOT)) {
        for top in KUBEPODS {
            remove_empty(&hierarchy.join(top));
        }
    }
}

fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}
