//! A file opened once and read again from its start each time.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use nix::errno::Errno;

/// Shared by all reads of one round; grows to the longest file and stays.
pub(crate) type Buffer = Vec<u8>;

/// A read that leaves this much of the request unfilled has seen the end: no record of the files read here is longer.
const RECORD_MOST: usize = 2048;

#[derive(Debug)]
pub(crate) struct Kept(File);

impl Kept {
    /// None when the file is not there (the kernel lacks it) or may not be opened.
    pub(crate) fn open(dir: &Path, name: &str) -> Option<Self> {
        File::open(dir.join(name)).ok().map(Self)
    }

    /// The whole content, in the caller's buffer.
    pub(crate) fn read<'b>(&self, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
        read_all(&self.0, buffer)
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
        assert!(read_once(&dir.path().join("none"), &mut buffer).is_err_and(|e| is_gone(&e)));
    }
}
