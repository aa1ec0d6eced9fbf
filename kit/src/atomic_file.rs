//! Files that are replaced atomically: readers and the next start after a crash find the old or the new content.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Replaces a file: writes and syncs a temporary file with this mode, `.NAME.new` in the same directory, and renames
/// it. Which of both contents is there after a crash is open, see [`write_durable`].
///
/// # Errors
/// Any error of the file system; the previous file is unchanged then.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let temporary = path.with_file_name(format!(".{}.new", name.display()));
    let _ = fs::remove_file(&temporary);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// [`write`], with the directory synced: after the call the new content survives a crash.
///
/// # Errors
/// Any error of the file system.
pub fn write_durable(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write(path, content, mode)?;
    sync_parent(path)
}

/// Removes a file, and syncs its directory; one that does not exist is no error.
///
/// # Errors
/// Any error of the file system.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reads a text file; `None` when it does not exist.
///
/// # Errors
/// Any error of the file system.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a directory with this mode, and its ancestors; an existing one is unchanged.
///
/// # Errors
/// Any error of the file system.
pub fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(dir)
}

/// Syncs a path's directory: names that were created, renamed or removed in it survive a crash.
///
/// # Errors
/// Any error of the file system.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/key.pem");
        make_dir(path.parent().unwrap(), 0o700).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        fs::write(path.with_file_name(".key.pem.new"), "longer than what comes, from a crash").unwrap();
        write(&path, b"one", 0o644).unwrap();
        write_durable(&path, b"two", 0o600).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("two"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(write(Path::new("/"), b"x", 0o600).is_err());
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(read(&path).unwrap(), None);
    }
}
