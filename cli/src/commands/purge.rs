//! Removal of a data directory. It may be interrupted, and something in it may be busy: the mark by which the next attempt
//! knows what it is for is removed last, and nothing is removed through a mount, which may be somebody else's files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use windlass_agent::volumes::Volumes;
use windlass_kit::atomic_file;

use crate::assemble;

/// Removes the data directory, if it is one of Windlass. What could not be removed is added to `problems`.
pub(super) fn remove_data_dir(dir: &Path, problems: &mut Vec<String>) {
    if !dir.exists() {
        return;
    }
    // Only a directory recognized as Windlass's is removed: a mistyped --data-dir is not.
    if !assemble::is_data_dir(dir) {
        problems.push(format!(
            "{} does not look like a data directory of windlass, so it was not touched; remove it yourself if it is",
            dir.display()
        ));
        return;
    }
    match Volumes::mounts_below(dir) {
        Ok(mounts) => remove_around(dir, &mounts, problems),
        Err(error) => problems.push(format!("{}: the mounts could not be read: {error}", dir.display())),
    }
}

/// Removes a data directory around what is mounted in it.
fn remove_around(dir: &Path, mounts: &[PathBuf], problems: &mut Vec<String>) {
    let mark = dir.join(assemble::PURGE_MARK);
    if let Err(error) = atomic_file::write_durable(&mark, b"", 0o600) {
        return problems.push(format!("{}: {error}", mark.display()));
    }
    let before = problems.len();
    for mount in mounts {
        problems.push(format!("{}: it is mounted; end what uses it, and umount it", mount.display()));
    }
    remove_within(dir, &mark, mounts, problems);
    if problems.len() == before {
        let removed = fs::remove_file(&mark).and_then(|()| fs::remove_dir(dir));
        problems.extend(removed.err().map(|error| format!("{}: {error}", dir.display())));
    }
}

/// Removes the contents of a directory, except one path, mounts, and the directories above them.
fn remove_within(dir: &Path, kept: &Path, mounts: &[PathBuf], problems: &mut Vec<String>) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return problems.push(format!("{}: {error}", dir.display())),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path == kept || mounts.contains(&path) {
            continue;
        }
        if mounts.iter().any(|mount| mount.starts_with(&path)) {
            remove_within(&path, kept, mounts, problems);
            continue;
        }
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            problems.push(format!("{}: {error}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_that_meets_a_mount_is_continued_when_it_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        fs::create_dir_all(dir.join("pods/uid/volumes/nfs/of-others")).unwrap();
        fs::create_dir_all(dir.join("store")).unwrap();
        fs::write(dir.join("windlass-data"), "1\n").unwrap();
        fs::write(dir.join("pods/uid/volumes/nfs/of-others/file"), "precious").unwrap();
        fs::write(dir.join("pods/uid/allocated.json"), "{}").unwrap();
        let mut problems = Vec::new();
        remove_around(&dir, &[dir.join("pods/uid/volumes/nfs")], &mut problems);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("volumes/nfs: it is mounted"), "{problems:?}");
        assert!(dir.join("pods/uid/volumes/nfs/of-others/file").exists(), "removed through a mount");
        assert!(!dir.join("store").exists() && !dir.join("windlass-data").exists());
        assert!(!dir.join("pods/uid/allocated.json").exists());
        // Its other marks are gone, and both purge and a start still recognize it.
        assert!(assemble::is_data_dir(&dir) && assemble::is_being_purged(&dir));
        let mut problems = Vec::new();
        remove_data_dir(&dir, &mut problems);
        assert_eq!(problems, Vec::<String>::new());
        assert!(!dir.exists());
        remove_data_dir(&dir, &mut problems);
        assert_eq!(problems, Vec::<String>::new(), "nothing is left to do");
    }

    #[test]
    fn other_directories_are_not_touched() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("thesis"), "x").unwrap();
        let mut problems = Vec::new();
        remove_data_dir(root.path(), &mut problems);
        assert!(problems[0].contains("does not look like a data directory"), "{problems:?}");
        assert!(root.path().join("thesis").exists());
    }
}
