//! The kernel log, as the source of OOM kills. The cgroup of a container is often removed by then, and its counters
//! with it.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crate::parse::oom::{Kill, kill};

/// The maximal length of a record, the limit of the kernel.
const MAX_RECORD_BYTES: usize = 8192;

/// The log from now on; without permission to read it, it has no records.
#[derive(Debug)]
pub struct KernelLog(Option<File>);

impl KernelLog {
    /// Starts at the end of the log.
    #[must_use]
    pub fn open() -> Self {
        Self::of(Path::new("/dev/kmsg"))
    }

    pub(crate) fn of(path: &Path) -> Self {
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        let open = || {
            let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
            file.seek(SeekFrom::End(0)).map(|_| file)
        };
        Self(open().inspect_err(|error| tracing::debug!(%error, "failed to open the kernel log")).ok())
    }

    /// OOM kills since the last call. Never blocks.
    pub fn kills(&mut self) -> Vec<Kill> {
        let Some(file) = &mut self.0 else { return Vec::new() };
        let mut found = Vec::new();
        let mut record = [0; MAX_RECORD_BYTES];
        loop {
            match file.read(&mut record) {
                Ok(0) => return found,
                Ok(length) => found.extend(kill(&String::from_utf8_lossy(record.get(..length).unwrap_or_default()))),
                // Records that were overwritten before they were read (EPIPE).
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
                Err(_) => return found,
            }
        }
    }
}
