//! The kernel's own log, for the news that it ended a process for lack of memory. The cgroup of a container is often
//! gone by then, and its counters with it.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crate::parse::oom::{Kill, kill};

/// No record is longer; the kernel's own limit.
const RECORD: usize = 8192;

/// The log from now on; without the right to read it there is never any news.
#[derive(Debug)]
pub struct KernelLog(Option<File>);

impl KernelLog {
    /// Begins at the log's end.
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
        Self(open().inspect_err(|error| tracing::debug!(%error, "the kernel's log cannot be read")).ok())
    }

    /// What happened since the last call. Never waits.
    pub fn kills(&mut self) -> Vec<Kill> {
        let Some(file) = &mut self.0 else { return Vec::new() };
        let mut found = Vec::new();
        let mut record = [0; RECORD];
        loop {
            match file.read(&mut record) {
                Ok(0) => return found,
                Ok(length) => found.extend(kill(&String::from_utf8_lossy(record.get(..length).unwrap_or_default()))),
                // Records that were overwritten before they were read.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
                Err(_) => return found,
            }
        }
    }
}
