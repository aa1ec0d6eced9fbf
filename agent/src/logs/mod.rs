//! Container logs, read from the files that Docker Engine writes, without asking Docker for the lines.
//!
//! `entry` parses a line of a log file and is pure; `files` finds the files of a log and where a tail starts; `reader`
//! turns them into output; `follow` streams it to a client. Imports nothing of `pods` or `server`.

pub mod entry;
mod files;
mod follow;
mod reader;

pub(crate) use follow::{ContainerExit, stream};

/// The whole log at `path` as it is now.
///
/// # Errors
/// When its files cannot be read.
pub fn read_to_end(path: &std::path::Path, request: LogRequest) -> std::io::Result<Vec<u8>> {
    let mut reader = reader::Reader::open(path, LogRequest { follow: false, ..request })?;
    let mut out = Vec::new();
    loop {
        let mut chunk = Vec::new();
        let state = reader.fill(&mut chunk)?;
        out.append(&mut chunk);
        if state != reader::ReadState::More {
            return Ok(out);
        }
    }
}

/// Options of a log request, as of `PodLogOptions`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRequest {
    /// Stream lines as they are written.
    pub follow: bool,
    /// The log of the previous container instance.
    pub previous: bool,
    /// Prefix each line with its timestamp.
    pub timestamps: bool,
    /// Only this many of the last lines.
    pub tail: Option<u64>,
    /// Only lines since then, in nanoseconds since 1970.
    pub since: Option<i64>,
    /// Most bytes.
    pub limit: Option<u64>,
}
