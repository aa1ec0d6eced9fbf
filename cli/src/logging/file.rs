//! The log file of a node that was started in the background. It is on a file system in memory, so it must stay short.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// A longer log begins anew; what was there is kept beside it once.
const MAX_BYTES: u64 = 8 << 20;
/// It is looked at this often.
const LOOK: Duration = Duration::from_secs(30);

/// Keeps the log short for as long as the process runs.
pub(crate) async fn keep_short(log: Option<&Path>) -> std::convert::Infallible {
    let Some(log) = log else { return std::future::pending().await };
    loop {
        let path = log.to_owned();
        let kept = tokio::task::spawn_blocking(move || cut(&path, MAX_BYTES)).await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(%error, log = %log.display(), "the log could not be cut, and grows");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Begins the log anew when it is longer than `most`. Who writes to it appends, so it goes on at the beginning.
fn cut(log: &Path, most: u64) -> io::Result<()> {
    if fs::metadata(log)?.len() <= most {
        return Ok(());
    }
    fs::copy(log, before(log))?;
    OpenOptions::new().write(true).open(log)?.set_len(0)
}

/// Where the last log is kept.
fn before(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_long_log_begins_anew_and_is_kept_once() {
        let dir = std::env::temp_dir().join(format!("windlass-log-test-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let log = dir.join("windlass.log");
        let mut writer = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        writer.write_all(b"first").unwrap();
        cut(&log, 5).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "first");
        writer.write_all(b" second").unwrap();
        cut(&log, 5).unwrap();
        writer.write_all(b"third").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "third");
        assert_eq!(fs::read_to_string(before(&log)).unwrap(), "first second");
        fs::remove_dir_all(dir).unwrap();
    }
}
