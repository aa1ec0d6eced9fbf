//! The data directory: which directories belong to windlass, and how one is opened.

use std::path::{Path, PathBuf};

use windlass_identity::pki;
use windlass_kit::{atomic_file, disk};

use super::{Durability, Error};
use crate::store::{self, Counters, Engine, Log, RealDirectory, UnsyncedDirectory, copy_log, import_redb};

/// Marker of a data directory; its content is the layout version.
const MARKER_FILE: &str = "windlass-data";
const LAYOUT_VERSION: &str = "1\n";
/// The directory of the store.
const STORE_DIR: &str = "store";
/// The store of earlier versions, which is imported, and its name after that.
const EARLIER_STORE_FILE: &str = "store.redb";
const IMPORTED_STORE_FILE: &str = "store.redb.imported";

/// Where an archive is unpacked in a data directory, before anything of it takes its place: secrets, which go at the end.
pub const RESTORE_DIR: &str = ".restore";

/// Whether [`ControlPlane::open`] has created the directory.
#[must_use]
pub fn is_data_dir(path: &Path) -> bool {
    path.join(MARKER_FILE).is_file()
}

/// The directory of the store.
pub(super) fn store_dir(path: &Path) -> PathBuf {
    path.join(STORE_DIR)
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
    let stores = [STORE_DIR, EARLIER_STORE_FILE, IMPORTED_STORE_FILE];
    let has_store = names.iter().any(|name| name == STORE_DIR || name == EARLIER_STORE_FILE);
    // Present in the root of a separate file system.
    let other =
        names.iter().find(|n| *n != "lost+found" && !stores.contains(&n.as_str()) && !begun.contains(&n.as_str()));
    match (marked, has_store, other) {
        (true, true, _) => Ok(DataDirState::Initialized),
        (true, false, _) => Err(format!(
            "it holds a cluster whose {STORE_DIR} is missing; nothing was touched; restore a backup, or, to give up the cluster and all that is in it, run windlass down --purge"
        )),
        (false, ..) if names.iter().any(|name| name == RESTORE_DIR) => {
            Err("a restore into it was cut off; nothing was touched; run windlass restore again, which starts from the beginning"
                .to_owned())
        }
        (false, _, Some(other)) => Err(format!(
            "it holds {other:?} and is not a data directory of windlass; nothing was touched; choose another one with --data-dir"
        )),
        (false, true, None) => Ok(DataDirState::Interrupted),
        (false, false, None) => Ok(DataDirState::Empty),
    }
}

/// Opens the store of an empty or marked directory. Any other directory is left untouched.
pub(super) fn adopt_data_dir(dir: &Path, durability: Durability) -> Result<Box<dyn Engine>, Error> {
    let refuse = |reason: String| Error::DataDir { path: dir.to_owned(), reason };
    let failed = |error: std::io::Error| refuse(error.to_string());
    let (mark, store) = (dir.join(MARKER_FILE), dir.join(STORE_DIR));
    let mut names: Vec<String> = match disk::of(dir).names(dir) {
        Ok(names) => names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            disk::make_dir(dir, 0o700).map_err(failed)?;
            Vec::new()
        }
        Err(error) => return Err(failed(error)),
    };
    // A start may have been interrupted before the store was whole.
    names.retain(|name| name != STORE_DIR || Log::exists(&store));
    let marked = disk::kind(&mark).map_err(failed)? == Some(disk::Kind::File);
    if marked {
        let layout = atomic_file::read(&mark).map_err(failed)?.unwrap_or_default();
        if layout != LAYOUT_VERSION {
            return Err(refuse(format!(
                "its layout is {:?} and this program knows {:?}; use the program that wrote it, or a newer one",
                layout.trim(),
                LAYOUT_VERSION.trim()
            )));
        }
    }
    let was_restored = names.iter().any(|name| name == RESTORE_DIR);
    let log = match classify(marked, &names).map_err(refuse)? {
        DataDirState::Empty => {
            create_store(&store, &[], &Counters { revision: 1, ceiling: 1, ..Counters::default() }, durability)?
        }
        DataDirState::Interrupted | DataDirState::Initialized => open_store(dir, durability)?,
    };
    if !marked {
        // Written last, so that a marked directory always has its store.
        pki::write_private(&mark, LAYOUT_VERSION)?;
    } else if was_restored && let Err(error) = finish_restore(dir) {
        tracing::warn!(%error, "failed to remove what a restore has left; it has secrets of the cluster, and the next start tries again");
    }
    Ok(log)
}

/// Removes the copies that a restore has left in a directory which it has made a cluster of, when it was cut off after that.
///
/// # Errors
/// When the disk fails.
pub fn finish_restore(dir: &Path) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::DataDir { path: dir.to_owned(), reason: error.to_string() };
    // If a power failure reverted the mark, a restored store would not be recognizable as one.
    disk::of(dir).sync_dir(dir).map_err(failed)?;
    disk::remove_tree(&dir.join(RESTORE_DIR)).map_err(failed)
}

