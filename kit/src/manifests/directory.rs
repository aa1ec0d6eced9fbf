//! A directory of manifests: its files, and notifications of changes.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use tokio::{
    sync::watch,
    time::{Duration, Instant},
};

use super::documents::format_of;
use crate::{blocking, inotify::Watch, repairs::MainPath};

/// Editors write in several steps: wait for the last.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Larger files are rejected.
const MAX_BYTES: u64 = 10 * 1024 * 1024;

/// Counts the requests to rescan all directories.
static RESCAN_REQUESTS: LazyLock<watch::Sender<u64>> = LazyLock::new(watch::Sender::default);

/// Requests a rescan of all directories of this process, whether or not inotify reports a change.
pub fn rescan() {
    RESCAN_REQUESTS.send_modify(|rescans| *rescans += 1);
}

/// The result for one file: its text, or why it cannot be read.
pub type Scanned = BTreeMap<PathBuf, Result<String, String>>;

/// Reads all manifest files of the directory; subdirectories and dotfiles are ignored. Blocking.
fn scan(dir: &Path) -> io::Result<Scanned> {
    let mut found = Scanned::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if format_of(name).is_none() {
            continue;
        }
        // Follows links; a file that was deleted between the two calls is skipped.
        match fs::metadata(&path) {
            Ok(meta) if !meta.is_file() => {}
            Ok(meta) if meta.len() > MAX_BYTES => {
                found.insert(path, Err(format!("the file has {} bytes; at most {MAX_BYTES} are read", meta.len())));
            }
            Ok(_) => match fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                text => drop(found.insert(path, text.map_err(|e| format!("the file cannot be read: {e}")))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => drop(found.insert(path, Err(format!("the file cannot be examined: {error}")))),
        }
    }
    Ok(found)
}

/// A directory of manifests, created if it does not exist.
#[derive(Debug)]
pub struct ManifestDir {
    dir: PathBuf,
    watch: Option<Watch>,
    /// The last error of the directory as a whole, which is logged once.
    last_error: Option<String>,
    rescans: watch::Receiver<u64>,
}

impl ManifestDir {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, watch: None, last_error: None, rescans: RESCAN_REQUESTS.subscribe() }
    }

    /// Reads all files. `None` when the directory cannot be read, which is logged once.
    pub async fn scan(&mut self) -> Option<Scanned> {
        if self.watch.is_none() {
            // Before reading, so that no change is missed.
            let made = tokio::fs::create_dir_all(&self.dir).await;
            match made.and_then(|()| Watch::new(&self.dir, Watch::CONTENTS)) {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => self.log_once(&error),
            }
        }
        let dir = self.dir.clone();
        match blocking::FILES.io(move || scan(&dir)).await {
            Ok(scanned) => {
                self.last_error = None;
                Some(scanned)
            }
            Err(error) => {
                self.log_once(&error);
                None
            }
        }
    }

    /// Waits for a change, at most until `latest`.
    pub async fn changed(&mut self, latest: Instant) {
        let changed = async {
            match &self.watch {
                Some(watch) if !MainPath::DirectoryChanges.is_off() => watch.changed().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            // The directory itself may have been replaced: the old watch would stay silent.
            () = tokio::time::sleep_until(latest) => self.watch = None,
            _ = self.rescans.changed() => self.watch = None,
            () = changed => {
                tokio::time::sleep(DEBOUNCE).await;
                if !self.dir.is_dir() {
                    self.watch = None;
                }
            }
        }
    }

    fn log_once(&mut self, error: &io::Error) {
        let text = error.to_string();
        if self.last_error.as_ref() != Some(&text) {
            tracing::warn!(directory = %self.dir.display(), reason = text, "the directory of manifests cannot be watched; create it or set another");
            self.last_error = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_of_the_folder_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = ManifestDir::new(dir.path().join("manifests"));
        assert!(directory.scan().await.unwrap().is_empty(), "it is made");
        let dir = dir.path().join("manifests");
        fs::write(dir.join("a.yaml"), "x: 1").unwrap();
        fs::write(dir.join(".b.yaml"), "x: 1").unwrap();
        fs::create_dir(dir.join("c.yaml")).unwrap();
        fs::write(dir.join("d.json"), [0xff, 0xfe]).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        tokio::time::timeout(Duration::from_secs(5), directory.changed(late)).await.unwrap();
        let found = directory.scan().await.unwrap();
        let names: Vec<_> = found.keys().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.yaml", "d.json"]);
        assert!(found.values().last().unwrap().is_err(), "not UTF-8");
        // A rescan without a change.
        rescan();
        tokio::time::timeout(Duration::from_secs(5), directory.changed(late)).await.unwrap();
    }
}
