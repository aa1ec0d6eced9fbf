//! The data folder: which ones are ours, and what is done with one.

use std::{fs, path::Path};

use super::Error;
use crate::{pki, store::Disk};

/// Marks a folder as ours; what it says is the layout of the folder.
const MARK: &str = "windlass-data";
const LAYOUT: &str = "1\n";
const STORE: &str = "store.redb";
/// Whether a folder is one that [`ControlPlane::open`] has made.
#[must_use]
pub fn is_data_dir(path: &Path) -> bool {
    path.join(MARK).is_file()
}

/// What is to be done with a data folder.
#[derive(Debug, PartialEq, Eq)]
enum Folder {
    /// Nothing is in it: a cluster begins.
    New,
    /// A cluster began, and the start was interrupted before the folder was marked.
    Begun,
    /// A cluster lives in it.
    Ours,
}

/// Judges a folder by what it holds. One that is marked holds a cluster, whose store must be there: an empty one in its place
/// would be another cluster, and the agent would remove the pods of this one.
fn judge(marked: bool, names: &[String]) -> Result<Folder, String> {
    let begun = ["store.new", "windlass-data.new"];
    let has_store = names.iter().any(|name| name == STORE);
    // A file system of its own comes with that folder.
    let other = names.iter().find(|n| *n != "lost+found" && *n != STORE && !begun.contains(&n.as_str()));
    match (marked, has_store, other) {
        (true, true, _) => Ok(Folder::Ours),
        (true, false, _) => Err(format!(
            "it holds a cluster whose {STORE} is missing; nothing was touched; put a copy of the file back, or, to give up the cluster and all that is in it, run windlass down --purge"
        )),
        (false, _, Some(other)) => Err(format!(
            "it holds {other:?} and is not a data folder of windlass; nothing was touched; give another one with --data-dir"
        )),
        (false, true, None) => Ok(Folder::Begun),
        (false, false, None) => Ok(Folder::New),
    }
}

/// Opens the store of a folder that is ours, new or marked. Anything else is left alone.
pub(super) fn claim(dir: &Path) -> Result<Disk, Error> {
    use std::os::unix::fs::DirBuilderExt as _;
    let refuse = |reason: String| Error::DataDir { path: dir.to_owned(), reason };
    let failed = |error: std::io::Error| refuse(error.to_string());
    let (mark, store) = (dir.join(MARK), dir.join(STORE));
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
        if layout != LAYOUT {
            return Err(refuse(format!(
                "its layout is {:?} and this program knows {:?}; use the program that wrote it, or a newer one",
                layout.trim(),
                LAYOUT.trim()
            )));
        }
    }
    let disk = match judge(marked, &names).map_err(refuse)? {
        Folder::New => Disk::create(&store)?,
        Folder::Begun | Folder::Ours => Disk::open(&store)?,
    };
    if !marked {
        // Last, so that a marked folder always has its store.
        pki::write_private(&mark, LAYOUT)?;
    }
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_newer_program_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        drop(claim(&folder).unwrap());
        drop(claim(&folder).unwrap());
        fs::write(folder.join(MARK), "2\n").unwrap();
        let said = claim(&folder).unwrap_err().to_string();
        assert!(said.contains("layout is \"2\"") && said.contains("a newer one"), "{said}");
        assert_eq!(fs::read_to_string(folder.join(MARK)).unwrap(), "2\n");
    }

    #[test]
    fn a_file_system_of_its_own_is_a_data_folder_and_another_folder_is_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(claim(dir.path()).unwrap());
        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("letter"), "").unwrap();
        let said = claim(&foreign).unwrap_err().to_string();
        assert!(said.contains("letter") && said.contains("nothing was touched"), "{said}");
        assert!(!foreign.join(MARK).exists());
    }

    #[test]
    fn a_cluster_without_its_store_is_refused_and_an_interrupted_beginning_goes_on() {
        let held = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        for names in
            [&["windlass-data"][..], &["windlass-data", "pki"], &["windlass-data", "pods", "lost+found", "store.new"]]
        {
            let said = judge(true, &held(names)).unwrap_err();
            assert!(said.contains("store.redb is missing") && said.contains("down --purge"), "{said}");
        }
        assert!(judge(false, &held(&["pki"])).unwrap_err().contains("pki"));
        assert!(judge(false, &held(&["pki", "store.redb"])).unwrap_err().contains("pki"));
        assert_eq!(judge(false, &held(&["lost+found", "store.new"])), Ok(Folder::New));
        assert_eq!(judge(false, &held(&["store.redb", "windlass-data.new"])), Ok(Folder::Begun));
        assert_eq!(judge(true, &held(&["store.redb", "pki", "windlass-data"])), Ok(Folder::Ours));

        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        drop(claim(&folder).unwrap());
        fs::create_dir(folder.join("pki")).unwrap();
        let kept = fs::read(folder.join(STORE)).unwrap();
        fs::remove_file(folder.join(STORE)).unwrap();
        let said = claim(&folder).unwrap_err().to_string();
        assert!(said.contains("store.redb is missing") && !folder.join(STORE).exists(), "{said}");
        fs::write(folder.join(STORE), kept).unwrap();
        drop(claim(&folder).unwrap());
        // As after an end between the store and the mark, and before the store was whole.
        fs::remove_dir(folder.join("pki")).unwrap();
        fs::remove_file(folder.join(MARK)).unwrap();
        drop(claim(&folder).unwrap());
        assert!(is_data_dir(&folder));
        let interrupted = dir.path().join("interrupted");
        fs::create_dir(&interrupted).unwrap();
        fs::write(interrupted.join("store.new"), "half").unwrap();
        drop(claim(&interrupted).unwrap());
        assert!(is_data_dir(&interrupted) && !interrupted.join("store.new").exists());
    }
}