fn create_store(
    store: &Path,
    records: &[store::Record],
    counters: &Counters,
    durability: Durability,
) -> Result<Box<dyn Engine>, Error> {
    let failed = |error: std::io::Error| Error::DataDir { path: store.to_owned(), reason: error.to_string() };
    // Its name is on disk before the mark is, or the file of an earlier version has another name.
    disk::make_dir(store, 0o700).map_err(failed)?;
    let real = RealDirectory(store.to_owned());
    Ok(match durability {
        Durability::Synced => Box::new(Log::create_locked(real, records, counters)?),
        Durability::Unsynced => Box::new(Log::create_locked(UnsyncedDirectory(real), records, counters)?),
    })
}

/// Opens the store, which is that of an earlier version at the first time: its objects are taken over, and its file is
/// kept aside.
fn open_store(dir: &Path, durability: Durability) -> Result<Box<dyn Engine>, Error> {
    let (store, earlier) = (dir.join(STORE_DIR), dir.join(EARLIER_STORE_FILE));
    let log: Box<dyn Engine> = if Log::exists(&store) {
        let real = RealDirectory(store.clone());
        match durability {
            Durability::Synced => Box::new(Log::open_locked(real)?),
            Durability::Unsynced => Box::new(Log::open_locked(UnsyncedDirectory(real))?),
        }
    } else {
        let (records, counters) = import_redb(&earlier)?;
        tracing::info!(objects = records.len(), file = %earlier.display(), "taking over the store of an earlier version");
        create_store(&store, &records, &counters, durability)?
    };
    // Also after a start that was interrupted just here: the log has all of the file.
    if earlier.exists() {
        let failed = |error: std::io::Error| Error::DataDir { path: dir.to_owned(), reason: error.to_string() };
        disk::rename(&earlier, &dir.join(IMPORTED_STORE_FILE)).map_err(failed)?;
    }
    Ok(log)
}

/// Copies the store of a data directory, which may be in use, into a new file. Returns the revision of the copy.
///
/// # Errors
/// When it is no data directory, or a disk fails.
pub fn copy_store(dir: &Path, to: &Path) -> Result<u64, Error> {
    if !is_data_dir(dir) {
        let reason = "it is not a data directory of windlass; name it with --data-dir".to_owned();
        return Err(Error::DataDir { path: dir.to_owned(), reason });
    }
    Ok(copy_log(&dir.join(STORE_DIR), to)?)
}

/// Makes a data directory of a copy of a store, in a directory without one. The next start continues from there, far
/// above the copy's revision, so that clients list again.
///
/// # Errors
/// When the directory has a store or is in use, or the copy is damaged; nothing is changed then.
pub fn restore_store(dir: &Path, copy: &Path) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::DataDir { path: dir.to_owned(), reason: error.to_string() };
    if dir.join(EARLIER_STORE_FILE).exists() {
        let reason = format!("it has a store already, {EARLIER_STORE_FILE}; move it away first");
        return Err(Error::DataDir { path: dir.to_owned(), reason });
    }
    let store = dir.join(STORE_DIR);
    let is_new = disk::kind(&store).map_err(failed)?.is_none();
    disk::make_dir(&store, 0o700).map_err(failed)?;
    drop(Log::create_from_copy(&store, copy).inspect_err(|_| {
        if is_new {
            let _ = disk::remove_tree(&store);
        }
    })?);
    // Written last, so that a marked directory always has its store.
    Ok(pki::write_private(&dir.join(MARKER_FILE), LAYOUT_VERSION)?)
}

