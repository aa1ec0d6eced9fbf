//! Reads the files of a log and turns them into output, a chunk at a time. Blocking; called by `follow` on blocking
//! threads.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use memchr::memchr;

use super::{
    LogRequest,
    entry::{self, Entry},
    files::{self, LogFile, MAX_ENTRY_BYTES, Start},
};

/// The size of a chunk: large enough for the network, small enough for a thousand readers.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// The size of a read of a log that little is written to, which is most of those that are followed. It grows to a chunk while
/// there is more.
const MIN_READ_BYTES: usize = 16 << 10;

#[derive(Debug)]
enum Source {
    Plain(File),
    Gzip(Box<MultiGzDecoder<File>>),
    /// The end of a compressed file, which was unpacked to find it.
    Unpacked(io::Cursor<Vec<u8>>),
}

/// What is left after [`Reader::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadState {
    /// More can be read at once.
    More,
    /// Everything was read; more may be written.
    CaughtUp,
    /// The request is complete.
    Done,
}

/// Reads one log.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    request: LogRequest,
    source: Source,
    inode: u64,
    /// Bytes of the source that were read.
    position: u64,
    /// Bytes of the source that may still be read.
    limit: u64,
    /// Lines to leave out.
    skip: u64,
    /// Files that come after the source, oldest first.
    later: VecDeque<LogFile>,
    /// Bytes read but not yet parsed: `raw[start..end]`.
    raw: Vec<u8>,
    start: usize,
    end: usize,
    /// The last read took all that there was room for.
    full: bool,
    /// The bytes read belong to an entry beyond the maximum.
    overlong: bool,
    /// The next entry starts a line.
    line_begins: bool,
    written: u64,
    /// The time of the last entry that was read.
    last: Option<i64>,
    /// Entries up to this time were already written.
    after: Option<i64>,
}

