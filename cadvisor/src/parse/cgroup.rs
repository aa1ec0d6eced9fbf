//! Where cgroups are: mount tables and `/proc/PID/cgroup`.

use std::path::{Component, Path, PathBuf};

use procfs::process::MountInfo;

use super::lines;

/// Which hierarchies the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One hierarchy per controller.
    V1,
    /// One hierarchy for all.
    V2,
    /// Controllers on v1, and a v2 hierarchy without controllers besides them.
    Hybrid,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    mount_point: PathBuf,
    /// The root of the mount within the hierarchy.
    root: String,
    /// Super-block options: on v1 the controllers' names are among them.
    options: Vec<String>,
}

/// All mounted hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) mode: Mode,
    v1: Vec<Hierarchy>,
    v2: Option<Hierarchy>,
}

/// Reads the layout from `mountinfo`. None when no cgroup file system is mounted.
pub(crate) fn layout(mountinfo: &str) -> Option<Layout> {
    let (mut v1, mut v2) = (Vec::new(), None);
    for mount in mountinfo.lines().filter_map(mount) {
        let mut options: Vec<String> = mount.super_options.into_keys().collect();
        options.sort_unstable();
        let hierarchy = Hierarchy { mount_point: mount.mount_point, root: mount.root, options };
        match mount.fs_type.as_str() {
            "cgroup" => v1.push(hierarchy),
            "cgroup2" if v2.is_none() => v2 = Some(hierarchy),
            _ => {}
        }
    }
    let controllers = v1.iter().any(|h| h.options.iter().any(|option| option == "memory" || option == "cpuacct"));
    let mode = match (controllers, v2.is_some()) {
        (true, true) => Mode::Hybrid,
        (true, false) => Mode::V1,
        (false, true) => Mode::V2,
        (false, false) => return None,
    };
    Some(Layout { mode, v1, v2 })
}

/// One row of a mount table. Rows that cannot be parsed are skipped.
fn mount(line: &str) -> Option<MountInfo> {
    // The parser insists on the separator and the fields after it; short rows give an error, not a panic.
    MountInfo::from_line(line).ok()
}

impl Layout {
    /// Directory of `path` in the hierarchy of a v1 controller.
    pub(crate) fn v1_dir(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let hierarchy = self.v1.iter().find(|h| h.options.iter().any(|option| option == controller))?;
        Some(hierarchy.dir(path))
    }

    /// Directory of `path` in the v2 hierarchy.
    pub(crate) fn v2_dir(&self, path: &str) -> Option<PathBuf> {
        self.v2.as_ref().map(|hierarchy| hierarchy.dir(path))
    }
}

impl Hierarchy {
    fn dir(&self, path: &str) -> PathBuf {
        let shown = path.strip_prefix(self.root.trim_end_matches('/')).unwrap_or(path);
        self.mount_point.join(shown.trim_start_matches('/'))
    }
}

/// Path of a process in the hierarchy of a controller (v1) or in the unified one (`""`).
pub(crate) fn path_of<'a>(proc_cgroup: &'a [u8], controller: &str) -> Option<&'a str> {
    lines(proc_cgroup).find_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = if controller.is_empty() {
            id == b"0" && controllers.is_empty()
        } else {
            controllers.split(|byte| *byte == b',').any(|name| name == controller.as_bytes())
        };
        found.then(|| std::str::from_utf8(path).ok()).flatten()
    })
}

/// The path up to the element with the container's id: its processes may be in cgroups below it. `None` when there is
/// no such element, so the process is not (or no longer) the container's.
pub(crate) fn cut_at<'a>(path: &'a str, container_id: &str) -> Option<&'a str> {
    let at = path.find(container_id).filter(|_| !container_id.is_empty())?;
    let end = path.get(at..)?.find('/').map_or(path.len(), |slash| at + slash);
    path.get(..end)
}

/// The parent path when its last element belongs to the pod: `pod<uid>`, or with `_` for `-` in a slice's name.
pub(crate) fn pod_of<'a>(path: &'a str, pod_uid: &str) -> Option<&'a str> {
    let (parent, _) = path.rsplit_once('/')?;
    let (_, last) = parent.rsplit_once('/')?;
    let named = !pod_uid.is_empty()
        && (last.strip_prefix("pod") == Some(pod_uid)
            || last.ends_with(&format!("-pod{}.slice", pod_uid.replace('-', "_"))));
    named.then_some(parent)
}

/// Where the images are of which a container's writable layer is: above containerd's snapshotters with its image store;
/// `None` for Docker's own.
pub(crate) fn containerd_root(upper: &Path) -> Option<PathBuf> {
    let snapshotter = |dir: &&Path| {
        dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("io.containerd.snapshotter."))
    };
    Some(upper.ancestors().find(snapshotter)?.parent()?.to_owned())
}

/// The writable layer of the overlay that is mounted on `/`; relative ones are Docker's short form below its driver's
/// home.
pub(crate) fn upper_dir(mountinfo: &str, overlay_home: Option<&Path>) -> Option<PathBuf> {
    let root = mountinfo
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some("/") && line.contains(" - overlay "))
        .filter_map(mount)
        .next_back()?;
    let upper = PathBuf::from(root.super_options.get("upperdir")?.as_deref()?);
    let safe = upper.components().all(|part| part != Component::ParentDir);
    match overlay_home {
        _ if !safe => None,
        _ if upper.is_absolute() => Some(upper),
        home => Some(home?.join(upper)),
    }
}
