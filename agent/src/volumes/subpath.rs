//! Mounts subPaths of volumes. A subPath is opened without leaving its volume and mounted by its descriptor, so that a
//! container that swaps a directory for a symlink meanwhile cannot redirect the mount.

use std::{
    fs,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{Mode, mkdirat},
};

use super::{call_pool::Call, mountinfo};

/// A subPath mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubPath<'a> {
    pub(crate) volume: &'a Path,
    /// Relative to the volume; empty for all of it.
    pub(crate) sub_path: &'a str,
    /// The mount point, created here.
    pub(crate) target: &'a Path,
    /// Recursively read-only.
    pub(crate) recursive_read_only: bool,
}

/// Mounts a subPath at its target, replacing an earlier mount.
///
/// # Errors
/// What leads out of the volume, or what the kernel refused.
pub(crate) fn mount_subpath(sub: &SubPath<'_>, call: &Call) -> Result<PathBuf, String> {
    let target = sub.target.to_owned();
    let failed = |what: &str, e: &dyn std::fmt::Display| {
        format!("subPath {:?} of {} could not be {what}: {e}", sub.sub_path, sub.volume.display())
    };
    let opened = open_subpath(sub.volume, sub.sub_path).map_err(|e| match e {
        Errno::EXDEV | Errno::ELOOP => format!("subPath {:?} leads out of its volume", sub.sub_path),
        e => failed("opened", &e),
    })?;
    let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let metadata = fs::metadata(&source).map_err(|e| failed("examined", &e))?;
    // The calls above may have hung: the pod may be deleted by now.
    call.check_cancelled()?;
    if mountinfo::is_mounted(&target) {
        umount2(&target, MntFlags::MNT_DETACH).map_err(|e| failed("remounted", &e))?;
    }
    make_target(&target, metadata.is_dir()).map_err(|e| failed("given a mount point", &e))?;
    let depth = if sub.recursive_read_only { MsFlags::MS_REC } else { MsFlags::empty() };
    let none: Option<&str> = None;
    mount(Some(source.as_str()), &target, none, MsFlags::MS_BIND | depth, none).map_err(|e| failed("mounted", &e))?;
    if let Err(cancelled) = call.check_cancelled() {
        let _ = umount2(&target, MntFlags::MNT_DETACH);
        return Err(cancelled);
    }
    if sub.recursive_read_only {
        make_read_only(&target).map_err(|e| failed("made read-only", &e))?;
    }
    Ok(target)
}

/// Maximum size of an environment file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads a file in a volume; `None` if it does not exist.
///
/// # Errors
/// What leads out of the volume, or why the file cannot be read.
pub(crate) fn read_subpath_file(volume: &Path, path: &str) -> Result<Option<String>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{path:?} of {} could not be read: {why}", volume.display());
    let root = open(volume, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(|e| failed(&e))?;
    let opened = match beneath(root.as_fd(), path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
        Err(Errno::EXDEV | Errno::ELOOP) => return Err(failed(&"it leads out of its volume")),
        opened => opened.map_err(|e| failed(&e))?,
    };
    let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let metadata = fs::metadata(&source).map_err(|e| failed(&e))?;
    // Reading a pipe or a device could block for ever.
    if !metadata.is_file() {
        return Err(failed(&"it is not a file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(failed(&format_args!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    let mut text = String::new();
    let file = fs::File::open(&source).map_err(|e| failed(&e))?;
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|e| failed(&e))?;
    Ok(Some(text))
}

fn make_target(target: &Path, folder: bool) -> io::Result<()> {
    if folder {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::OpenOptions::new().create(true).append(true).open(target).map(drop)
}

/// Opens a subPath, creating missing directories with the mode of the volume.
fn open_subpath(volume: &Path, sub_path: &str) -> Result<OwnedFd, Errno> {
    let root = open(volume, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    if sub_path.is_empty() {
        return Ok(root);
    }
    match beneath(root.as_fd(), sub_path) {
        Err(Errno::ENOENT) => {}
        found => return found,
    }
    let mode = fs::metadata(volume).map_or(0o750, |m| m.mode() & 0o7777);
    let mut at = root;
    let mut done = PathBuf::new();
    for component in Path::new(sub_path).components() {
        let name = component.as_os_str();
        done.push(name);
        let text = name.to_string_lossy();
        at = match beneath(at.as_fd(), &text) {
            Err(Errno::ENOENT) => {
                match mkdirat(&at, name, Mode::from_bits_truncate(0o750)) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(e) => return Err(e),
                }
                let made = beneath(at.as_fd(), &text)?;
                // By the descriptor's /proc path: an O_PATH descriptor cannot be changed itself.
                let path = format!("/proc/self/fd/{}", made.as_raw_fd());
                let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode));
                made
            }
            found => found?,
        };
    }
    Ok(at)
}

fn beneath(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(root, path, how)
}

/// Remounts a mount and all mounts below it read-only.
fn make_read_only(target: &Path) -> Result<(), String> {
    for mounted in mountinfo::mounts_at(target).map_err(|e| e.to_string())? {
        // Existing restrictions are kept.
        let locked_flags = mounted.options.split(',').fold(MsFlags::empty(), |flags, option| {
            flags
                | match option {
                    "nosuid" => MsFlags::MS_NOSUID,
                    "nodev" => MsFlags::MS_NODEV,
                    "noexec" => MsFlags::MS_NOEXEC,
                    "noatime" => MsFlags::MS_NOATIME,
                    _ => MsFlags::empty(),
                }
        });
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | locked_flags;
        let none: Option<&str> = None;
        mount(none, &mounted.at, none, flags, none).map_err(|e| format!("{}: {e}", mounted.at.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_made_with_its_volumes_mode() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        drop(open_subpath(dir.path(), "a/b").unwrap());
        let mode = fs::metadata(dir.path().join("a/b")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o777);
    }

    #[test]
    fn nothing_leads_out_of_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        fs::create_dir_all(volume.join("inside")).unwrap();
        fs::create_dir(dir.path().join("secret")).unwrap();
        for (name, target) in
            [("up", "../secret"), ("absolute", "/etc"), ("deep", "inside/../../secret"), ("fine", "inside")]
        {
            std::os::unix::fs::symlink(target, volume.join(name)).unwrap();
        }
        for path in ["up", "absolute", "deep", "../secret", "up/x"] {
            assert!(open_subpath(&volume, path).is_err(), "{path}");
        }
        assert!(open_subpath(&volume, "fine").is_ok());
        fs::write(dir.path().join("secret/env"), "A=1").unwrap();
        fs::write(volume.join("inside/env"), "A=2").unwrap();
        nix::unistd::mkfifo(&volume.join("pipe"), Mode::S_IRWXU).unwrap();
        for path in ["up/env", "../secret/env", "deep/env", "pipe", "inside"] {
            assert!(read_subpath_file(&volume, path).is_err(), "{path}");
        }
        assert_eq!(read_subpath_file(&volume, "fine/env"), Ok(Some("A=2".to_owned())));
        assert_eq!(
            (read_subpath_file(&volume, "none"), read_subpath_file(&volume, "inside/env/x")),
            (Ok(None), Ok(None))
        );
        assert!(!dir.path().join("secret/x").exists(), "nothing is made outside");
    }
}
