//! Makes what volumes are on the host: folders, memory, paths that must be there, network file systems.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, lchown},
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, NFSVolumeSource};
use nix::mount::{MsFlags, mount};
use windlass_kit::quantity::Quantity;

use super::mounted::is_mounted;

/// How long mounting a network file system may take: a server that is away holds up nothing but its pod.
const NETWORK_MOUNT: Duration = Duration::from_secs(60);

pub(super) fn make_dir(dir: &Path, mode: u32) -> Result<(), String> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(dir)
        .map_err(|e| format!("{} could not be made: {e}", dir.display()))?;
    // What others may do there is promised to containers, whatever the process's umask.
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
        .map_err(|e| format!("{} could not be opened to the pod: {e}", dir.display()))
}

/// An empty folder; in memory, at most `most` bytes.
pub(super) fn empty_dir(dir: &Path, source: &EmptyDirVolumeSource, most: Option<i64>) -> Result<(), String> {
    // Who may do what in one that is there is the pod's own business by now.
    if !dir.exists() {
        make_dir(dir, 0o777)?;
    }
    let limit = source.size_limit.as_ref().and_then(|q| q.0.parse::<Quantity>().ok());
    let size = limit.map(Quantity::units).filter(|s| *s > 0).into_iter().chain(most).min();
    match source.medium.as_deref() {
        None | Some("") => Ok(()),
        Some("Memory") => mount_memory(dir, size),
        Some(medium) if medium == "HugePages" || medium.starts_with("HugePages-") => {
            mount_huge_pages(dir, medium.strip_prefix("HugePages-"), size)
        }
        Some(other) => Err(format!("the medium {other:?} is not supported; use Memory, HugePages, or none")),
    }
}

pub(super) fn mount_memory(dir: &Path, size: Option<i64>) -> Result<(), String> {
    if is_mounted(dir) {
        return Ok(());
    }
    let mut options = "mode=0777".to_owned();
    if let Some(size) = size {
        options.push_str(&format!(",size={size}"));
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let try_mount = |options: &str| mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some(options));
    // Secrets must not reach a swap device; kernels before 6.3 do not know the option.
    try_mount(&format!("{options},noswap"))
        .or_else(|_| try_mount(&options))
        .map_err(|e| format!("memory could not be mounted at {}: {e}", dir.display()))
}

/// Pages of the kernel's own size where none is named.
fn mount_huge_pages(dir: &Path, page: Option<&str>, size: Option<i64>) -> Result<(), String> {
    if is_mounted(dir) {
        return Ok(());
    }
    let mut options = "mode=0777".to_owned();
    if let Some(page) = page {
        let bytes = page.parse::<Quantity>().map_err(|_| format!("HugePages-{page} names no size of a page"))?;
        options.push_str(&format!(",pagesize={}", bytes.units()));
    }
    if let Some(size) = size {
        options.push_str(&format!(",size={size}"));
    }
    mount(Some("nodev"), dir, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|e| format!("huge pages could not be mounted at {}: {e}", dir.display()))
}

/// Gives one folder to the pod's group.
pub(super) fn give_group(dir: &Path, group: Option<i64>) -> Result<(), String> {
    let Some(group) = group.and_then(|g| u32::try_from(g).ok()) else { return Ok(()) };
    lchown(dir, None, Some(group))
        .map_err(|e| format!("{} could not be given to group {group}: {e}", dir.display()))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o2777)).map_err(|e| e.to_string())
}

/// Gives a volume with all that is in it to the pod's group, unless its top is already and `root_is_enough`.
pub(super) fn give_all_to_group(
    dir: &Path,
    group: Option<i64>,
    read_only: bool,
    root_is_enough: bool,
) -> Result<(), String> {
    let Some(group) = group.and_then(|g| u32::try_from(g).ok()) else { return Ok(()) };
    let failed = |path: &Path, e: io::Error| format!("{} could not be given to group {group}: {e}", path.display());
    let top = fs::symlink_metadata(dir).map_err(|e| failed(dir, e))?;
    if root_is_enough && top.gid() == group && top.mode() & 0o2000 != 0 {
        return Ok(());
    }
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let about = fs::symlink_metadata(&path).map_err(|e| failed(&path, e))?;
        lchown(&path, None, Some(group)).map_err(|e| failed(&path, e))?;
        if about.is_symlink() {
            continue;
        }
        let access = if read_only { 0o440 } else { 0o660 };
        let folder = if about.is_dir() { 0o2110 } else { 0 };
        let mode = about.mode() & 0o7777 | access | folder;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(|e| failed(&path, e))?;
        if about.is_dir() {
            for entry in fs::read_dir(&path).map_err(|e| failed(&path, e))? {
                open.push(entry.map_err(|e| failed(&path, e))?.path());
            }
        }
    }
    Ok(())
}

