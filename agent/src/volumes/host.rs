//! Makes what volumes are on the host: folders, memory, paths that must be there.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, FileTypeExt as _},
    },
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::HostPathVolumeSource;
use nix::mount::{MsFlags, mount};
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, chownat, fstat, openat, openat2},
    io::Errno,
};
use windlass_kit::quantity::Quantity;

use super::{mounted::is_mounted, tree};

/// Makes a folder, and those above it; one that is there stays as it is.
pub(super) fn make_dir(dir: &Path) -> Result<(), String> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(dir);
    made.map_err(|e| format!("{} could not be made: {e}", dir.display()))
}

/// Opens a folder of the node's own to a pod. What others may do there is promised to containers, whatever the process's
/// umask.
pub(super) fn open_to_pod(dir: &Path, mode: u32) -> Result<(), String> {
    let opened = tree::open(dir).and_then(|fd| Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?));
    opened.map_err(|e| format!("{} could not be opened to the pod: {e}", dir.display()))
}

/// Mounts memory, at most `size` bytes, unless it is there already.
pub(super) fn mount_memory(dir: &Path, size: Option<i64>, mode: u32) -> Result<(), String> {
    if is_mounted(dir) {
        return Ok(());
    }
    let mut options = format!("mode={mode:04o}");
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
pub(super) fn mount_huge_pages(dir: &Path, page: Option<&str>, size: Option<i64>) -> Result<(), String> {
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

/// Gives one folder of the node's own to the pod's group.
pub(super) fn give_group(dir: &Path, group: Option<i64>) -> Result<(), String> {
    let Some(group) = group.and_then(|g| u32::try_from(g).ok()) else { return Ok(()) };
    let given = tree::open(dir).and_then(|fd| {
        rustix::fs::fchown(&fd, None, Some(Gid::from_raw(group)))?;
        Ok(rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o2777))?)
    });
    given.map_err(|e| format!("{} could not be given to group {group}: {e}", dir.display()))
}

/// Gives a volume with all that is in it to the pod's group, unless its top is already and `root_is_enough`. By
/// descriptors: others may work in it, and what they swap for a link is not followed. `step` is called on the way.
pub(super) fn give_all_to_group(
    dir: &Path,
    group: Option<i64>,
    root_is_enough: bool,
    step: &dyn Fn(),
) -> Result<(), String> {
    let Some(group) = group.and_then(|g| u32::try_from(g).ok()) else { return Ok(()) };
    let failed =
        |path: &Path, e: io::Error| format!("{} could not be given to group {group}: {e}", dir.join(path).display());
    // What the volume's own path leads to is its owner's business.
    let root = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed(Path::new(""), e.into()))?;
    let top = fstat(&root).map_err(|e| failed(Path::new(""), e.into()))?;
    if root_is_enough && top.st_gid == group && top.st_mode & 0o2000 != 0 {
        return Ok(());
    }
    give(&root, group).map_err(|e| failed(Path::new(""), e.into()))?;
    let mut waiting = vec![PathBuf::from(".")];
    while let Some(path) = waiting.pop() {
        let at = match within(&root, &path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if was_swapped(error) => continue,
            opened => opened.map_err(|e| failed(&path, e.into()))?,
        };
        for name in tree::names(&at).map_err(|e| failed(&path, e))? {
            step();
            let path = path.join(&name);
            let is_folder = within(&at, Path::new(&name), OFlags::PATH).and_then(|found| give(&found, group));
            match is_folder {
                Ok(true) => waiting.push(path),
                Ok(false) => {}
                Err(error) if was_swapped(error) => {}
                Err(error) => return Err(failed(&path, error.into())),
            }
        }
    }
    Ok(())
}

/// Opens what is below a folder, on this mount or another, through no link; a link itself with `O_PATH`.
fn within(at: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(at, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), inside)
}

/// What was there a moment ago is gone, or something else.
fn was_swapped(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Gives one thing to the group, and says whether it is a folder.
fn give(found: &OwnedFd, group: u32) -> Result<bool, Errno> {
    let mode = fstat(found)?.st_mode;
    let kind = FileType::from_raw_mode(mode);
    chownat(found, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    if kind == FileType::Symlink {
        return Ok(false);
    }
    let is_folder = kind == FileType::Directory;
    let wanted = mode & 0o7777 | 0o660 | if is_folder { 0o2110 } else { 0 };
    // Through the descriptor's own path: one opened with O_PATH cannot be changed itself.
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::from_raw_mode(wanted))?;
    Ok(is_folder)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};

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
        give_all_to_group(&volume, Some(4242), true, &|| ()).unwrap();
        for (path, mode) in [("d", 0o2770), ("d/f", 0o660)] {
            let about = fs::metadata(volume.join(path)).unwrap();
            assert_eq!((about.gid(), about.mode() & mode), (4242, mode), "{path}");
        }
        let outside = fs::metadata(dir.path().join("outside")).unwrap();
        assert_eq!((outside.gid() == 4242, outside.mode() & 0o777), (false, 0o600));
        // Once the top is the group's, what is below is left alone where that was asked for.
        fs::write(volume.join("d/new"), "").unwrap();
        lchown(volume.join("d/new"), None, Some(0)).unwrap();
        give_all_to_group(&volume, Some(4242), true, &|| ()).unwrap();
        assert_eq!(fs::metadata(volume.join("d/new")).unwrap().gid(), 0);
        give_all_to_group(&volume, Some(4242), false, &|| ()).unwrap();
        assert_eq!(fs::metadata(volume.join("d/new")).unwrap().gid(), 4242);
    }
}
