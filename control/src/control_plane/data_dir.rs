//! The data directory: which directories belong to windlass, and how one is opened.

use std::{fs, path::Path};

use super::Error;
use crate::{pki, store::Disk};

/// Marker of a data directory; its content is the layout version.
const MARKER_FILE: &str = "windlass-data";
const LAYOUT_VERSION: &str = "1\n";
const STORE_FILE: &str = "store.redb";
/// Whether [`ControlPlane::open`] has created the directory.
#[must_use]
pub fn is_data_dir(path: &Path) -> bool {
    path.join(MARKER_FILE).is_file()
}

/// The state of a data directory.
#[derive(Debug, PartialEq, Eq)]
enum DataDirState {
    /// Empty: a new cluster.
    Empty,
    /// The first start was interrupted before the marker was written.
    Interrupted,
    /// The directory of a cluster.
    Initialized,
}

/// Classifies a directory by its content. A marked one holds a cluster, whose store must exist: an empty store in its
/// place would be another cluster, and the agent would remove the pods of this one.
fn classify(marked: bool, names: &[String]) -> Result<DataDirState, String> {
    // Temporary files of a start that was killed; the last name is that of earlier versions.
    let begun = ["store.new", ".windlass-data.new", "windlass-data.new"];
    let has_store = names.iter().any(|name| name == STORE_FILE);
    // Present in the root of a separate file system.
    let other = names.iter().find(|n| *n != "lost+found" && *n != STORE_FILE && !begun.contains(&n.as_str()));
    match (marked, has_store, other) {
        (true, true, _) => Ok(DataDirState::Initialized),
        (true, false, _) => Err(format!(
            "it holds a cluster whose {STORE_FILE} is missing; nothing was touched; put a copy of the file back, or, to give up the cluster and all that is in it, run windlass down --purge"
        )),
        (false, _, Some(other)) => Err(format!(
            "it holds {other:?} and is not a data directory of windlass; nothing was touched; choose another one with --data-dir"
        )),
        (false, true, None) => Ok(DataDirState::Interrupted),
        (false, false, None) => Ok(DataDirState::Empty),
    }
}

/// Opens the store of an empty or marked directory. Any other directory is left untouched.
pub(super) fn adopt_data_dir(dir: &Path) -> Result<Disk, Error> {
    use std::os::unix::fs::DirBuilderExt as _;
    let refuse = |reason: String| Error::DataDir { path: dir.to_owned(), reason };
    let failed = |error: std::io::Error| refuse(error.to_string());
    let (mark, store) = (dir.join(MARKER_FILE), dir.join(STORE_FILE));
    let names: Vec<String> = match fs::read_dir(dir) {
        Ok(entries) => {
            let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            names.collect::<std::io::Result<_>>().map_err(failed)?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
            if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
                fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
            }
            Vec::new()
        }
        Err(error) => return Err(failed(error)),
    };
    let marked = is_data_dir(dir);
    if marked {
        let layout = fs::read_to_string(&mark).map_err(failed)?;
        if layout != LAYOUT_VERSION {
            return Err(refuse(format!(
                "its layout is {:?} and this program knows {:?}; use the program that wrote it, or a newer one",
                layout.trim(),
                LAYOUT_VERSION.trim()
            )));
        }
    }
    let disk = match classify(marked, &names).map_err(refuse)? {
        DataDirState::Empty => Disk::create(&store)?,
        DataDirState::Interrupted | DataDirState::Initialized => Disk::open(&store)?,
    };
    if !marked {
        // Written last, so that a marked directory always has its store.
        pki::write_private(&mark, LAYOUT_VERSION)?;
    }
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_newer_layout() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        drop(adopt_data_dir(&folder).unwrap());
        drop(adopt_data_dir(&folder).unwrap());
        fs::write(folder.join(MARKER_FILE), "2\n").unwrap();
        let message = adopt_data_dir(&folder).unwrap_err().to_string();
        assert!(message.contains("layout is \"2\"") && message.contains("a newer one"), "{message}");
        assert_eq!(fs::read_to_string(folder.join(MARKER_FILE)).unwrap(), "2\n");
    }

    #[test]
    fn accepts_empty_mount_point_and_refuses_foreign_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(adopt_data_dir(dir.path()).unwrap());
        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("letter"), "").unwrap();
        let message = adopt_data_dir(&foreign).unwrap_err().to_string();
        assert!(message.contains("letter") && message.contains("nothing was touched"), "{message}");
        assert!(!foreign.join(MARKER_FILE).exists());
    }

    #[test]
    fn refuses_missing_store_and_resumes_interrupted_start() {
        let held = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        for names in
            [&["windlass-data"][..], &["windlass-data", "pki"], &["windlass-data", "pods", "lost+found", "store.new"]]
        {
            let message = classify(true, &held(names)).unwrap_err();
            assert!(message.contains("store.redb is missing") && message.contains("down --purge"), "{message}");
        }
        assert!(classify(false, &held(&["pki"])).unwrap_err().contains("pki"));
        assert!(classify(false, &held(&["pki", "store.redb"])).unwrap_err().contains("pki"));
        assert_eq!(classify(false, &held(&["lost+found", "store.new"])), Ok(DataDirState::Empty));
        for temporary in [".windlass-data.new", "windlass-data.new"] {
            assert_eq!(classify(false, &held(&["store.redb", temporary])), Ok(DataDirState::Interrupted));
        }
        assert_eq!(classify(true, &held(&["store.redb", "pki", "windlass-data"])), Ok(DataDirState::Initialized));

        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        drop(adopt_data_dir(&folder).unwrap());
        fs::create_dir(folder.join("pki")).unwrap();
        let kept = fs::read(folder.join(STORE_FILE)).unwrap();
        fs::remove_file(folder.join(STORE_FILE)).unwrap();
        let message = adopt_data_dir(&folder).unwrap_err().to_string();
        assert!(message.contains("store.redb is missing") && !folder.join(STORE_FILE).exists(), "{message}");
        fs::write(folder.join(STORE_FILE), kept).unwrap();
        drop(adopt_data_dir(&folder).unwrap());
        // As after an end between the store and the mark, and before the store was whole.
        fs::remove_dir(folder.join("pki")).unwrap();
        fs::remove_file(folder.join(MARKER_FILE)).unwrap();
        drop(adopt_data_dir(&folder).unwrap());
        assert!(is_data_dir(&folder));
        let interrupted = dir.path().join("interrupted");
        fs::create_dir(&interrupted).unwrap();
        fs::write(interrupted.join("store.new"), "half").unwrap();
        drop(adopt_data_dir(&interrupted).unwrap());
        assert!(is_data_dir(&interrupted) && !interrupted.join("store.new").exists());
    }
}
