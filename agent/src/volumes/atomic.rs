//! Writes the files of a volume so that readers see all of a change or nothing: a new folder, and one
//! link that is turned to it.
//!
//! Containers have these volumes read-only. All the same nothing in the folder is trusted here: every step goes by
//! descriptors ([`tree`]), so that whatever somebody has put there, nothing outside the volume is read, written
//! or removed.

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

use super::tree;

/// Files by their path in the volume.
pub type Payload = BTreeMap<String, PayloadFile>;

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// What is in it.
    pub bytes: Vec<u8>,
    /// Who may do what with it.
    pub mode: u32,
    /// Who owns it, where that is not root.
    pub owner: Option<u32>,
}

const CURRENT: &str = "..data";
const TURNED: &str = "..data_tmp";
/// Containers read what is in the volume and change nothing.
const FOLDER: Mode = Mode::from_raw_mode(0o755);

/// Makes `dir` show exactly `payload`; the files stay as they are when it does already. What a crash has left of an
/// earlier write goes.
///
/// # Errors
/// When something cannot be written or removed: the volume shows what it showed before.
pub fn write(dir: &Path, payload: &Payload, group: Option<i64>) -> io::Result<()> {
    let root = tree::open(dir)?;
    if Mode::from_raw_mode(fstat(&root)?.st_mode) != FOLDER {
        fchmod(&root, FOLDER)?;
    }
    let mut current = current(&root)?;
    if !current.as_deref().is_some_and(|name| shows(&root, name, payload)) {
        let fresh = write_fresh(&root, payload, group)?;
        turn(&root, &fresh)?;
        current = Some(fresh);
    }
    let wanted = tops(payload);
    for top in &wanted {
        link(&root, top)?;
    }
    for name in tree::names(&root)? {
        let stale = if name.as_bytes().starts_with(b"..") {
            name == TURNED || is_stamp(&name) && current.as_ref() != Some(&name)
        } else {
            !name.to_str().is_some_and(|name| wanted.contains(name))
        };
        if stale {
            tree::remove(root.as_fd(), &name, &mut || ())?;
        }
    }
    Ok(())
}

/// The folder that is shown now, if the link to it is one of ours.
fn current(root: &OwnedFd) -> io::Result<Option<OsString>> {
    match readlinkat(root, CURRENT, Vec::new()) {
        Ok(target) => Ok(Some(OsStr::from_bytes(target.to_bytes()).to_owned()).filter(|name| is_stamp(name))),
        Err(Errno::NOENT) => Ok(None),
        // Something else has its name: a link cannot be renamed over a folder.
        Err(Errno::INVAL) => {
            tree::remove(root.as_fd(), OsStr::new(CURRENT), &mut || ())?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a name is one that [`write_fresh`] gives: two dots and digits.
fn is_stamp(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(b"..").unwrap_or_default();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Writes all files into a new folder and gives its name.
fn write_fresh(root: &OwnedFd, payload: &Payload, group: Option<i64>) -> io::Result<OsString> {
    let group = group.and_then(|g| u32::try_from(g).ok());
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let name = OsString::from(format!("..{stamp}"));
    let fresh = make_folder(root.as_fd(), &name)?;
    let written = payload.iter().try_for_each(|(path, file)| write_file(&fresh, path, file, group));
    if let Err(error) = written {
        // A full disk is not made fuller by each try.
        let _ = tree::remove(root.as_fd(), &name, &mut || ());
        return Err(error);
    }
    Ok(name)
}

fn make_folder(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    mkdirat(at, name, FOLDER)?;
    let made = tree::folder(at, name)?;
    // Whatever the process's umask.
    fchmod(&made, FOLDER)?;
    Ok(made)
}

fn write_file(fresh: &OwnedFd, path: &str, file: &PayloadFile, group: Option<u32>) -> io::Result<()> {
    let mut parts: Vec<&str> = path.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    let mut at = None;
    for part in parts {
        let parent = at.as_ref().unwrap_or(fresh);
        let below = match tree::folder(parent, part) {
            Err(Errno::NOENT) => make_folder(parent.as_fd(), OsStr::new(part))?,
            opened => opened?,
        };
        at = Some(below);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut made = File::from(tree::beneath(at.as_ref().unwrap_or(fresh), name, flags, Mode::RUSR | Mode::WUSR)?);
    made.write_all(&file.bytes)?;
    if group.is_some() || file.owner.is_some() {
        std::os::unix::fs::fchown(&made, file.owner, group)?;
    }
    // A group that the pod asked for may read what its owner may.
    let mode = if group.is_some() { file.mode | (file.mode & 0o400) >> 3 } else { file.mode };
    made.set_permissions(std::fs::Permissions::from_mode(mode))
}

/// Shows another folder, in one step.
fn turn(root: &OwnedFd, name: &OsStr) -> io::Result<()> {
    tree::remove(root.as_fd(), OsStr::new(TURNED), &mut || ())?;
    symlinkat(name, root, TURNED)?;
    Ok(renameat(root, TURNED, root, CURRENT)?)
}

/// The name that readers know, as a link to what is shown now.
fn link(root: &OwnedFd, top: &str) -> io::Result<()> {
    let target = format!("{CURRENT}/{top}");
    match readlinkat(root, top, Vec::new()) {
        Ok(there) if there.to_bytes() == target.as_bytes() => return Ok(()),
        Ok(_) => unlinkat(root, top, AtFlags::empty())?,
        Err(Errno::NOENT) => {}
        Err(_) => tree::remove(root.as_fd(), OsStr::new(top), &mut || ())?,
    }
    Ok(symlinkat(target, root, top)?)
}

/// The first parts of the paths: what a reader sees in the volume.
fn tops(payload: &Payload) -> BTreeSet<&str> {
    payload.keys().filter_map(|path| path.split('/').next()).collect()
}

/// Whether a folder has these files and no others.
fn shows(root: &OwnedFd, name: &OsStr, payload: &Payload) -> bool {
    let Ok(shown) = tree::folder(root, name) else { return false };
    let same = |path: &String, file: &PayloadFile| {
        tree::read(&shown, path, file.bytes.len()).is_ok_and(|bytes| bytes == file.bytes)
    };
    let deepest = payload.keys().map(|path| path.split('/').count()).max().unwrap_or(0);
    payload.iter().all(|(path, file)| same(path, file))
        && count(&shown, payload.len(), deepest).is_ok_and(|files| files == payload.len())
}

/// How many files are in a folder and the folders in it; it is not looked at further when there are more than `most`,
/// or folders deeper than `deepest`.
fn count(at: &OwnedFd, most: usize, deepest: usize) -> io::Result<usize> {
    let mut files = 0;
    for name in tree::names(at)? {
        match tree::folder(at, &name) {
            Ok(_) if deepest <= 1 => return Err(io::Error::other("a folder that is not among the files")),
            Ok(below) => files += count(&below, most, deepest - 1)?,
            Err(Errno::NOTDIR | Errno::LOOP) => files += 1,
            Err(error) => return Err(error.into()),
        }
        if files > most {
            break;
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
