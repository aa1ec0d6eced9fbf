//! Work on folders that a container may have written to, by descriptors: nothing is reached through a link, nothing
//! outside the folder is touched, and nothing on another mount, whatever is swapped for what meanwhile.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read as _},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fstat, openat, openat2, renameat_with,
        unlinkat,
    },
    io::Errno,
    path::Arg,
};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
/// So many folders of a tree are open at once while it is removed.
const DEEPEST: usize = 32;

/// Opens a folder of the node's own, whose path no container can change; it may not be a link itself.
pub(super) fn open(dir: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, dir, FOLDER | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a folder below another.
pub(super) fn folder(at: impl AsFd, path: impl Arg) -> Result<OwnedFd, Errno> {
    beneath(at, path, FOLDER, Mode::empty())
}

/// Opens or makes what is below a folder.
pub(super) fn beneath(at: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let inside =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    openat2(at, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode, inside)
}

/// The names in a folder.
pub(super) fn names(at: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut all = Vec::new();
    for entry in Dir::read_from(at)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            all.push(name);
        }
    }
    Ok(all)
}

/// The bytes of a plain file below a folder, at most one more than `most`; anything else is not opened.
pub(super) fn read(at: impl AsFd, path: impl Arg, most: usize) -> io::Result<Vec<u8>> {
    let found = beneath(at, path, OFlags::PATH, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a file"));
    }
    // The very file that was looked at: a device or a pipe in its place is never opened.
    let file = std::fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut bytes = Vec::with_capacity(most);
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Removes what has this name in a folder, with all that is below it; `step` is called on the way. Gone already is
/// success, and something mounted there an error.
pub(super) fn remove(at: BorrowedFd<'_>, name: &OsStr, step: &mut dyn FnMut()) -> io::Result<()> {
    step();
    match unlinkat(at, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let top = match folder(at, name) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let mut emptying = Emptying { top: top.as_fd(), removed: 0, parked: 0, step };
    loop {
        let before = emptying.removed;
        emptying.empty(top.as_fd(), 0)?;
        match unlinkat(at, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // What was moved up is removed in the next round.
            Err(Errno::NOTEMPTY) if emptying.removed > before => {}
            Err(error) => return Err(error.into()),
        }
    }
}

struct Emptying<'a> {
    top: BorrowedFd<'a>,
    removed: u64,
    parked: u64,
    step: &'a mut dyn FnMut(),
}

impl Emptying<'_> {
    fn empty(&mut self, at: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(at)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            (self.step)();
            match unlinkat(at, name, AtFlags::empty()) {
                Ok(()) => {
                    self.removed += 1;
                    continue;
                }
                Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            }
            // Whoever nests folders without end gains nothing: neither descriptors nor the stack run out.
            if depth >= DEEPEST {
                self.park(at, name)?;
                continue;
            }
            let below = match folder(at, name) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            self.empty(below.as_fd(), depth + 1)?;
            match unlinkat(at, name, AtFlags::REMOVEDIR) {
                Ok(()) => self.removed += 1,
                // Read again: a folder may tell less than all while it is emptied.
                Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves a folder up to the top of the tree.
    fn park(&mut self, at: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<()> {
        loop {
            self.parked += 1;
            let to = format!("..parked-{}", self.parked);
            match renameat_with(at, name, self.top, to, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::mount::{MsFlags, mount, umount};

    use super::*;

    fn removed(dir: &Path, name: &str) -> io::Result<u64> {
        let mut steps = 0;
        remove(open(dir)?.as_fd(), OsStr::new(name), &mut || steps += 1)?;
        Ok(steps)
    }

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, victim) = (dir.path().join("tree"), dir.path().join("victim"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("kept"), "kept").unwrap();
        for (target, link) in [("../victim", "up"), ("/", "root"), ("../../../victim", "a/b/deep"), ("none", "a/none")]
        {
            symlink(target, tree.join(link)).unwrap();
        }
        nix::unistd::mkfifo(&tree.join("a/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(removed(dir.path(), "tree").unwrap() >= 7);
        assert!(!tree.exists());
        symlink("victim", dir.path().join("link")).unwrap();
        removed(dir.path(), "link").unwrap();
        assert_eq!(fs::read_to_string(victim.join("kept")).unwrap(), "kept");
        assert_eq!(removed(dir.path(), "none").unwrap(), 1);
    }

    #[test]
    fn folders_may_be_nested_without_end() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let mut at = open(&dir.path().join("tree")).unwrap();
        for _ in 0..300 {
            for name in ["d", "e"] {
                rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
            }
            at = folder(&at, "d").unwrap();
        }
        removed(dir.path(), "tree").unwrap();
        assert!(!dir.path().join("tree").exists());
    }

    #[test]
    fn nothing_below_a_mount_is_removed() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let far = dir.path().join("tree/far");
        fs::create_dir_all(&far).unwrap();
        let none: Option<&str> = None;
        mount(Some("tmpfs"), &far, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        fs::write(far.join("kept"), "").unwrap();
        let refused = removed(dir.path(), "tree");
        let kept = far.join("kept").exists();
        umount(&far).unwrap();
        assert!(refused.is_err() && kept, "{refused:?}");
        removed(dir.path(), "tree").unwrap();
    }

    #[test]
    fn only_plain_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "12345").unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let at = open(dir.path()).unwrap();
        assert_eq!(read(&at, "file", 5).unwrap(), b"12345");
        assert_eq!(read(&at, "file", 2).unwrap(), b"123", "one more, so that it differs");
        for other in ["link", "pipe", ".", "../file", "none"] {
            assert!(read(&at, other, 5).is_err(), "{other}");
        }
    }
}
