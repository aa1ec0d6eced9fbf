//! The engine on disk: an append-only log. A commit is one frame with a checksum, durable before it is acknowledged.
//!
//! A directory has one file, `log-NUMBER`. A rewrite makes the next number from what is still needed and takes its
//! place by a rename, so that a crash leaves one of both whole; the highest number counts.
//!
//! What a crash can leave is known: only the last frame may be torn or on no disk, since each is synced before the next
//! is written. A start cuts off a torn tail, and writes the last frame once more: after a failed sync the kernel shows
//! what no disk has. A damaged frame before whole ones is no torn tail, and is refused; so is a file that is shorter than
//! it was at the last start or clean end. Zeros behind the last frame are space for the next ones, and go with a clean end.

mod backup;
mod directory;
mod extent;
mod frame;
mod length;
mod rewrite;

use std::{
    fs::File,
    io,
    path::Path,
    time::{Duration, Instant},
};

pub use backup::copy_log;
pub use directory::{Directory, LogFile, RealDirectory, UnsyncedDirectory};
use extent::Extent;
use frame::{HEADER, MAGIC, PREFIX};
use rewrite::Rewrite;

use super::{super::Error, Counters, Engine, Record};

const LOCK_FILE: &str = "lock";
const PREFIX_OF_LOGS: &str = "log-";
const SUFFIX_OF_NEW: &str = ".new";
/// Buffers of commits above this are not kept.
const MAX_KEPT_BUFFER: usize = 4 << 20;
/// Size of the chunks that are searched and copied.
const CHUNK_BYTES: usize = 1 << 20;
/// What a disk writes at once: a page that was cut is written again as a whole.
const PAGE_BYTES: u64 = 4096;
/// How long no rewrite begins after one that failed, at first and at most: each writes all that is needed.
const MIN_REWRITE_PAUSE: Duration = Duration::from_secs(60);
const MAX_REWRITE_PAUSE: Duration = Duration::from_secs(3600);
/// Room that a rewrite leaves for commits and for others on the disk.
const SPARE_BYTES: u64 = 64 << 20;

/// A store in one directory.
#[derive(Debug)]
pub struct Log<D: Directory = RealDirectory> {
    directory: D,
    file: D::File,
    number: u64,
    /// End of the last commit that succeeded.
    end: u64,
    extent: Extent,
    /// A commit or the replacement of the file failed: nothing is written until [`Engine::restore`] succeeds.
    broken: bool,
    /// Whether the name of the file is durable.
    name_is_durable: bool,
    buffer: Vec<u8>,
    rewrite: Option<Rewrite<D>>,
    /// After one that failed: when the next may begin, and how long that was.
    next_rewrite: Option<(Instant, Duration)>,
    /// Held while the store is open.
    _lock: Option<File>,
}

pub(super) fn name_of(number: u64) -> String {
    format!("{PREFIX_OF_LOGS}{number:08}")
}

/// The number of a log's file; `None` of a name that [`name_of`] does not give.
fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX_OF_LOGS)?.parse().ok().filter(|number| name_of(*number) == name)
}

/// Whether a file is one that this program has made, and not an operator's copy of one.
fn is_ours(name: &str) -> bool {
    number_of(name.strip_suffix(SUFFIX_OF_NEW).unwrap_or(name)).is_some()
}

impl<D: Directory> Log<D> {
    /// Opens an existing store. One that is damaged, of a newer program or in use is refused and left untouched.
    ///
    /// # Errors
    /// Says which directory and why.
    pub fn open_locked(directory: D) -> Result<Self, Error> {
        let lock = lock(directory.path())?;
        let mut log = Self::open_in(directory)?;
        log._lock = Some(lock);
        Ok(log)
    }

    /// Creates a store with these records in a directory that exists and has none.
    ///
    /// # Errors
    /// Says which directory and why.
    pub fn create_locked(directory: D, records: &[Record], counters: &Counters) -> Result<Self, Error> {
        let lock = lock(directory.path())?;
        let mut log = Self::create_in(directory, records, counters)?;
        log._lock = Some(lock);
        Ok(log)
    }
}

impl Log {
    /// [`Log::open_locked`] of a directory of the machine's file system.
    ///
    /// # Errors
    /// Says which directory and why.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_locked(RealDirectory(path.to_owned()))
    }

    /// [`Log::create_locked`] in a directory of the machine's file system.
    ///
    /// # Errors
    /// Says which directory and why.
    pub fn create(path: &Path, records: &[Record], counters: &Counters) -> Result<Self, Error> {
        Self::create_locked(RealDirectory(path.to_owned()), records, counters)
    }

    /// Whether a directory has a store.
    #[must_use]
    pub fn exists(path: &Path) -> bool {
        RealDirectory(path.to_owned()).names().is_ok_and(|names| names.iter().any(|name| number_of(name).is_some()))
    }
}

