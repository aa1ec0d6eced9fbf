//! Writing a file again from what is still needed, on a thread of its own. Commits of the meantime are copied after it.

use std::{io, thread::JoinHandle};

use super::{
    super::{Counters, Record},
    CHUNK_BYTES, Directory, LogFile, SUFFIX_OF_NEW,
    frame::{HEADER, write_frame},
    name_of,
};

/// Records of a frame, about, in bytes.
const FRAME_BYTES: usize = 1 << 20;

/// A file and where it ends.
type Written<F> = (F, u64);

#[derive(Debug)]
pub(super) struct Rewrite<D: Directory> {
    /// End of the old file when it began.
    from: u64,
    /// `None` when no thread could be started.
    thread: Option<JoinHandle<io::Result<Written<D::File>>>>,
}

impl<D: Directory> Rewrite<D> {
    pub(super) fn begin(directory: D, name: String, records: Vec<Record>, counters: Counters, from: u64) -> Self {
        let run = move || {
            let written = || -> io::Result<_> {
                let file = directory.create(&name)?;
                let end = write_all(&file, &records, &counters)?;
                file.sync()?;
                Ok((file, end))
            };
            // What has filled the disk makes room at once, not at the next commit.
            written().inspect_err(|_| drop(directory.remove(&name)))
        };
        Self { from, thread: std::thread::Builder::new().name("store-rewrite".to_owned()).spawn(run).ok() }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Copies the commits since the beginning from the old file, which ends at `end`, and gives the new one its name.
    /// The name is not durable yet.
    pub(super) fn finish(self, directory: &D, old: &D::File, end: u64, number: u64) -> io::Result<(D::File, u64)> {
        let thread = self.thread.ok_or_else(|| io::Error::other("no thread could be started"))?;
        let (file, mut new_end) = thread.join().map_err(|_| io::Error::other("the thread has panicked"))??;
        let (mut at, mut chunk) = (self.from, vec![0; CHUNK_BYTES]);
        while at < end {
            let size = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            old.read_at(at, &mut chunk[..size])?;
            file.write_at(new_end, &chunk[..size])?;
            at += size as u64;
            new_end += size as u64;
        }
        file.sync()?;
        let name = name_of(number);
        directory.rename(&format!("{name}{SUFFIX_OF_NEW}"), &name)?;
        Ok((file, new_end))
    }
}

/// Writes header, records and counters into an empty file; returns where they end.
pub(super) fn write_all(file: &impl LogFile, records: &[Record], counters: &Counters) -> io::Result<u64> {
    let (mut out, mut end, mut first) = (HEADER.to_vec(), 0, 0);
    let mut bytes = 0;
    for (at, record) in records.iter().enumerate() {
        bytes += record.object.bytes.len();
        if bytes >= FRAME_BYTES {
            write_frame(&mut out, &records[first..=at], counters)?;
            file.write_at(end, &out)?;
            end += out.len() as u64;
            out.clear();
            (first, bytes) = (at + 1, 0);
        }
    }
    // Also without records: the counters.
    write_frame(&mut out, &records[first..], counters)?;
    file.write_at(end, &out)?;
    Ok(end + out.len() as u64)
}
