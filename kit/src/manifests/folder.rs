//! The folder: its files, and waking up when one of them changes.

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
use crate::inotify::Watch;

/// An editor writes in several steps: wait for the last.
const SETTLE: Duration = Duration::from_millis(100);
/// Larger files are refused.
const MAX_BYTES: u64 = 10 * 1024 * 1024;

/// Counts how often all folders were asked to look again.
static ASKED: LazyLock<watch::Sender<u64>> = LazyLock::new(watch::Sender::default);

/// Has all folders of this process read anew: somebody says that there is something new, whatever the kernel tells.
pub fn rescan() {
    ASKED.send_modify(|asked| *asked += 1);
}

/// What a scan found of one file: its text, or why it cannot be read.
pub type Scanned = BTreeMap<PathBuf, Result<String, String>>;

/// Reads all manifest files of the folder; subfolders and dotfiles are left alone. Blocking.
fn scan(dir: &Path) -> io::Result<Scanned> {
    let mut found = Scanned::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if format_of(name).is_none() {
            continue;
        }
        // Follows links; a file that went away between the two calls is not there.
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

/// A folder of manifests, made if it is not there.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    watch: Option<Watch>,
    /// The last complaint about the folder as a whole, to say it once.
    complaint: Option<String>,
    asked: watch::Receiver<u64>,
}

impl Folder {
    /// Looks at nothing yet.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, watch: None, complaint: None, asked: ASKED.subscribe() }
    }

    /// Reads all files. `None` when the folder cannot be read, which is logged once.
    pub async fn scan(&mut self) -> Option<Scanned> {
        if self.watch.is_none() {
            // Before reading, so that no change falls between.
            let made = tokio::fs::create_dir_all(&self.dir).await;
            match made.and_then(|()| Watch::new(&self.dir, Watch::CONTENTS)) {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => self.complain(&error),
            }
        }
        let dir = self.dir.clone();
        match tokio::task::spawn_blocking(move || scan(&dir)).await {
            Ok(Ok(scanned)) => {
                self.complaint = None;
                Some(scanned)
            }
            Ok(Err(error)) => {
                self.complain(&error);
                None
            }
            Err(_) => None,
        }
    }

    /// Waits until something changes, at most until `latest`.
    pub async fn changed(&mut self, latest: Instant) {
        let changed = async {
            match &self.watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The folder itself may have been replaced: the old watch would stay silent.
            () = tokio::time::sleep_until(latest) => self.watch = None,
            _ = self.asked.changed() => self.watch = None,
            result = changed => {
                if let Err(error) = result {
                    self.complain(&error);
                    self.watch = None;
                }
                tokio::time::sleep(SETTLE).await;
                if !self.dir.is_dir() {
                    self.watch = None;
                }
            }
        }
    }

    fn complain(&mut self, error: &io::Error) {
        let text = error.to_string();
        if self.complaint.as_ref() != Some(&text) {
            tracing::warn!(folder = %self.dir.display(), reason = text, "the folder of manifests cannot be watched; create it or set another");
            self.complaint = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_of_the_folder_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = Folder::new(dir.path().join("manifests"));
        assert!(folder.scan().await.unwrap().is_empty(), "it is made");
        let dir = dir.path().join("manifests");
        fs::write(dir.join("a.yaml"), "x: 1").unwrap();
        fs::write(dir.join(".b.yaml"), "x: 1").unwrap();
        fs::create_dir(dir.join("c.yaml")).unwrap();
        fs::write(dir.join("d.json"), [0xff, 0xfe]).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        tokio::time::timeout(Duration::from_secs(5), folder.changed(late)).await.unwrap();
        let found = folder.scan().await.unwrap();
        let names: Vec<_> = found.keys().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.yaml", "d.json"]);
        assert!(found.values().last().unwrap().is_err(), "not UTF-8");
        // Somebody asks, and nothing has changed.
        rescan();
        tokio::time::timeout(Duration::from_secs(5), folder.changed(late)).await.unwrap();
    }
}
