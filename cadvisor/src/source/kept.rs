//! A file opened once and read again from its start each time.

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

/// Shared by all reads of one round; grows to the longest file and stays.
pub(crate) type Buffer = Vec<u8>;

/// A read that leaves this much of the request unfilled has seen the end: no record of the files read here is longer.
const RECORD_MOST: usize = 2048;

/// Descriptors that kept files hold now: they share the process's limit with everything else it does.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// How many may be held: half of the process's soft limit.
fn budget() -> usize {
    static BUDGET: OnceLock<usize> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        usize::try_from(soft / 2).unwrap_or(usize::MAX)
    })
}

/// A file to be read often. It stays open while there are descriptors to spare, else it is opened for each read.
#[derive(Debug)]
pub(crate) enum Kept {
    Open(File),
    Closed(PathBuf),
}

impl Kept {
    /// None when the file is not there (the kernel lacks it) or may not be opened.
    pub(crate) fn open(dir: &Path, name: &str) -> Option<Self> {
        Self::open_within(dir.join(name), budget())
    }

    fn open_within(path: PathBuf, budget: usize) -> Option<Self> {
        let file = match File::open(&path) {
            Ok(file) => file,
            // No descriptor left at this moment: there will be one when it is read.
            Err(error) if matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE)) => {
                return Some(Self::Closed(path));
            }
            Err(_) => return None,
        };
        if HELD.fetch_add(1, Ordering::Relaxed) < budget {
            Some(Self::Open(file))
        } else {
            HELD.fetch_sub(1, Ordering::Relaxed);
            Some(Self::Closed(path))
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

impl Drop for Kept {
    fn drop(&mut self) {
        if let Self::Open(_) = self {
            HELD.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads a file from its start with as few calls as it takes.
pub(crate) fn read_all<'b>(file: &File, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
    if buffer.len() < 2 * RECORD_MOST {
        buffer.resize(2 * RECORD_MOST, 0);
    }
    let mut filled = 0;
    loop {
        if buffer.len() - filled < RECORD_MOST {
            buffer.resize(buffer.len() * 2, 0);
        }
        let Some(free) = buffer.get_mut(filled..) else { break };
        let read = match file.read_at(free, filled as u64) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        filled += read;
        if read < RECORD_MOST {
            break;
        }
    }
    Ok(buffer.get(..filled).unwrap_or_default())
}

/// Opens, reads, closes: for what is read once a minute.
pub(crate) fn read_once<'b>(path: &Path, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
    read_all(&File::open(path)?, buffer)
}

/// The content of a file that may not be there.
pub(super) fn text_of<'b>(file: Option<&Kept>, buffer: &'b mut Buffer) -> Option<&'b [u8]> {
    file?.read(buffer).ok()
}

/// The number that it holds.
pub(super) fn number_of(file: Option<&Kept>, buffer: &mut Buffer) -> Option<u64> {
    text_of(file, buffer).and_then(parse::number)
}

/// The number in a file that is not kept.
pub(super) fn rare(dir: Option<&Path>, name: &str, buffer: &mut Buffer) -> Option<u64> {
    read_once(&dir?.join(name), buffer).ok().and_then(parse::number)
}

/// Whether the error says that the cgroup or process behind an open file no longer exists.
pub(crate) fn is_gone(error: &io::Error) -> bool {
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
        let (long_file, short) = (Kept::open(dir.path(), "long").unwrap(), Kept::open(dir.path(), "short").unwrap());
        let mut buffer = Buffer::new();
        for _ in 0..3 {
            assert_eq!(long_file.read(&mut buffer).unwrap(), long.as_bytes());
            assert_eq!(short.read(&mut buffer).unwrap(), b"7\n");
        }
        assert!(Kept::open(dir.path(), "none").is_none());
        let poor = Kept::open_within(dir.path().join("short"), 0).unwrap();
        assert!(matches!(poor, Kept::Closed(_)));
        assert_eq!(poor.read(&mut buffer).unwrap(), b"7\n");
        assert!(read_once(&dir.path().join("none"), &mut buffer).is_err_and(|e| is_gone(&e)));
    }
}
