//! What the disk gives without a server: bare writes that end with fdatasync, with the bytes and the batches of the measured writes.

use std::{
    fs::File,
    io::{Seek as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

const FILE_BYTES: usize = 64 << 20;

/// A file whose blocks are allocated: nothing but the data has to be written.
pub(crate) struct Disk {
    file: File,
    at: usize,
}

impl Disk {
    pub(crate) fn new(folder: &Path) -> anyhow::Result<Self> {
        let mut file = tempfile::tempfile_in(folder)?;
        file.write_all(&vec![1; FILE_BYTES])?;
        file.sync_all()?;
        file.rewind()?;
        Ok(Self { file, at: 0 })
    }

    /// Writes per second of `bytes` each, `batch` of them with one fdatasync.
    pub(crate) fn rate(&mut self, bytes: usize, batch: usize, time: Duration) -> anyhow::Result<f64> {
        let data = vec![b'x'; bytes * batch];
        let (started, mut written) = (Instant::now(), 0);
        while started.elapsed() < time {
            if self.at + data.len() > FILE_BYTES {
                self.file.rewind()?;
                self.at = 0;
            }
            self.file.write_all(&data)?;
            self.file.sync_data()?;
            self.at += data.len();
            written += batch;
        }
        Ok(written as f64 / started.elapsed().as_secs_f64())
    }
}
