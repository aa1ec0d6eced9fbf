//! Operations on directories that containers may write to, by descriptors (`openat2`): no symlink is followed, nothing
//! outside the directory or on another mount is touched, even if entries are swapped concurrently.

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

const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
/// Most directories of a tree that are open at once while it is removed.
const MAX_DEPTH: usize = 32;

/// Opens a directory of the node whose path no container can change; it must not be a symlink itself.
///
/// # Errors
/// Those of the kernel; a symlink is one.
pub fn open_root(dir: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, dir, OPEN_DIR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a directory below another.
///
/// # Errors
/// Those of the kernel; a way that leaves the directory is one.
pub fn open_dir(at: impl AsFd, path: impl Arg) -> Result<OwnedFd, Errno> {
    beneath(at, path, OPEN_DIR, Mode::empty())
}

/// Opens or creates an entry below a directory.
///
/// # Errors
/// Those of the kernel; a way that leaves the directory is one.
pub fn beneath(at: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let inside =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    openat2(at, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode, inside)
}

/// The names in a directory.
///
/// # Errors
/// Those of the kernel.
pub fn names(at: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut all = Vec::new();
    for entry in Dir::read_from(at)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            all.push(name);
        }
    }
    Ok(all)
}

/// The content of a regular file below a directory, up to one byte more than `max_bytes`; anything else is not opened.
///
/// # Errors
/// Those of the kernel; another kind of file is one.
pub fn read(at: impl AsFd, path: impl Arg, max_bytes: usize) -> io::Result<Vec<u8>> {
    let found = beneath(at, path, OFlags::PATH, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a file"));
    }
    // Reopens the checked file: a device or a pipe in its place is never opened.
    let file = std::fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut bytes = Vec::with_capacity(max_bytes);
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Removes an entry of a directory recursively; `step` is called on the way. A missing entry is success, a mount point
/// an error.
///
/// # Errors
/// Those of the kernel; what could be removed is.
pub fn remove(at: BorrowedFd<'_>, name: &OsStr, step: &mut dyn FnMut()) -> io::Result<()> {
    step();
    match unlinkat(at, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let top = match open_dir(at, name) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let mut remover = TreeRemover { top: top.as_fd(), removed: 0, parked: 0, step };
    loop {
        let before = remover.removed;
        remover.remove_entries(top.as_fd(), 0)?;
        match unlinkat(at, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // What was moved to the top is removed in the next round.
            Err(Errno::NOTEMPTY) if remover.removed > before => {}
            Err(error) => return Err(error.into()),
        }
    }
}

struct TreeRemover<'a> {
    top: BorrowedFd<'a>,
    removed: u64,
    parked: u64,
    step: &'a mut dyn FnMut(),
}

impl TreeRemover<'_> {
    fn remove_entries(&mut self, at: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
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
            // Deep nesting must exhaust neither descriptors nor the stack.
            if depth >= MAX_DEPTH {
                self.move_to_top(at, name)?;
                continue;
            }
            let below = match open_dir(at, name) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            self.remove_entries(below.as_fd(), depth + 1)?;
            match unlinkat(at, name, AtFlags::REMOVEDIR) {
                Ok(()) => self.removed += 1,
                // Retried in the next round: listing may miss entries while they are removed.
                Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves a directory to the top of the tree.
    fn move_to_top(&mut self, at: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<()> {
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
        remove(open_root(dir)?.as_fd(), OsStr::new(name), &mut || steps += 1)?;
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
    fn directories_may_be_nested_without_end() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let mut at = open_root(&dir.path().join("tree")).unwrap();
        for _ in 0..300 {
            for name in ["d", "e"] {
                rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
            }
            at = open_dir(&at, "d").unwrap();
        }
        removed(dir.path(), "tree").unwrap();
        assert!(!dir.path().join("tree").exists());
    }

    #[test]
    fn nothing_below_a_mount_is_removed() {
        assert!(nix::unistd::geteuid().is_root(), "this test mounts, which needs root, as `make test` does");
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
        let at = open_root(dir.path()).unwrap();
        assert_eq!(read(&at, "file", 5).unwrap(), b"12345");
        assert_eq!(read(&at, "file", 2).unwrap(), b"123", "one more, so that it differs");
        for other in ["link", "pipe", ".", "../file", "none"] {
            assert!(read(&at, other, 5).is_err(), "{other}");
        }
    }
}
