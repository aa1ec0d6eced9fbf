//! How long the log was at the last start or clean end: a log that somebody has cut looks like one with a torn tail
//! otherwise. The file is a hint, without which a log is read as it is.

use std::io;

use super::{Directory, LogFile};

const NAME: &str = "length";
/// No longer text is one of ours.
const MAX_BYTES: u64 = 64;

/// Notes that the file of a number has so many bytes on disk.
pub(super) fn note(directory: &impl Directory, number: u64, bytes: u64) {
    let noted = directory.create(NAME).and_then(|file| {
        file.write_at(0, format!("{number} {bytes}\n").as_bytes())?;
        file.sync()
    });
    if let Err(error) = noted {
        tracing::debug!(%error, "failed to note the length of the store");
    }
}

/// Removes what was noted of a store that is gone.
pub(super) fn forget(directory: &impl Directory) -> io::Result<()> {
    match directory.remove(NAME) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Refuses a log that is shorter than what was noted.
pub(super) fn check(directory: &impl Directory, number: u64, bytes: u64) -> Result<(), String> {
    let Some((noted_number, noted_bytes)) = read(directory) else { return Ok(()) };
    if number < noted_number {
        return Err(format!("log-{noted_number:08} is missing; restore the store from a backup"));
    }
    if number == noted_number && bytes < noted_bytes {
        return Err(format!("it is cut short: {bytes} bytes of at least {noted_bytes}; restore it from a backup"));
    }
    Ok(())
}

fn read(directory: &impl Directory) -> Option<(u64, u64)> {
    let file = directory.open(NAME).ok()?;
    let length = file.length().ok().filter(|length| *length <= MAX_BYTES)?;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_at(0, &mut bytes).ok()?;
    // A line that is not whole says nothing.
    let (number, bytes) = std::str::from_utf8(&bytes).ok()?.strip_suffix('\n')?.split_once(' ')?;
    Some((number.parse().ok()?, bytes.parse().ok()?))
}
