//! Writes the files of a volume atomically, as upstream's AtomicWriter: a new timestamped directory, and a symlink that
//! is swapped to it.
//!
//! Containers mount these volumes read-only. Even so, nothing in the directory is trusted: every step works on
//! descriptors ([`dirfd`]), so that nothing outside the volume is ever read, written or removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, fchmod, fstat, mkdirat, readlinkat, renameat, symlinkat, unlinkat},
    io::Errno,
};

use super::dirfd;

/// Files by their path in the volume.
pub type VolumeFiles = BTreeMap<String, VolumeFile>;

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Its content.
    pub bytes: Vec<u8>,
    /// Its mode.
    pub mode: u32,
    /// Its owner, if not root.
    pub owner: Option<u32>,
}

const DATA_LINK: &str = "..data";
const NEW_DATA_LINK: &str = "..data_tmp";
/// Containers only read.
const DIR_MODE: Mode = Mode::from_raw_mode(0o755);

/// Makes `dir` contain exactly `payload`; unchanged files are not written again. What a crash has left of an earlier
/// write is removed.
///
/// # Errors
/// When something cannot be written or removed: then the volume is unchanged.
pub fn write(dir: &Path, payload: &VolumeFiles, group: Option<i64>) -> io::Result<()> {
    let root = dirfd::open_root(dir)?;
    if Mode::from_raw_mode(fstat(&root)?.st_mode) != DIR_MODE {
        fchmod(&root, DIR_MODE)?;
    }
    let mut current = current(&root)?;
    if !current.as_deref().is_some_and(|name| is_up_to_date(&root, name, payload)) {
        let new_dir = write_timestamped_dir(&root, payload, group)?;
        swap_data_link(&root, &new_dir)?;
        current = Some(new_dir);
    }
    let wanted = top_level_names(payload);
    for top in &wanted {
        link_top_level(&root, top)?;
    }
    for name in dirfd::names(&root)? {
        let stale = if name.as_bytes().starts_with(b"..") {
            name == NEW_DATA_LINK || is_timestamped(&name) && current.as_ref() != Some(&name)
        } else {
            !name.to_str().is_some_and(|name| wanted.contains(name))
        };
        if stale {
            dirfd::remove(root.as_fd(), &name, &mut || ())?;
        }
    }
    Ok(())
}

/// The current timestamped directory, if the data link is one of ours.
fn current(root: &OwnedFd) -> io::Result<Option<OsString>> {
    match readlinkat(root, DATA_LINK, Vec::new()) {
        Ok(target) => Ok(Some(OsStr::from_bytes(target.to_bytes()).to_owned()).filter(|name| is_timestamped(name))),
        Err(Errno::NOENT) => Ok(None),
        // Something else has its name: a symlink cannot be renamed over a directory.
        Err(Errno::INVAL) => {
            dirfd::remove(root.as_fd(), OsStr::new(DATA_LINK), &mut || ())?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a name is one of [`write_timestamped_dir`]: two dots and digits.
fn is_timestamped(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(b"..").unwrap_or_default();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Writes all files into a new directory and returns its name.
fn write_timestamped_dir(root: &OwnedFd, payload: &VolumeFiles, group: Option<i64>) -> io::Result<OsString> {
    let group = group.and_then(|g| u32::try_from(g).ok());
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let name = OsString::from(format!("..{stamp}"));
    let new_dir = make_dir(root.as_fd(), &name)?;
    let written = payload.iter().try_for_each(|(path, file)| write_file(&new_dir, path, file, group));
    if let Err(error) = written {
        // Remove it, so that retries do not fill the disk.
        let _ = dirfd::remove(root.as_fd(), &name, &mut || ());
        return Err(error);
    }
    Ok(name)
}

fn make_dir(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    mkdirat(at, name, DIR_MODE)?;
    let made = dirfd::open_dir(at, name)?;
    // Regardless of the umask.
    fchmod(&made, DIR_MODE)?;
    Ok(made)
}

fn write_file(new_dir: &OwnedFd, path: &str, file: &VolumeFile, group: Option<u32>) -> io::Result<()> {
    let mut parts: Vec<&str> = path.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    let mut at = None;
    for part in parts {
        let parent = at.as_ref().unwrap_or(new_dir);
        let below = match dirfd::open_dir(parent, part) {
            Err(Errno::NOENT) => make_dir(parent.as_fd(), OsStr::new(part))?,
            opened => opened?,
        };
        at = Some(below);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut made = File::from(dirfd::beneath(at.as_ref().unwrap_or(new_dir), name, flags, Mode::RUSR | Mode::WUSR)?);
    made.write_all(&file.bytes)?;
    if group.is_some() || file.owner.is_some() {
        std::os::unix::fs::fchown(&made, file.owner, group)?;
    }
    // With an fsGroup the group may read what the owner may.
    let mode = if group.is_some() { file.mode | (file.mode & 0o400) >> 3 } else { file.mode };
    made.set_permissions(std::fs::Permissions::from_mode(mode))
}

/// Swaps the data link to another directory, atomically.
fn swap_data_link(root: &OwnedFd, name: &OsStr) -> io::Result<()> {
    dirfd::remove(root.as_fd(), OsStr::new(NEW_DATA_LINK), &mut || ())?;
    symlinkat(name, root, NEW_DATA_LINK)?;
    Ok(renameat(root, NEW_DATA_LINK, root, DATA_LINK)?)
}

/// Links a top-level name to the current directory.
fn link_top_level(root: &OwnedFd, top: &str) -> io::Result<()> {
    let target = format!("{DATA_LINK}/{top}");
    match readlinkat(root, top, Vec::new()) {
        Ok(there) if there.to_bytes() == target.as_bytes() => return Ok(()),
        Ok(_) => unlinkat(root, top, AtFlags::empty())?,
        Err(Errno::NOENT) => {}
        Err(_) => dirfd::remove(root.as_fd(), OsStr::new(top), &mut || ())?,
    }
    Ok(symlinkat(target, root, top)?)
}

/// The first components of the paths: the names that a reader sees in the volume.
fn top_level_names(payload: &VolumeFiles) -> BTreeSet<&str> {
    payload.keys().filter_map(|path| path.split('/').next()).collect()
}

/// Whether a directory has exactly these files.
fn is_up_to_date(root: &OwnedFd, name: &OsStr, payload: &VolumeFiles) -> bool {
    let Ok(shown) = dirfd::open_dir(root, name) else { return false };
    let same = |path: &String, file: &VolumeFile| {
        dirfd::read(&shown, path, file.bytes.len()).is_ok_and(|bytes| bytes == file.bytes)
    };
    let max_depth = payload.keys().map(|path| path.split('/').count()).max().unwrap_or(0);
    payload.iter().all(|(path, file)| same(path, file))
        && count_files(&shown, payload.len(), max_depth).is_ok_and(|files| files == payload.len())
}

/// Counts the files of a directory tree, up to `max_files` and a depth of `max_depth`.
fn count_files(at: &OwnedFd, max_files: usize, max_depth: usize) -> io::Result<usize> {
    let mut files = 0;
    for name in dirfd::names(at)? {
        match dirfd::open_dir(at, &name) {
            Ok(_) if max_depth <= 1 => return Err(io::Error::other("an unexpected directory")),
            Ok(below) => files += count_files(&below, max_files, max_depth - 1)?,
            Err(Errno::NOTDIR | Errno::LOOP) => files += 1,
            Err(error) => return Err(error.into()),
        }
        if files > max_files {
            break;
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
