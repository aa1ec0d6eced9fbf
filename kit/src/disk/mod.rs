//! The one way to the disk of everything that must last: address files, attachments, allocated resources, pull records, the
//! audit log, keys and certificates, credentials, marks, backups. A call goes to the file system that is mounted at its path,
//! which in the program is always the machine's, synced or not; tests mount a model of a disk there, which fails, fills up, and loses what
//! was not synced.
//!
//! Whole files are written by [`crate::atomic_file`], on top of this. Transient files (caches, results, `/proc`, `/sys`
//! and `/run`) and those that containers write to (`crate::dirfd`) are accessed in other ways; the architecture test
//! lists them all.

mod real;
mod unsynced;

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::RwLock;

pub use real::Real;
pub use unsynced::Unsynced;

/// What a name refers to; a link is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file, or anything else that is neither of the others.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// One that exists, for reading.
    Read,
    /// One that exists, for reading and writing.
    Update,
    /// One that must not exist, with this mode.
    New(u32),
    /// An empty one, with this mode if it did not exist.
    Empty(u32),
    /// To append to, with this mode if it did not exist.
    Append(u32),
}

/// The calls of a file system.
pub trait FileSystem: fmt::Debug + Send + Sync {
    /// Opens a file; a link is followed.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn OpenFile>>;
    /// The names in a directory, in no order.
    ///
    /// # Errors
    /// When it cannot be read.
    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>>;
    /// What a name refers to.
    ///
    /// # Errors
    /// `NotFound`, or what the disk says.
    fn kind(&self, path: &Path) -> io::Result<Kind>;
    /// Makes one directory, whose parent must exist.
    ///
    /// # Errors
    /// When it cannot be made, or the name is taken.
    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Renames, replacing an existing file.
    ///
    /// # Errors
    /// When it cannot be renamed; nothing is changed then.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes a link.
    ///
    /// # Errors
    /// When it cannot be made, or the name is taken.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()>;
    /// Removes a file or a link.
    ///
    /// # Errors
    /// `NotFound`, or what the disk says.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// When it does not exist or is not empty.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it; links are not followed.
    ///
    /// # Errors
    /// When a part of it cannot be removed: it stays, with what was not reached.
    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        for name in self.names(path)? {
            let inner = path.join(name);
            if self.kind(&inner)? == Kind::Directory { self.remove_tree(&inner)? } else { self.remove(&inner)? }
        }
        self.remove_dir(path)
    }
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
pub trait OpenFile: fmt::Debug + Send + Sync {
    /// Its length.
    ///
    /// # Errors
    /// When it cannot be read.
    fn length(&self) -> io::Result<u64>;
    /// Reads some bytes; none at the end.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// Writes some of the bytes.
    ///
    /// # Errors
    /// When none could be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;
    /// Writes some of the bytes at the end, of a file that was opened so.
    ///
    /// # Errors
    /// When none could be written.
    fn append(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Cuts the file.
    ///
    /// # Errors
    /// When it cannot be cut.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes content and length durable.
    ///
    /// # Errors
    /// When the disk fails. Then it is unknown which content is durable, and a further sync does not report it.
    fn sync(&self) -> io::Result<()>;
    /// Takes away the permissions that a mode does not have.
    ///
    /// # Errors
    /// When they cannot be changed.
    fn restrict(&self, mode: u32) -> io::Result<()>;
}

/// Writes all bytes, continuing after interruptions by signals and after short writes.
///
/// # Errors
/// When the disk fails; some of the bytes may have been written.
pub fn append_all(file: &dyn OpenFile, bytes: &[u8]) -> io::Result<()> {
    in_parts(bytes, |rest, _| file.append(rest))
}

/// The same, at an offset.
///
/// # Errors
/// When the disk fails; some of the bytes may have been written.
pub fn write_all_at(file: &dyn OpenFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    in_parts(bytes, |rest, done| file.write_at(offset + done, rest))
}

fn in_parts(mut rest: &[u8], mut write: impl FnMut(&[u8], u64) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while !rest.is_empty() {
        match write(rest, done) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => (rest, done) = (&rest[count..], done + count as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A file that is written from its beginning to its end.
#[derive(Debug)]
pub struct Sequential {
    /// The file.
    pub file: Box<dyn OpenFile>,
    at: u64,
}

impl Sequential {
    /// From its beginning.
    #[must_use]
    pub fn new(file: Box<dyn OpenFile>) -> Self {
        Self { file, at: 0 }
    }
}

impl io::Write for Sequential {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write_at(self.at, bytes)?;
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Read for Sequential {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(self.at, bytes)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// File systems that are mounted, and whether there are any.
static MOUNTED: RwLock<Vec<(PathBuf, Arc<dyn FileSystem>)>> = RwLock::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// Has all calls below a path go to another file system, also in place of one that was mounted there. For tests, and for
/// [`Unsynced`] data.
pub fn mount(at: &Path, file_system: Arc<dyn FileSystem>) {
    let mut mounted = MOUNTED.write();
    mounted.retain(|(path, _)| path != at);
    mounted.push((at.to_owned(), file_system));
    ANY.store(true, Ordering::SeqCst);
}

/// Ends that.
pub fn unmount(at: &Path) {
    MOUNTED.write().retain(|(path, _)| path != at);
}

/// The file system of a path.
#[must_use]
pub fn of(path: &Path) -> Arc<dyn FileSystem> {
    static REAL: OnceLock<Arc<dyn FileSystem>> = OnceLock::new();
    if ANY.load(Ordering::SeqCst) {
        let mounted = MOUNTED.read();
        if let Some((_, found)) = mounted.iter().find(|(at, _)| path.starts_with(at)) {
            return Arc::clone(found);
        }
    }
    Arc::clone(REAL.get_or_init(|| Arc::new(Real)))
}

/// Opens a file.
///
/// # Errors
/// When it cannot be opened.
pub fn open(path: &Path, how: Open) -> io::Result<Box<dyn OpenFile>> {
    of(path).open(path, how)
}

/// Reads a whole file.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut Sequential::new(open(path, Open::Read)?), &mut bytes)?;
    Ok(bytes)
}

/// The paths in a directory, in their order.
///
/// # Errors
/// When it cannot be read.
pub fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = of(dir).names(dir)?;
    names.sort_unstable();
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

/// What a name refers to; `None` if it does not exist.
///
/// # Errors
/// When that is not known.
pub fn kind(path: &Path) -> io::Result<Option<Kind>> {
    match of(path).kind(path) {
        Ok(kind) => Ok(Some(kind)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a directory with this mode, and its ancestors; all of them survive a crash, so that what is written into them does.
/// An existing one is unchanged.
///
/// # Errors
/// Any error of the file system.
pub fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    let disk = of(dir);
    match disk.make_dir(dir, mode) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(parent) = parent_of(dir) else { return Err(error) };
            make_dir(parent, mode)?;
            make_dir(dir, mode)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // It may be a link to a directory.
            let is_file = disk.kind(dir)? == Kind::File;
            // An earlier attempt may have ended before it was synced.
            if is_file { Err(error) } else { sync_parent(dir) }
        }
        Err(error) => Err(error),
        // So may one that has made an ancestor.
        Ok(()) => dir.ancestors().skip(1).take_while(|above| Arc::ptr_eq(&of(above), &disk)).try_for_each(|above| {
            match disk.sync_dir(if above.as_os_str().is_empty() { Path::new(".") } else { above }) {
                // Of the ancestors of what this user may write to.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                synced => synced,
            }
        }),
    }
}

/// The same for what lasts as long as this run of the machine: nothing is synced.
///
/// # Errors
/// Any error of the file system.
pub fn make_dir_unsynced(dir: &Path, mode: u32) -> io::Result<()> {
    let disk = of(dir);
    match disk.make_dir(dir, mode) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dir_unsynced(parent_of(dir).ok_or(error)?, mode)?;
            make_dir_unsynced(dir, mode)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && disk.kind(dir)? != Kind::File => Ok(()),
        made => made,
    }
}

/// Renames a file or a directory, replacing an existing one; it survives a crash.
///
/// # Errors
/// Any error of the file system; the name may have changed, for this run of the machine, when the directory is not synced.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    of(to).rename(from, to)?;
    sync_parent(to)?;
    if from.parent() == to.parent() { Ok(()) } else { sync_parent(from) }
}

/// Points a link at a target, replacing an earlier one; it survives a crash. The new link is made under a free name
/// next to it.
///
/// # Errors
/// Any error of the file system; the link keeps its previous target.
pub fn replace_link(target: &Path, link: &Path, beside: &Path) -> io::Result<()> {
    let disk = of(link);
    match disk.remove(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => disk.symlink(target, beside)?,
    }
    rename(beside, link)
}

/// Removes a file or a link; after the call it is gone also over a crash. One that does not exist is no error.
///
/// # Errors
/// Any error of the file system.
pub fn remove(path: &Path) -> io::Result<()> {
    match of(path).remove(path) {
        // An earlier attempt may have ended before the directory was synced.
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match sync_parent(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        Err(error) => Err(error),
    }
}

/// Removes a directory with all that is in it; one that does not exist is no error.
///
/// # Errors
/// Any error of the file system.
pub fn remove_tree(dir: &Path) -> io::Result<()> {
    match of(dir).remove_tree(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Syncs a path's directory: names that were created, renamed or removed in it survive a crash.
///
/// # Errors
/// Any error of the file system.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    parent_of(path).map_or(Ok(()), |parent| of(parent).sync_dir(parent))
}

fn parent_of(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}
