//! The files of one container's log: the one that is written, and those it was before it was rotated (`….1`, `….2.gz`:
//! a higher number is older).

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use memchr::memrchr;

use super::entry;

/// Bytes of one read when a file is searched from its end.
const BLOCK_BYTES: u64 = 128 << 10;
/// Longer entries are skipped: Docker's have 16 KiB of text.
pub(super) const MAX_ENTRY_BYTES: usize = 4 << 20;
/// The most of a compressed file's end that is kept while it is searched: enough for the tails that people ask for.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// One file of a log, open, so that it stays readable when it is rotated away.
#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) file: File,
    pub(super) gzip: bool,
    /// The content to read in place of the file, if it was determined while searching.
    pub(super) end: Option<Vec<u8>>,
    pub(super) inode: u64,
    /// Its length at the time of opening.
    pub(super) length: u64,
    pub(super) begin: Start,
}

/// Where reading starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// At this offset.
    Byte(u64),
    /// After this many lines, for compressed files, which cannot be read from the middle.
    Line(u64),
}

impl LogFile {
    fn open(path: &Path, gzip: bool) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Self { file, gzip, end: None, inode: metadata.ino(), length: metadata.len(), begin: Start::Byte(0) })
    }
}

/// All files of the log whose newest one is `path`, oldest first.
///
/// # Errors
/// When there is no file, or one cannot be opened.
pub(super) fn open_all(path: &Path) -> io::Result<Vec<LogFile>> {
    // Newest first: a file that is rotated meanwhile is found twice, and none is missed.
    let mut parts: Vec<LogFile> = Vec::new();
    let mut missing = None;
    match LogFile::open(path, false) {
        Ok(part) => parts.push(part),
        // A rotation is between the rename and the creation of the new file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing = Some(error),
        Err(error) => return Err(error),
    }
    let rotated = |number: u32, end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}{end}"));
        PathBuf::from(name)
    };
    for number in 1.. {
        let part = match LogFile::open(&rotated(number, ""), false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => LogFile::open(&rotated(number, ".gz"), true),
            opened => opened,
        };
        match part {
            Ok(part) if parts.iter().any(|p| p.inode == part.inode) => {}
            Ok(part) => parts.push(part),
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    if let (true, Some(missing)) = (parts.is_empty(), missing) {
        return Err(missing);
    }
    parts.reverse();
    Ok(parts)
}

/// Drops from `parts` the files that hold none of the last `wanted` lines, and sets where reading starts.
pub(super) fn keep_tail(parts: &mut Vec<LogFile>, wanted: u64) -> io::Result<()> {
    let mut seen = 0;
    for at in (0..parts.len()).rev() {
        let part = &mut parts[at];
        let begin = if part.gzip {
            let end = search(&part.file, wanted.saturating_sub(seen))?;
            seen += end.lines;
            part.file = reopened(&part.file)?;
            part.end = end.kept;
            let from = if part.end.is_some() { Start::Byte(0) } else { Start::Line(seen.saturating_sub(wanted)) };
            (seen > wanted).then_some(from)
        } else {
            tail_offset(&part.file, part.length, wanted, &mut seen)?.map(Start::Byte)
        };
        if let Some(begin) = begin {
            part.begin = begin;
            parts.drain(..at);
            return Ok(());
        }
    }
    Ok(())
}

/// The same file, reopened with its own offset at the start.
fn reopened(file: &File) -> io::Result<File> {
    use std::io::Seek as _;
    let mut again = file.try_clone()?;
    again.rewind()?;
    Ok(again)
}

/// What was found in a compressed file.
struct Searched {
    /// All of its lines.
    lines: u64,
    /// Its last lines, as in the file; `None` when they are too large to be kept.
    kept: Option<Vec<u8>>,
}

/// Looks for the last `wanted` lines of a compressed file. It must be unpacked to its end to be searched, and that is done
/// once: what may belong to the tail is kept on the way.
fn search(file: &File, wanted: u64) -> io::Result<Searched> {
    let (mut lines, mut kept, mut fits) = (0, VecDeque::new(), true);
    // Lines of several entries, each as long as its entries; the last one is of the line that has not ended yet.
    let (mut lengths, mut begun) = (VecDeque::new(), 0);
    each_entry(MultiGzDecoder::new(file), |entry| {
        let Some(ends) = ends_line(entry) else { return };
        if fits {
            kept.extend(entry);
            kept.push_back(b'\n');
            begun += entry.len() + 1;
        }
        if ends {
            lines += 1;
            lengths.push_back(std::mem::take(&mut begun));
            if lengths.len() as u64 > wanted {
                kept.drain(..lengths.pop_front().unwrap_or(0));
            }
        }
        if kept.len() > MAX_KEPT_BYTES {
            fits = false;
            kept = VecDeque::new();
            lengths = VecDeque::new();
        }
    })?;
    Ok(Searched { lines, kept: fits.then(|| kept.into()) })
}

fn each_entry(source: impl Read, mut visit: impl FnMut(&[u8])) -> io::Result<()> {
    use std::io::BufRead as _;
    let mut source = io::BufReader::with_capacity(256 << 10, source);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = source.by_ref().take(MAX_ENTRY_BYTES as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        visit(line.strip_suffix(b"\n").unwrap_or(&line));
    }
}

/// Whether a line ends with this entry; `None` when it cannot be parsed.
fn ends_line(line: &[u8]) -> Option<bool> {
    Some(entry::parse(line)?.content.ends_line())
}

/// The offset at which the last `wanted` lines start within the first `length` bytes of a file; `None` when all of it
/// belongs to them. `seen` counts lines of later files too.
fn tail_offset(file: &File, length: u64, wanted: u64, seen: &mut u64) -> io::Result<Option<u64>> {
    // The bytes from `from` that are not yet searched.
    let (mut window, mut from) = (Vec::new(), length);
    loop {
        let within = window.len().saturating_sub(1);
        let start = match memrchr(b'\n', &window[..within]) {
            Some(at) => at + 1,
            None if from == 0 && window.is_empty() => return Ok(None),
            None if from == 0 => 0,
            None => {
                if window.len() > MAX_ENTRY_BYTES {
                    window.clear();
                }
                let size = from.min(BLOCK_BYTES);
                from -= size;
                let mut block = vec![0; usize::try_from(size).unwrap_or(0)];
                file.read_exact_at(&mut block, from)?;
                block.append(&mut window);
                window = block;
                continue;
            }
        };
        let entry = window[start..].strip_suffix(b"\n").unwrap_or(&window[start..]);
        // The newest line counts even if it has not ended yet.
        if ends_line(entry).is_some_and(|ends| ends || *seen == 0) {
            *seen += 1;
            if *seen > wanted {
                return Ok(Some(from + window.len() as u64));
            }
        }
        window.truncate(start);
    }
}
