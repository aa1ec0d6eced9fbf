//! What containers have printed, read from the files that Docker Engine keeps, without asking it for the lines.
//!
//! `entry` knows a line of a file and is pure; `files` knows which files hold a log and where to begin; `reader` turns
//! them into what was printed; `follow` is the stream that a client gets. Imports nothing of `pods` or `server`.

pub mod entry;
mod files;
mod follow;
mod reader;

pub(crate) use follow::{Follow, stream};

/// All that the files of the log at `path` hold now, in one piece.
///
/// # Errors
/// When they cannot be read.
pub fn whole(path: &std::path::Path, request: LogRequest) -> std::io::Result<Vec<u8>> {
    let mut reader = reader::Reader::open(path, LogRequest { follow: false, ..request })?;
    let mut out = Vec::new();
    loop {
        let mut piece = Vec::new();
        let left = reader.fill(&mut piece)?;
        out.append(&mut piece);
        if left != reader::Left::More {
            return Ok(out);
        }
    }
}

/// Which lines are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRequest {
    /// Wait for more.
    pub follow: bool,
    /// Of the attempt before the newest.
    pub previous: bool,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Only so many of the last lines.
    pub tail: Option<u64>,
    /// Only lines since then, in nanoseconds since 1970.
    pub since: Option<i64>,
    /// No more than so many bytes.
    pub limit: Option<u64>,
}
