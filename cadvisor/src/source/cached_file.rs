//! A file that is kept open and read again from its start.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit},
};

use crate::parse;

/// Shared by all reads of one housekeeping; grows to the longest file and keeps that size.
pub(crate) type Buffer = Vec<u8>;

/// A read that leaves this much of the buffer unfilled has reached the end: no record of the files read here is longer.
const MAX_RECORD_BYTES: usize = 2048;

/// Descriptors of open cached files: they share RLIMIT_NOFILE with the rest of the process.
static OPEN_FDS: AtomicUsize = AtomicUsize::new(0);

/// How many may be open: half of the process's soft limit.
fn max_open_fds() -> usize {
    static MAX_OPEN_FDS: OnceLock<usize> = OnceLock::new();
    *MAX_OPEN_FDS.get_or_init(|| {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        usize::try_from(soft / 2).unwrap_or(usize::MAX)
    })
}

/// A file that is read often. It stays open while descriptors are available, otherwise it is opened for each read.
#[derive(Debug)]
pub(crate) enum CachedFile {
    Open(File),
    Closed(PathBuf),
}

impl CachedFile {
    /// `None` when the file does not exist: the kernel or the cgroup lacks it.
    pub(crate) fn open(dir: &Path, name: &str) -> io::Result<Option<Self>> {
        Self::open_up_to(dir.join(name), max_open_fds())
    }

    fn open_up_to(path: PathBuf, max_open: usize) -> io::Result<Option<Self>> {
        let file = match File::open(&path) {
            Ok(file) => file,
            // Out of descriptors at this moment: it is opened when it is read.
            Err(error) if matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE)) => {
                return Ok(Some(Self::Closed(path)));
            }
            Err(error) if is_lacking(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if OPEN_FDS.fetch_add(1, Ordering::Relaxed) < max_open {
            Ok(Some(Self::Open(file)))
        } else {
            OPEN_FDS.fetch_sub(1, Ordering::Relaxed);
            Ok(Some(Self::Closed(path)))
        }
    }

    /// The whole content, in the caller's buffer.
    pub(crate) fn read<'b>(&self, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
        match self {
            Self::Open(file) => read_all(file, buffer),
            Self::Closed(path) => read_once(path, buffer),
        }
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        if let Self::Open(_) = self {
            OPEN_FDS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads a file from its start with as few system calls as possible.
pub(crate) fn read_all<'b>(file: &File, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
    if buffer.len() < 2 * MAX_RECORD_BYTES {
        buffer.resize(2 * MAX_RECORD_BYTES, 0);
    }
    let mut filled = 0;
    loop {
        if buffer.len() - filled < MAX_RECORD_BYTES {
            buffer.resize(buffer.len() * 2, 0);
        }
        let Some(free) = buffer.get_mut(filled..) else { break };
        let read = match file.read_at(free, filled as u64) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        filled += read;
        if read < MAX_RECORD_BYTES {
            break;
        }
    }
    Ok(buffer.get(..filled).unwrap_or_default())
}

/// Opens, reads and closes a file that is read once a minute.
pub(crate) fn read_once<'b>(path: &Path, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
    read_all(&File::open(path)?, buffer)
}

/// The content of a file that the kernel may lack; then it is `None`. Whatever else fails is an error, never a default.
pub(super) fn text_of<'b>(file: Option<&CachedFile>, buffer: &'b mut Buffer) -> io::Result<Option<&'b [u8]>> {
    let Some(file) = file else { return Ok(None) };
    match file.read(buffer) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_unsupported(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number in a cached file.
pub(super) fn number_of(file: Option<&CachedFile>, buffer: &mut Buffer) -> io::Result<Option<u64>> {
    text_of(file, buffer)?.map(|text| parse::number(text).ok_or_else(|| io::ErrorKind::InvalidData.into())).transpose()
}

/// The content of a file that is not cached and may not exist.
pub(super) fn read_if_there<'b>(
    dir: Option<&Path>,
    name: &str,
    buffer: &'b mut Buffer,
) -> io::Result<Option<&'b [u8]>> {
    let Some(dir) = dir else { return Ok(None) };
    match read_once(&dir.join(name), buffer) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_lacking(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number in a file that is not cached; `None` also for words such as `max`.
pub(super) fn read_number(dir: Option<&Path>, name: &str, buffer: &mut Buffer) -> io::Result<Option<u64>> {
    Ok(read_if_there(dir, name, buffer)?.and_then(parse::number))
}

/// Whether the error means that the kernel does not provide this file's data.
fn is_lacking(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || is_unsupported(error)
}

/// Pressure may be switched off, and threaded cgroups list no processes.
fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw) == Some(Errno::EOPNOTSUPP)
}

/// Whether the error says that the cgroup or process behind an open file no longer exists.
pub(crate) fn is_removed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENODEV | Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_files_longer_than_the_buffer_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let long = "0123456789abcdef".repeat(1000);
        std::fs::write(dir.path().join("long"), &long).unwrap();
        std::fs::write(dir.path().join("short"), "7\n").unwrap();
        let open = |name: &str| CachedFile::open(dir.path(), name).unwrap().unwrap();
        let (long_file, short) = (open("long"), open("short"));
        let mut buffer = Buffer::new();
        for _ in 0..3 {
            assert_eq!(long_file.read(&mut buffer).unwrap(), long.as_bytes());
            assert_eq!(short.read(&mut buffer).unwrap(), b"7\n");
        }
        assert!(CachedFile::open(dir.path(), "none").unwrap().is_none());
        assert!(CachedFile::open(dir.path(), "long/x").is_err(), "what cannot be opened is not what is not there");
        let poor = CachedFile::open_up_to(dir.path().join("short"), 0).unwrap().unwrap();
        assert!(matches!(poor, CachedFile::Closed(_)));
        assert_eq!(poor.read(&mut buffer).unwrap(), b"7\n");
        assert!(read_once(&dir.path().join("none"), &mut buffer).is_err_and(|e| is_removed(&e)));
    }
}