/// Takes the lock of a directory, which ends with the process.
fn lock(path: &Path) -> Result<File, Error> {
    let failed = |reason: String| Error::Disk { path: path.to_owned(), attempt: "locked", reason };
    let file = directory::create_secret(&path.join(LOCK_FILE), false).map_err(|e| failed(e.to_string()))?;
    file.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => failed("another process has it open; stop windlass first".to_owned()),
        std::fs::TryLockError::Error(error) => failed(error.to_string()),
    })?;
    Ok(file)
}

impl<D: Directory> Log<D> {
    pub(crate) fn create_in(directory: D, records: &[Record], counters: &Counters) -> Result<Self, Error> {
        let failed = |reason: String| Error::Disk { path: directory.path().to_owned(), attempt: "made", reason };
        let names = directory.names().map_err(|e| failed(e.to_string()))?;
        if names.iter().any(|name| number_of(name).is_some()) {
            return Err(failed("it is there already".to_owned()));
        }
        let created = || -> io::Result<(D::File, u64)> {
            let new = format!("{}{SUFFIX_OF_NEW}", name_of(1));
            let file = directory.create(&new)?;
            let end = rewrite::write_all(&file, records, counters)?;
            file.sync()?;
            directory.rename(&new, &name_of(1))?;
            // The rename is durable only when the directory is synced.
            directory.sync()?;
            Ok((file, end))
        };
        let (file, end) = created().map_err(|e| failed(e.to_string()))?;
        Ok(Self::new(directory, file, 1, end))
    }

    pub(crate) fn open_in(directory: D) -> Result<Self, Error> {
        let failed = |reason: String| Error::Disk {
            path: directory.path().to_owned(),
            attempt: "opened",
            reason: format!("{reason}; it is left as it is"),
        };
        let opened = || -> Result<_, String> {
            let names = directory.names().map_err(|e| e.to_string())?;
            let number =
                names.iter().filter_map(|name| number_of(name)).max().ok_or("it is not a store of windlass")?;
            let name = name_of(number);
            let file = directory.open(&name).map_err(|e| e.to_string())?;
            let read = read_file(&file, |_, _| {}).map_err(|reason| format!("{name}: {reason}"))?;
            length::check(&directory, number, read.end)?;
            repair(&file, &read).map_err(|e| format!("its end could not be written once more: {e}"))?;
            // Its name may be that of a rewrite that was cut off, and on no disk yet: until it is, the previous file stays.
            directory.sync().map_err(|e| e.to_string())?;
            // The previous file, and one that was begun. They are removed at the next start otherwise.
            for other in names.iter().filter(|other| is_ours(other) && **other != name) {
                if let Err(error) = directory.remove(other) {
                    tracing::warn!(file = other, %error, "failed to remove an earlier file of the store; retrying at the next start");
                }
            }
            length::note(&directory, number, read.end);
            Ok((file, number, read.end))
        };
        let (file, number, end) = opened().map_err(failed)?;
        Ok(Self::new(directory, file, number, end))
    }

    fn new(directory: D, file: D::File, number: u64, end: u64) -> Self {
        let (broken, name_is_durable, buffer) = (false, true, Vec::new());
        let (extent, rewrite, next_rewrite, _lock) = (Extent::of(end), None, None, None);
        Self { directory, file, number, end, extent, broken, name_is_durable, buffer, rewrite, next_rewrite, _lock }
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::Disk { path: self.directory.path().to_owned(), attempt: "written", reason: error.to_string() }
    }

    /// Waits until a rewrite can be adopted.
    #[cfg(test)]
    pub(crate) fn wait_for_rewrite(&self) {
        while self.rewrite.as_ref().is_some_and(|rewrite| !rewrite.is_finished()) {
            std::thread::yield_now();
        }
    }

