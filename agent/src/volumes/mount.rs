//! Creates and mounts volumes on the host: directories, tmpfs, huge pages, host paths; and sets their ownership.

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

use super::{dirfd, mountinfo::is_mounted};

/// Creates a directory with its parents; an existing one is unchanged.
pub(super) fn make_dir(dir: &Path) -> Result<(), String> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(dir);
    made.map_err(|e| format!("{} could not be made: {e}", dir.display()))
}

/// Sets the mode of a volume's directory, regardless of the umask.
pub(super) fn set_mode(dir: &Path, mode: u32) -> Result<(), String> {
    let opened = dirfd::open_root(dir).and_then(|fd| Ok(rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))?));
    opened.map_err(|e| format!("the mode of {} could not be set: {e}", dir.display()))
}

/// Mounts a tmpfs of at most `size` bytes; idempotent.
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
    // Secrets must not be swapped; kernels before 6.3 do not have `noswap`.
    try_mount(&format!("{options},noswap"))
        .or_else(|_| try_mount(&options))
        .map_err(|e| format!("tmpfs could not be mounted at {}: {e}", dir.display()))
}

/// Mounts huge pages, of the kernel's default size if none is given; idempotent.
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

/// Sets the group of a volume's directory (fsGroup).
pub(super) fn set_group(dir: &Path, group: Option<i64>) -> Result<(), String> {
    let Some(group) = group.and_then(|g| u32::try_from(g).ok()) else { return Ok(()) };
    let given = dirfd::open_root(dir).and_then(|fd| {
        rustix::fs::fchown(&fd, None, Some(Gid::from_raw(group)))?;
        Ok(rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o2777))?)
    });
    given.map_err(|e| format!("{} could not be given to group {group}: {e}", dir.display()))
}

/// Sets the group of a volume recursively (fsGroup), unless its root already has it and `on_root_mismatch`. Works on
/// descriptors: others may write to it, and symlinks that they swap in are not followed. `step` is called on the way.
pub(super) fn set_group_recursively(
    dir: &Path,
    group: Option<i64>,
    on_root_mismatch: bool,
    step: &dyn Fn(),
) -> Result<(), String> {
    let Some(group) = group.and_then(|g| u32::try_from(g).ok()) else { return Ok(()) };
    let failed =
        |path: &Path, e: io::Error| format!("{} could not be given to group {group}: {e}", dir.join(path).display());
    // The volume's own path may be a symlink.
    let root = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed(Path::new(""), e.into()))?;
    let top = fstat(&root).map_err(|e| failed(Path::new(""), e.into()))?;
    if on_root_mismatch && top.st_gid == group && top.st_mode & 0o2000 != 0 {
        return Ok(());
    }
    set_group_of(&root, group).map_err(|e| failed(Path::new(""), e.into()))?;
    let mut queue = vec![PathBuf::from(".")];
    while let Some(path) = queue.pop() {
        let at = match open_within(&root, &path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if was_swapped(error) => continue,
            opened => opened.map_err(|e| failed(&path, e.into()))?,
        };
        for name in dirfd::names(&at).map_err(|e| failed(&path, e))? {
            step();
            let path = path.join(&name);
            let is_dir = open_within(&at, Path::new(&name), OFlags::PATH).and_then(|found| set_group_of(&found, group));
            match is_dir {
                Ok(true) => queue.push(path),
                Ok(false) => {}
                Err(error) if was_swapped(error) => {}
                Err(error) => return Err(failed(&path, error.into())),
            }
        }
    }
    Ok(())
}

/// Opens an entry below a directory, on any mount, following no symlink; a symlink itself with `O_PATH`.
fn open_within(at: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(at, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), inside)
}

/// The entry was removed or replaced meanwhile.
fn was_swapped(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Sets the group of one entry; returns whether it is a directory.
fn set_group_of(found: &OwnedFd, group: u32) -> Result<bool, Errno> {
    let mode = fstat(found)?.st_mode;
    let kind = FileType::from_raw_mode(mode);
    chownat(found, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    if kind == FileType::Symlink {
        return Ok(false);
    }
    let is_dir = kind == FileType::Directory;
    let wanted = mode & 0o7777 | 0o660 | if is_dir { 0o2110 } else { 0 };
    // By the descriptor's /proc path: an O_PATH descriptor cannot be changed itself.
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::from_raw_mode(wanted))?;
    Ok(is_dir)
}

/// A hostPath, created or checked as its type requires.
pub(super) fn host_path(source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let path = PathBuf::from(&source.path);
    let kind = source.type_.as_deref().unwrap_or("");
    let there = fs::metadata(&path).ok();
    let is = |test: fn(&fs::FileType) -> bool| there.as_ref().is_some_and(|m| test(&m.file_type()));
    let matches_type = match kind {
        // Docker refuses to mount a missing path; containerd creates a directory, and so do we.
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
    let what = match kind {
        "DirectoryOrCreate" | "Directory" => "directory",
        "Socket" => "socket file",
        "CharDevice" => "character device",
        "BlockDevice" => "block device",
        _ => "file",
    };
    if matches_type { Ok(path) } else { Err(format!("hostPath type check failed: {} is not a {what}", path.display())) }
}

/// A block device of the host, by its canonical path.
pub(super) fn block_device(path: &Path) -> Result<PathBuf, String> {
    let failed = |why: &dyn std::fmt::Display| format!("the block device {} cannot be used: {why}", path.display());
    let device = fs::canonicalize(path).map_err(|e| failed(&e))?;
    let metadata = fs::metadata(&device).map_err(|e| failed(&e))?;
    if metadata.file_type().is_block_device() { Ok(device) } else { Err(failed(&"it is not a block device")) }
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
        set_group_recursively(&volume, Some(4242), true, &|| ()).unwrap();
        for (path, mode) in [("d", 0o2770), ("d/f", 0o660)] {
            let metadata = fs::metadata(volume.join(path)).unwrap();
            assert_eq!((metadata.gid(), metadata.mode() & mode), (4242, mode), "{path}");
        }
        let outside = fs::metadata(dir.path().join("outside")).unwrap();
        assert_eq!((outside.gid() == 4242, outside.mode() & 0o777), (false, 0o600));
        // Once the top is the group's, what is below is left alone where that was asked for.
        fs::write(volume.join("d/new"), "").unwrap();
        lchown(volume.join("d/new"), None, Some(0)).unwrap();
        set_group_recursively(&volume, Some(4242), true, &|| ()).unwrap();
        assert_eq!(fs::metadata(volume.join("d/new")).unwrap().gid(), 0);
        set_group_recursively(&volume, Some(4242), false, &|| ()).unwrap();
        assert_eq!(fs::metadata(volume.join("d/new")).unwrap().gid(), 4242);
    }
}
