//! Zeros behind the last commit: a commit into blocks that were written before needs no commit of the file system's
//! journal, which takes longer than the data. `fallocate` does not help: the first write into such a block is
//! journalled, too.

use std::io;

use super::{CHUNK_BYTES, LogFile};

/// Zeros that are written at once. Tests cross the end of them often.
const EXTENT_BYTES: u64 = if cfg!(test) { 8 << 10 } else { 4 << 20 };

/// How far a file is filled with zeros.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    filled: u64,
    /// Writing them has failed: the file grows with each commit.
    has_failed: bool,
}

impl Extent {
    /// Of a file that ends at its last commit.
    pub(super) fn of(end: u64) -> Self {
        Self { filled: end, has_failed: false }
    }

    /// Whether zeros are behind an offset.
    pub(super) fn is_behind(self, end: u64) -> bool {
        self.filled > end
    }

    /// Writes further zeros behind a commit that ends at an offset, when none are left. They become durable with the
    /// commit; without them it is as whole as with them.
    pub(super) fn fill(&mut self, file: &impl LogFile, end: u64) {
        if end <= self.filled || self.has_failed {
            return;
        }
        let to = end + EXTENT_BYTES;
        match write_zeros(file, end, to) {
            Ok(()) => self.filled = to,
            Err(error) => {
                tracing::warn!(%error, "failed to reserve space for the store; its file grows with each commit");
                // Some may be there.
                *self = Self { filled: to, has_failed: true };
            }
        }
    }
}

fn write_zeros(file: &impl LogFile, mut at: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(to - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES)];
    while at < to {
        let size = usize::try_from(to - at).unwrap_or(CHUNK_BYTES).min(zeros.len());
        file.write_at(at, &zeros[..size])?;
        at += size as u64;
    }
    Ok(())
}

/// Whether a part of a file is all zeros.
pub(super) fn is_zero(file: &impl LogFile, mut at: u64, to: u64) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK_BYTES];
    while at < to {
        let size = usize::try_from(to - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        file.read_at(at, &mut chunk[..size])?;
        if chunk[..size].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += size as u64;
    }
    Ok(true)
}