    /// Puts a finished rewrite in the place of the file.
    fn adopt(&mut self) -> io::Result<()> {
        let Some(rewrite) = self.rewrite.take_if(|rewrite| rewrite.is_finished()) else { return Ok(()) };
        let next = self.number + 1;
        let adopted = rewrite.finish(&self.directory, &self.file, self.end, next);
        let (file, end) = match adopted {
            Ok(adopted) => adopted,
            Err(error) => {
                let _ = self.directory.remove(&format!("{}{SUFFIX_OF_NEW}", name_of(next)));
                self.put_off_rewrite(&error.to_string());
                return Ok(());
            }
        };
        let previous = name_of(self.number);
        (self.file, self.end, self.extent, self.number) = (file, end, Extent::of(end), next);
        self.name_is_durable = false;
        self.next_rewrite = None;
        self.sync_name()?;
        // Removed at the next start otherwise.
        let _ = self.directory.remove(&previous);
        Ok(())
    }

    /// The present file goes on; its superseded records cost space only.
    fn put_off_rewrite(&mut self, why: &str) {
        let pause = self.next_rewrite.map_or(MIN_REWRITE_PAUSE, |(_, last)| (last * 2).min(MAX_REWRITE_PAUSE));
        self.next_rewrite = Some((Instant::now() + pause, pause));
        tracing::warn!(
            why,
            directory = %self.directory.path().display(),
            retry_seconds = pause.as_secs(),
            "failed to rewrite the store; keeping the present file, which is larger than it need be"
        );
    }

    fn sync_name(&mut self) -> io::Result<()> {
        if !self.name_is_durable {
            self.directory.sync()?;
            self.name_is_durable = true;
        }
        Ok(())
    }
}

