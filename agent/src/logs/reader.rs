//! From the files of a log to what was printed, a piece at a time. Blocks; see `follow` for who calls it.

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
    files::{self, Begin, LONGEST_ENTRY, Part},
};

/// A piece is about this large: large enough for the network, small enough for a thousand readers.
pub(super) const PIECE: usize = 256 << 10;

#[derive(Debug)]
enum Source {
    Plain(File),
    Gzip(Box<MultiGzDecoder<File>>),
}

/// What [`Reader::fill`] left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// There is more.
    More,
    /// All that is there was read.
    Nothing,
    /// No more is wanted.
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
    later: VecDeque<Part>,
    /// Read and not yet printed: `raw[start..end]`.
    raw: Vec<u8>,
    start: usize,
    end: usize,
    /// What is read belongs to an entry that is too long.
    overlong: bool,
    /// The next entry begins a line.
    line_begins: bool,
    printed: u64,
    /// The time of the last entry that was read.
    last: Option<i64>,
    /// Entries up to this time were printed before.
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
            // What nobody wrote to since then holds nothing newer; the last one is kept in any case.
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
            raw: vec![0; PIECE],
            start: 0,
            end: 0,
            overlong: false,
            line_begins: true,
            printed: 0,
            last: None,
            after: None,
        };
        reader.turn_to(first)?;
        Ok(reader)
    }

    fn turn_to(&mut self, mut part: Part) -> io::Result<()> {
        let newest = self.later.is_empty();
        (self.position, self.skip) = match part.begin {
            Begin::Byte(at) => (at, 0),
            Begin::Line(lines) => (0, lines),
        };
        part.file.seek(SeekFrom::Start(self.position))?;
        // A container that prints faster than the client reads would never come to an end.
        let bounded = newest && !self.request.follow && !part.gzip;
        self.limit = if bounded { part.length.saturating_sub(self.position) } else { u64::MAX };
        self.inode = part.inode;
        self.source =
            if part.gzip { Source::Gzip(Box::new(MultiGzDecoder::new(part.file))) } else { Source::Plain(part.file) };
        (self.start, self.end, self.overlong) = (0, 0, false);
        Ok(())
    }

    /// Appends about a [`PIECE`] of what was printed.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>) -> io::Result<Left> {
        loop {
            if self.print(out) {
                return Ok(Left::Done);
            }
            if out.len() >= PIECE {
                return Ok(Left::More);
            }
            if self.read()? {
                continue;
            }
            // What has no newline is whole nevertheless, unless it is being written.
            if !(self.request.follow && self.later.is_empty()) && self.print_rest(out) {
                return Ok(Left::Done);
            }
            match self.later.pop_front() {
                Some(part) => self.turn_to(part)?,
                None if self.request.follow => return Ok(Left::Nothing),
                None => return Ok(Left::Done),
            }
        }
    }

    /// At the end of what is there: looks whether the file was rotated, and turns to what came after it. `false`
    /// when there is nothing new.
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
            // Emptied in place, which is what Docker does where it may keep one file only.
            if let Source::Plain(file) = &mut self.source {
                file.rewind()?;
            }
            (self.position, self.start, self.end) = (0, 0, 0);
            return Ok(true);
        }
        // Written between the last look and the renaming; nothing comes to it any more.
        if self.read()? {
            return Ok(true);
        }
        let mut parts = VecDeque::from(files::open_all(&self.path)?);
        match parts.iter().position(|p| p.inode == self.inode) {
            Some(at) => drop(parts.drain(..=at)),
            // Rotated away or compressed meanwhile: the times tell what was printed.
            None => self.after = self.last,
        }
        let Some(next) = parts.pop_front() else { return Ok(false) };
        self.later = parts;
        self.turn_to(next)?;
        Ok(true)
    }

    /// Reads more of the source; `false` at its end.
    fn read(&mut self) -> io::Result<bool> {
        self.raw.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.raw.len() {
            if self.raw.len() >= LONGEST_ENTRY {
                (self.end, self.overlong) = (0, true);
            } else {
                self.raw.resize(self.raw.len() * 2, 0);
            }
        }
        let room = usize::try_from(self.limit).unwrap_or(usize::MAX).min(self.raw.len() - self.end);
        let space = &mut self.raw[self.end..self.end + room];
        let read = match &mut self.source {
            Source::Plain(file) => file.read(space)?,
            Source::Gzip(file) => file.read(space)?,
        };
        self.end += read;
        self.position += read as u64;
        self.limit = self.limit.saturating_sub(read as u64);
        Ok(read > 0)
    }

    /// Prints the whole lines that were read; `true` when no more is wanted.
    fn print(&mut self, out: &mut Vec<u8>) -> bool {
        let raw = std::mem::take(&mut self.raw);
        let mut last = None;
        let mut done = false;
        while !done && out.len() < PIECE {
            let Some(length) = memchr(b'\n', &raw[self.start..self.end]) else { break };
            let line = &raw[self.start..self.start + length];
            self.start += length + 1;
            if std::mem::take(&mut self.overlong) {
                continue;
            }
            if let Some(entry) = entry::parse(line) {
                done = self.print_entry(&entry, out);
                last = Some(entry);
            }
        }
        if let Some(entry) = last.filter(|_| self.request.follow) {
            self.last = entry::nanoseconds(&entry.time).or(self.last);
        }
        self.raw = raw;
        done
    }

    /// Prints what stands behind the last newline.
    fn print_rest(&mut self, out: &mut Vec<u8>) -> bool {
        let raw = std::mem::take(&mut self.raw);
        let rest = entry::parse(&raw[self.start..self.end]).filter(|_| !self.overlong);
        let done = rest.is_some_and(|entry| self.print_entry(&entry, out));
        self.start = self.end;
        self.raw = raw;
        done
    }

    fn print_entry(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) -> bool {
        if self.skip > 0 {
            self.skip -= u64::from(entry.printed.ends_line());
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
        entry.printed.write(out);
        self.line_begins = entry.printed.ends_line();
        let Some(limit) = self.request.limit else { return false };
        self.printed += (out.len() - before) as u64;
        if self.printed > limit {
            let excess = usize::try_from(self.printed - limit).unwrap_or(usize::MAX);
            out.truncate(out.len().saturating_sub(excess));
        }
        self.printed >= limit
    }
}

#[cfg(test)]
mod tests;
