//! The log file of a node started with `--detach`. It is on a tmpfs, so its size is limited.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use windlass_kit::blocking::FILES;

/// A larger log is rotated; one old file is kept.
const MAX_BYTES: u64 = 8 << 20;
/// How often the size is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Rotates the log when needed; never returns.
pub(crate) async fn rotate_forever(log: Option<&Path>) -> std::convert::Infallible {
    let Some(log) = log else { return std::future::pending().await };
    loop {
        let path = log.to_owned();
        let rotated = FILES.io(move || rotate(&path, MAX_BYTES)).await;
        if let Err(error) = rotated {
            tracing::warn!(%error, log = %log.display(), "failed to rotate the log file; retrying");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Rotates a log of more than `max_bytes`. Its writers append, so they continue at the start.
fn rotate(log: &Path, max_bytes: u64) -> io::Result<()> {
    if fs::metadata(log)?.len() <= max_bytes {
        return Ok(());
    }
    fs::copy(log, rotated_path(log))?;
    OpenOptions::new().write(true).open(log)?.set_len(0)
}

/// The path of the old log.
fn rotated_path(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_large_log_is_rotated_once() {
        let dir = std::env::temp_dir().join(format!("windlass-log-test-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let log = dir.join("windlass.log");
        let mut writer = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        writer.write_all(b"first").unwrap();
        rotate(&log, 5).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "first");
        writer.write_all(b" second").unwrap();
        rotate(&log, 5).unwrap();
        writer.write_all(b"third").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "third");
        assert_eq!(fs::read_to_string(rotated_path(&log)).unwrap(), "first second");
        fs::remove_dir_all(dir).unwrap();
    }
}