impl<D: Directory> Engine for Log<D> {
    fn load(&mut self, each: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error> {
        let path = self.directory.path().to_owned();
        read_file(&self.file, each).map(drop).map_err(|reason| Error::Disk { path, attempt: "read", reason })
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error> {
        if self.broken {
            return Err(self.failed(&io::Error::other("an earlier write has failed")));
        }
        self.buffer.clear();
        // Nothing is written of what could not be read again.
        frame::write_frame(&mut self.buffer, records, counters).map_err(|error| self.failed(&error))?;
        let written = self.adopt().and_then(|()| self.file.write_at(self.end, &self.buffer));
        let end = self.end + self.buffer.len() as u64;
        let is_clean_end = counters.ceiling == counters.revision;
        let synced = written.and_then(|()| {
            if !is_clean_end {
                self.extent.fill(&self.file, end);
            }
            self.file.sync()
        });
        if let Err(error) = synced {
            self.broken = true;
            return Err(self.failed(&error));
        }
        self.end = end;
        if is_clean_end {
            // With the zeros it would be as whole.
            if self.extent.is_behind(end) && self.file.truncate(end).is_ok() {
                self.extent = Extent::of(end);
            }
            length::note(&self.directory, self.number, self.end);
        }
        if self.buffer.capacity() > MAX_KEPT_BUFFER {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Error> {
        let restored = self.sync_name().and_then(|()| cut(&self.file, self.end));
        restored.map_err(|error| self.failed(&error))?;
        self.extent = Extent::of(self.end);
        self.broken = false;
        Ok(())
    }

    fn size(&self) -> u64 {
        // One rewrite at a time, and none soon after one that failed.
        let waits = self.next_rewrite.is_some_and(|(at, _)| Instant::now() < at);
        if self.rewrite.is_some() || waits { 0 } else { self.end }
    }

    fn rewrite(&mut self, records: Vec<Record>, counters: Counters) {
        let needed: u64 = records.iter().map(|record| record.object.bytes.len() as u64).sum::<u64>() + SPARE_BYTES;
        match self.directory.free_bytes() {
            Ok(free) if free < needed => {
                return self.put_off_rewrite(&format!("its disk has room for {free} bytes, and {needed} are needed"));
            }
            Ok(_) => {}
            Err(error) => return self.put_off_rewrite(&format!("its disk cannot be asked for its room: {error}")),
        }
        let name = format!("{}{SUFFIX_OF_NEW}", name_of(self.number + 1));
        self.rewrite = Some(Rewrite::begin(self.directory.clone(), name, records, counters, self.end));
    }
}

/// What a file has.
#[derive(Debug)]
pub(super) struct ReadLog {
    pub(super) counters: Counters,
    /// Where the last whole frame begins and ends.
    pub(super) last: u64,
    pub(super) end: u64,
    pub(super) length: u64,
    /// Behind the last frame is something else than zeros.
    pub(super) is_torn: bool,
}

/// Reads a file up to a torn tail, commit by commit.
pub(super) fn read_file(file: &impl LogFile, mut each: impl FnMut(Vec<Record>, &Counters)) -> Result<ReadLog, String> {
    let text = |e: io::Error| e.to_string();
    let length = file.length().map_err(text)?;
    let mut header = [0; HEADER.len()];
    if length < header.len() as u64 {
        return Err(format!("it is only {length} bytes long and no store of windlass"));
    }
    file.read_at(0, &mut header).map_err(text)?;
    let (name, version) = header.split_at(HEADER.len() - 1);
    if *name != HEADER[..HEADER.len() - 1] {
        return Err("it is not a store of windlass".to_owned());
    }
    if version[0] != HEADER[HEADER.len() - 1] {
        let (is, known) = (version[0], HEADER[HEADER.len() - 1]);
        return Err(format!(
            "it has layout {is} and this program knows {known}; use the program that wrote it, or a newer one"
        ));
    }
    let mut end = HEADER.len() as u64;
    let mut read = ReadLog { counters: Counters::default(), last: end, end, length, is_torn: false };
    let (mut payload, mut missed) = (Vec::new(), None);
    loop {
        while read_frame(file, end, length, &mut payload).map_err(text)? {
            let records = frame::read_payload(&payload, &mut read.counters);
            let wrong = || format!("the commit at {end} cannot be read though its checksum is right");
            each(records.ok_or_else(wrong)?, &read.counters);
            (read.last, end) = (end, end + (PREFIX + payload.len()) as u64);
            read.end = end;
        }
        // The first frame comes with the file.
        if read.end == HEADER.len() as u64 {
            return Err("it is damaged at its beginning; restore it from a backup".to_owned());
        }
        let Some(later) = find_frame(file, end + 1, length).map_err(text)? else { break };
        if missed == Some(end) {
            return Err(format!(
                "it is damaged at {end} of {length} bytes, and there are commits after it, at {later}; restore it from a backup"
            ));
        }
        // In a store that is in use it may have been written just now.
        missed = Some(end);
    }
    read.is_torn = !extent::is_zero(file, read.end, length).map_err(text)?;
    Ok(read)
}

/// Reads the payload of a whole frame at an offset; false if it is incomplete or its checksum is wrong.
fn read_frame(file: &impl LogFile, at: u64, length: u64, payload: &mut Vec<u8>) -> io::Result<bool> {
    let mut prefix = [0; PREFIX];
    if at + PREFIX as u64 > length {
        return Ok(false);
    }
    file.read_at(at, &mut prefix)?;
    let Some((size, checksum)) = frame::read_prefix(&prefix) else { return Ok(false) };
    if at + (PREFIX + size) as u64 > length {
        return Ok(false);
    }
    payload.resize(size, 0);
    file.read_at(at + PREFIX as u64, payload)?;
    Ok(crc32fast::hash(payload) == checksum)
}

/// The first whole frame from an offset on.
fn find_frame(file: &impl LogFile, from: u64, length: u64) -> io::Result<Option<u64>> {
    let (mut chunk, mut payload, mut at) = (vec![0; CHUNK_BYTES], Vec::new(), from);
    while at < length {
        let size = usize::try_from(length - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        file.read_at(at, &mut chunk[..size])?;
        for offset in chunk[..size].windows(MAGIC.len()).enumerate().filter(|(_, w)| **w == MAGIC).map(|(i, _)| i) {
            let found = at + offset as u64;
            if read_frame(file, found, length, &mut payload)? {
                return Ok(Some(found));
            }
        }
        if size < CHUNK_BYTES {
            return Ok(None);
        }
        // A magic may stand across the border of chunks.
        at += (size - MAGIC.len() + 1) as u64;
    }
    Ok(None)
}

/// Cuts off a torn tail and writes the last frame once more.
fn repair(file: &impl LogFile, read: &ReadLog) -> io::Result<()> {
    if read.length > read.end {
        if read.is_torn {
            tracing::warn!(bytes = read.length - read.end, "the store's last write was not completed; cutting it off");
        }
        file.truncate(read.end)?;
    }
    let mut at = read.last;
    let mut chunk = vec![0; CHUNK_BYTES];
    while at < read.end {
        let size = usize::try_from(read.end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        file.read_at(at, &mut chunk[..size])?;
        file.write_at(at, &chunk[..size])?;
        at += size as u64;
    }
    file.sync()
}

/// Makes a file end at an offset, durably: the page that was cut through may be on no disk after a failed sync.
fn cut(file: &impl LogFile, end: u64) -> io::Result<()> {
    file.truncate(end)?;
    let start = end - end % PAGE_BYTES;
    let mut page = vec![0; usize::try_from(end - start).unwrap_or(0)];
    file.read_at(start, &mut page)?;
    file.write_at(start, &page)?;
    file.sync()
}