/// A path of the host, made or checked as its type says.
pub(super) fn host_path(source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let path = PathBuf::from(&source.path);
    let kind = source.type_.as_deref().unwrap_or("");
    let there = fs::metadata(&path).ok();
    let is = |test: fn(&fs::FileType) -> bool| there.as_ref().is_some_and(|m| test(&m.file_type()));
    let fine = match kind {
        // Docker refuses a mount of what is not there; containerd makes a folder of it, and so do we.
        "" | "DirectoryOrCreate" if there.is_none() => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .map_err(|e| format!("hostPath {} could not be made: {e}", path.display()))?;
            true
        }
        "" => true,
        "FileOrCreate" if there.is_none() => {
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(|e| format!("hostPath {} could not be made: {e}", path.display()))?;
            true
        }
        "DirectoryOrCreate" | "Directory" => is(fs::FileType::is_dir),
        "FileOrCreate" | "File" => is(fs::FileType::is_file),
        "Socket" => is(fs::FileType::is_socket),
        "CharDevice" => is(fs::FileType::is_char_device),
        "BlockDevice" => is(fs::FileType::is_block_device),
        other => return Err(format!("the type {other:?} of hostPath {} is not one of Kubernetes'", path.display())),
    };
    if fine { Ok(path) } else { Err(format!("hostPath type check failed: {} is not a {kind}", path.display())) }
}

/// A block device of the host, by its own name: what leads to it may be a link.
pub(super) fn block_device(path: &Path) -> Result<PathBuf, String> {
    let failed = |why: &dyn std::fmt::Display| format!("the block device {} cannot be used: {why}", path.display());
    let device = fs::canonicalize(path).map_err(|e| failed(&e))?;
    let about = fs::metadata(&device).map_err(|e| failed(&e))?;
    if about.file_type().is_block_device() { Ok(device) } else { Err(failed(&"it is not a block device")) }
}

/// Mounts a network file system with the host's own helper, which knows its versions and options.
pub(super) async fn mount_nfs(
    dir: &Path,
    source: &NFSVolumeSource,
    options: &[String],
    read_only: bool,
) -> Result<(), String> {
    if is_mounted(dir) {
        return Ok(());
    }
    let what = if source.server.contains(':') {
        format!("[{}]:{}", source.server, source.path)
    } else {
        format!("{}:{}", source.server, source.path)
    };
    let mut all = options.to_vec();
    all.push(if read_only { "ro" } else { "rw" }.to_owned());
    let mut command = tokio::process::Command::new("mount");
    command.args(["-t", "nfs", "-o", &all.join(","), &what]).arg(dir).kill_on_drop(true);
    let failed = |why: String| format!("nfs {what} could not be mounted: {why}");
    let output = tokio::time::timeout(NETWORK_MOUNT, command.output()).await;
    let output = output
        .map_err(|_| failed(format!("no answer within {} s", NETWORK_MOUNT.as_secs())))?
        .map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{} (it needs mount.nfs on this node: package nfs-common or nfs-utils)", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_are_made_or_checked() {
        let dir = tempfile::tempdir().unwrap();
        let source = |name: &str, kind: &str| HostPathVolumeSource {
            path: dir.path().join(name).to_string_lossy().into_owned(),
            type_: Some(kind.to_owned()),
        };
        assert!(host_path(&source("a/b", "")).unwrap().is_dir());
        assert!(host_path(&source("c", "DirectoryOrCreate")).unwrap().is_dir());
        assert!(host_path(&source("f", "FileOrCreate")).unwrap().is_file());
        for (name, kind) in
            [("none", "Directory"), ("f", "Directory"), ("c", "File"), ("f", "Socket"), ("c", "Nonsense")]
        {
            assert!(host_path(&source(name, kind)).is_err(), "{name} {kind}");
        }
    }

    #[test]
    fn only_a_block_device_is_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(block_device(&dir.path().join("none")).unwrap_err().contains("No such file"));
        for other in [dir.path(), Path::new("/dev/null")] {
            assert!(block_device(other).unwrap_err().contains("not a block device"));
        }
    }

    #[test]
    fn a_volume_is_given_whole_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        fs::create_dir_all(volume.join("d")).unwrap();
        fs::write(volume.join("d/f"), "").unwrap();
        fs::write(dir.path().join("outside"), "").unwrap();
        fs::set_permissions(dir.path().join("outside"), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("../outside", volume.join("link")).unwrap();
        give_all_to_group(&volume, Some(4242), false, true).unwrap();
        for (path, mode) in [("d", 0o2770), ("d/f", 0o660)] {
            let about = fs::metadata(volume.join(path)).unwrap();
            assert_eq!((about.gid(), about.mode() & mode), (4242, mode), "{path}");
        }
        let outside = fs::metadata(dir.path().join("outside")).unwrap();
        assert_eq!((outside.gid() == 4242, outside.mode() & 0o777), (false, 0o600));
        // Once the top is the group's, what is below is left alone where that was asked for.
        fs::write(volume.join("d/new"), "").unwrap();
        lchown(volume.join("d/new"), None, Some(0)).unwrap();
        give_all_to_group(&volume, Some(4242), false, true).unwrap();
        assert_eq!(fs::metadata(volume.join("d/new")).unwrap().gid(), 0);
        give_all_to_group(&volume, Some(4242), false, false).unwrap();
        assert_eq!(fs::metadata(volume.join("d/new")).unwrap().gid(), 4242);
    }
}
