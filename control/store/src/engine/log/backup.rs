//! Copies of a store, also of one that is in use: a log grows at its end alone, so that all whole commits that are
//! there at one moment are the store at one revision.

use std::{fs::File, io, path::Path};

use super::{
    super::super::Error, CHUNK_BYTES, Counters, Directory as _, Log, LogFile, ReadLog, RealDirectory, SUFFIX_OF_NEW,
    directory::create_secret, frame::write_frame, length, lock, name_of, number_of, read_file,
};

/// Attempts to open the file, which a rewrite may replace in between.
const MAX_ATTEMPTS: usize = 10;
/// By how much the revision of a restored store is above that of the copy: clients may have seen later revisions, and
/// must list again.
const REVISIONS_AHEAD: u64 = 1_000_000_000;

/// Copies the store of the directory `from`, which may be in use, into the file `to`: all commits so far.
/// Returns the revision.
///
/// # Errors
/// Says which file and why.
pub fn copy_log(from: &Path, to: &Path) -> Result<u64, Error> {
    let failed = |reason: String| Error::Disk { path: from.to_owned(), attempt: "copied", reason };
    let directory = RealDirectory(from.to_owned());
    let open = || -> io::Result<File> {
        let number = directory.names()?.iter().filter_map(|name| number_of(name)).max();
        let number = number.ok_or_else(|| io::Error::other("it is not a store of windlass"))?;
        File::open(from.join(name_of(number)))
    };
    let mut attempts = (0..MAX_ATTEMPTS)
        .map(|_| open())
        .skip_while(|opened| matches!(opened, Err(error) if error.kind() == io::ErrorKind::NotFound));
    let file = attempts.next().unwrap_or_else(open).map_err(|e| failed(e.to_string()))?;
    let read = read_growing(&file).map_err(failed)?;
    let written = || -> io::Result<()> {
        let copy = create_secret(to, true)?;
        copy_bytes(&file, &copy, read.end)?;
        copy.sync_all()
    };
    written().map_err(|e| Error::Disk { path: to.to_owned(), attempt: "written", reason: e.to_string() })?;
    Ok(read.counters.revision)
}

/// A commit that is just being written may be completed between two looks of the reader.
fn read_growing(file: &File) -> Result<ReadLog, String> {
    let mut read = read_file(file, |_, _| {});
    for _ in 0..MAX_ATTEMPTS {
        if read.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        read = read_file(file, |_, _| {});
    }
    read
}

fn copy_bytes(from: &impl LogFile, to: &impl LogFile, end: u64) -> io::Result<()> {
    let (mut at, mut chunk) = (0, vec![0; CHUNK_BYTES]);
    while at < end {
        let size = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        from.read_at(at, &mut chunk[..size])?;
        to.write_at(at, &chunk[..size])?;
        at += size as u64;
    }
    Ok(())
}

impl Log {
    /// Makes a store of a copy in a directory that has none. No revision that a client may have seen is given again, and
    /// watchers must list again.
    ///
    /// # Errors
    /// When the copy is damaged, or the directory has a store or is in use.
    pub fn create_from_copy(directory: &Path, copy: &Path) -> Result<Self, Error> {
        let failed = |reason: String| Error::Disk { path: copy.to_owned(), attempt: "read", reason };
        let guard = lock(directory)?;
        let file = File::open(copy).map_err(|e| failed(e.to_string()))?;
        let read = read_file(&file, |_, _| {}).map_err(failed)?;
        if read.is_torn {
            return Err(failed(format!("it is cut short: only {} of its {} bytes are whole", read.end, read.length)));
        }
        let revision = read.counters.ceiling.max(read.counters.revision) + REVISIONS_AHEAD;
        let counters = Counters { revision, ceiling: revision, floor: revision, ..Counters::default() };
        if Self::exists(directory) {
            return Err(Error::Disk {
                path: directory.to_owned(),
                attempt: "restored",
                reason: "it has a store already; move it away first".to_owned(),
            });
        }
        let name = name_of(1);
        let written = || -> io::Result<()> {
            let new = format!("{name}{SUFFIX_OF_NEW}");
            let real = RealDirectory(directory.to_owned());
            // That of an earlier store in this directory would call the new one cut short.
            length::forget(&real)?;
            real.sync()?;
            let copy = real.create(&new)?;
            copy_bytes(&file, &copy, read.end)?;
            let mut frame = Vec::new();
            write_frame(&mut frame, &[], &counters)?;
            copy.write_at(read.end, &frame)?;
            copy.sync_all()?;
            real.rename(&new, &name)?;
            real.sync()
        };
        let failed =
            |e: io::Error| Error::Disk { path: directory.to_owned(), attempt: "restored", reason: e.to_string() };
        written().map_err(failed)?;
        drop(guard);
        Self::open(directory)
    }
}