/// Whether a directory has a store, or may have: it is not known.
#[must_use]
pub fn has_store(dir: &Path) -> bool {
    let store = dir.join(STORE_DIR);
    let has_log = match disk::entries(&store) {
        Ok(_) => Log::exists(&store),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    has_log || dir.join(EARLIER_STORE_FILE).exists()
}

/// Removes what a restore that was cut off before the mark has put into a directory.
///
/// # Errors
/// When there is a mark, or it cannot be removed.
pub fn remove_unmarked_store(dir: &Path) -> Result<(), Error> {
    let refuse = |reason: String| Error::DataDir { path: dir.to_owned(), reason };
    match disk::kind(&dir.join(MARKER_FILE)) {
        Ok(None) => disk::remove_tree(&dir.join(STORE_DIR)).map_err(|error| refuse(error.to_string())),
        Ok(Some(_)) => Err(refuse("it holds a cluster".to_owned())),
        Err(error) => Err(refuse(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn refuses_newer_layout() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        drop(adopt_data_dir(&folder, Durability::Synced).unwrap());
        drop(adopt_data_dir(&folder, Durability::Synced).unwrap());
        fs::write(folder.join(MARKER_FILE), "2\n").unwrap();
        let message = adopt_data_dir(&folder, Durability::Synced).unwrap_err().to_string();
        assert!(message.contains("layout is \"2\"") && message.contains("a newer one"), "{message}");
        assert_eq!(fs::read_to_string(folder.join(MARKER_FILE)).unwrap(), "2\n");
    }

    #[test]
    fn accepts_empty_mount_point_and_refuses_foreign_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(adopt_data_dir(dir.path(), Durability::Synced).unwrap());
        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("letter"), "").unwrap();
        let message = adopt_data_dir(&foreign, Durability::Synced).unwrap_err().to_string();
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
            assert!(message.contains("store is missing") && message.contains("down --purge"), "{message}");
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
        drop(adopt_data_dir(&folder, Durability::Synced).unwrap());
        fs::create_dir(folder.join("pki")).unwrap();
        fs::rename(folder.join(STORE_DIR), folder.join("kept")).unwrap();
        let message = adopt_data_dir(&folder, Durability::Synced).unwrap_err().to_string();
        assert!(message.contains("store is missing") && !folder.join(STORE_DIR).exists(), "{message}");
        fs::rename(folder.join("kept"), folder.join(STORE_DIR)).unwrap();
        drop(adopt_data_dir(&folder, Durability::Synced).unwrap());
        // As after an end between the store and the mark, and before the store was whole.
        fs::remove_dir(folder.join("pki")).unwrap();
        fs::remove_file(folder.join(MARKER_FILE)).unwrap();
        drop(adopt_data_dir(&folder, Durability::Synced).unwrap());
        assert!(is_data_dir(&folder));
        let interrupted = dir.path().join("interrupted");
        fs::create_dir(&interrupted).unwrap();
        fs::write(interrupted.join("store.new"), "half").unwrap();
        drop(adopt_data_dir(&interrupted, Durability::Synced).unwrap());
        assert!(is_data_dir(&interrupted));
    }

    #[test]
    fn what_a_restore_has_left_goes_with_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        drop(adopt_data_dir(&data, Durability::Synced).unwrap());
        fs::create_dir(data.join(RESTORE_DIR)).unwrap();
        fs::write(data.join(RESTORE_DIR).join("store.log"), "secrets").unwrap();
        drop(adopt_data_dir(&data, Durability::Synced).unwrap());
        assert!(!data.join(RESTORE_DIR).exists() && is_data_dir(&data));
        // Before the mark, nothing is known to be whole.
        fs::remove_file(data.join(MARKER_FILE)).unwrap();
        fs::create_dir(data.join(RESTORE_DIR)).unwrap();
        let message = adopt_data_dir(&data, Durability::Synced).unwrap_err().to_string();
        assert!(message.contains("run windlass restore again") && data.join(RESTORE_DIR).exists(), "{message}");
    }

    #[tokio::test]
    async fn restores_a_copy_into_a_directory_without_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, copy, other) = (dir.path().join("data"), dir.path().join("copy"), dir.path().join("other"));
        assert!(copy_store(&folder, &copy).is_err());
        let running = adopt_data_dir(&folder, Durability::Synced).unwrap();
        let revision = copy_store(&folder, &copy).unwrap();
        let message = restore_store(&folder, &copy).unwrap_err().to_string();
        assert!(message.contains("another process has it open"), "{message}");
        drop(running);
        let message = restore_store(&folder, &copy).unwrap_err().to_string();
        assert!(message.contains("move it away first"), "{message}");
        fs::write(dir.path().join("half"), b"windlass store\n\x01").unwrap();
        assert!(restore_store(&other, &dir.path().join("half")).is_err() && !is_data_dir(&other));
        restore_store(&other, &copy).unwrap();
        let store = store::Store::open(adopt_data_dir(&other, Durability::Synced).unwrap(), &[]).unwrap();
        assert!(store.revision() > revision);
    }

    /// The process may end, or the disk fail, between any two steps of a first start: the next one continues.
    #[test]
    fn each_step_of_a_first_start_may_fail() {
        let started = windlass_model_disk::Case {
            what: "a first start",
            prepare: &|_| (),
            act: &|dir| adopt_data_dir(&dir.join("data"), Durability::Synced).map(drop).map_err(|e| e.to_string()),
            judge: &|dir, done, what| {
                let data = dir.join("data");
                assert!(is_data_dir(&data) || !done, "{what}");
                assert!(!is_data_dir(&data) || Log::exists(&data.join(STORE_DIR)), "{what}: a mark without a store");
            },
            lasts: windlass_model_disk::Lasts::Power,
            says: &["data"],
        }
        .run_on_real();
        println!("first start: {started} pairs");
        assert!(started > 30, "{started}");
    }
}