impl Reader {
    /// Opens the log whose newest file is `path`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn open(path: &Path, request: LogRequest) -> io::Result<Self> {
        let mut parts = files::open_all(path)?;
        if let Some(since) = request.since {
            // A file that was not modified since then holds no newer lines; the newest is kept in any case.
            let newest = parts.len().saturating_sub(1);
            let mut index = 0;
            parts.retain(|part| {
                index += 1;
                index > newest || part.file.metadata().is_ok_and(|m| m.mtime() >= since.div_euclid(1_000_000_000))
            });
        }
        if let Some(tail) = request.tail {
            files::keep_tail(&mut parts, tail)?;
        }
        let mut parts = VecDeque::from(parts);
        let first = parts.pop_front().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut reader = Self {
            path: path.to_owned(),
            request,
            source: Source::Plain(first.file.try_clone()?),
            inode: 0,
            position: 0,
            limit: 0,
            skip: 0,
            later: parts,
            raw: Vec::new(),
            start: 0,
            end: 0,
            full: false,
            overlong: false,
            line_begins: true,
            written: 0,
            last: None,
            after: None,
        };
        reader.switch_to(first)?;
        Ok(reader)
    }

    fn switch_to(&mut self, mut part: LogFile) -> io::Result<()> {
        let newest = self.later.is_empty();
        (self.position, self.skip) = match part.begin {
            Start::Byte(at) => (at, 0),
            Start::Line(lines) => (0, lines),
        };
        part.file.seek(SeekFrom::Start(self.position))?;
        // Without a limit a container that prints faster than the client reads would never end.
        let bounded = newest && !self.request.follow && !part.gzip;
        self.limit = if bounded { part.length.saturating_sub(self.position) } else { u64::MAX };
        self.inode = part.inode;
        self.source = match (part.end, part.gzip) {
            (Some(end), _) => Source::Unpacked(io::Cursor::new(end)),
            (None, true) => Source::Gzip(Box::new(MultiGzDecoder::new(part.file))),
            (None, false) => Source::Plain(part.file),
        };
        (self.start, self.end, self.overlong) = (0, 0, false);
        Ok(())
    }

    /// Appends about [`CHUNK_BYTES`] of output.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>) -> io::Result<ReadState> {
        loop {
            if self.write_lines(out) {
                return Ok(ReadState::Done);
            }
            if out.len() >= CHUNK_BYTES {
                return Ok(ReadState::More);
            }
            if self.read()? {
                continue;
            }
            // An entry without newline is complete, unless it is still being written.
            if !(self.request.follow && self.later.is_empty()) && self.write_rest(out) {
                return Ok(ReadState::Done);
            }
            match self.later.pop_front() {
                Some(part) => self.switch_to(part)?,
                None if self.request.follow => {
                    self.shrink();
                    return Ok(ReadState::CaughtUp);
                }
                None => return Ok(ReadState::Done),
            }
        }
    }

    /// At the end of the file: checks whether it was rotated, and switches to the next file. Returns `false` when
    /// nothing changed.
    pub(super) fn follow_rotation(&mut self) -> io::Result<bool> {
        let current = match fs::metadata(&self.path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(current) = current.filter(|m| m.ino() == self.inode) {
            if current.len() >= self.position {
                return Ok(false);
            }
            // Truncated in place, which Docker does when `max-file` is 1.
            if let Source::Plain(file) = &mut self.source {
                file.rewind()?;
            }
            (self.position, self.start, self.end) = (0, 0, 0);
            return Ok(true);
        }
        // Written between the last read and the rename; nothing is appended to it any more.
        if self.read()? {
            return Ok(true);
        }
        let mut parts = VecDeque::from(files::open_all(&self.path)?);
        match parts.iter().position(|p| p.inode == self.inode) {
            Some(at) => drop(parts.drain(..=at)),
            // Rotated away or compressed meanwhile: timestamps show which entries were written already.
            None => self.after = self.last,
        }
        let Some(next) = parts.pop_front() else { return Ok(false) };
        self.later = parts;
        self.switch_to(next)?;
        Ok(true)
    }

    /// How much output the next [`Self::fill`] may give, by what was read last.
    pub(super) fn expected(&self) -> usize {
        if self.full { CHUNK_BYTES + (64 << 10) } else { 0 }
    }

    /// Frees read buffers: a waiting follower keeps only the incomplete entry that it has begun to read.
    fn shrink(&mut self) {
        self.raw.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        self.raw.truncate(self.end);
        self.raw.shrink_to_fit();
    }

    /// Reads more of the source; `false` at its end.
    fn read(&mut self) -> io::Result<bool> {
        self.raw.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.raw.len() {
            if self.raw.len() >= MAX_ENTRY_BYTES {
                (self.end, self.overlong) = (0, true);
            } else {
                self.raw.resize((self.raw.len() * 2).max(MIN_READ_BYTES), 0);
            }
        } else if self.full && self.raw.len() < CHUNK_BYTES {
            self.raw.resize((self.raw.len() * 2).min(CHUNK_BYTES), 0);
        }
        let room = usize::try_from(self.limit).unwrap_or(usize::MAX).min(self.raw.len() - self.end);
        let space = &mut self.raw[self.end..self.end + room];
        let read = match &mut self.source {
            Source::Plain(file) => file.read(space)?,
            Source::Gzip(file) => file.read(space)?,
            Source::Unpacked(end) => end.read(space)?,
        };
        self.full = read == room;
        self.end += read;
        self.position += read as u64;
        self.limit = self.limit.saturating_sub(read as u64);
        Ok(read > 0)
    }

    /// Writes the complete lines that were read; `true` when the request is complete.
    fn write_lines(&mut self, out: &mut Vec<u8>) -> bool {
        let raw = std::mem::take(&mut self.raw);
        let mut last = None;
        let mut done = false;
        while !done && out.len() < CHUNK_BYTES {
            let Some(length) = memchr(b'\n', &raw[self.start..self.end]) else { break };
            let line = &raw[self.start..self.start + length];
            self.start += length + 1;
            if std::mem::take(&mut self.overlong) {
                continue;
            }
            if let Some(entry) = entry::parse(line) {
                done = self.write_entry(&entry, out);
                last = Some(entry);
            }
        }
        if let Some(entry) = last.filter(|_| self.request.follow) {
            self.last = entry::nanoseconds(&entry.time).or(self.last);
        }
        self.raw = raw;
        done
    }

    /// Writes what follows the last newline.
    fn write_rest(&mut self, out: &mut Vec<u8>) -> bool {
        let raw = std::mem::take(&mut self.raw);
        let rest = entry::parse(&raw[self.start..self.end]).filter(|_| !self.overlong);
        let done = rest.is_some_and(|entry| self.write_entry(&entry, out));
        self.start = self.end;
        self.raw = raw;
        done
    }

    fn write_entry(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) -> bool {
        if self.skip > 0 {
            self.skip -= u64::from(entry.content.ends_line());
            return false;
        }
        if self.request.since.is_some() || self.after.is_some() {
            let at = entry::nanoseconds(&entry.time);
            let old = |at: i64| self.request.since.is_some_and(|s| at < s) || self.after.is_some_and(|a| at <= a);
            if at.is_some_and(old) {
                return false;
            }
        }
        let before = out.len();
        if self.request.timestamps && self.line_begins {
            entry::write_time(&entry.time, out);
            out.push(b' ');
        }
        entry.content.write(out);
        self.line_begins = entry.content.ends_line();
        let Some(limit) = self.request.limit else { return false };
        self.written += (out.len() - before) as u64;
        if self.written > limit {
            let excess = usize::try_from(self.written - limit).unwrap_or(usize::MAX);
            out.truncate(out.len().saturating_sub(excess));
        }
        self.written >= limit
    }
}

#[cfg(test)]
mod tests;
