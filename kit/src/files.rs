//! Files that are written whole or not at all, and are on disk when the call comes back.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Puts a file of this text and mode in the place of whatever was there.
///
/// # Errors
/// As the file system gives them; what was there before is untouched then.
pub fn replace(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let scratch = path.with_extension("new");
    let _ = fs::remove_file(&scratch);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&scratch)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&scratch, path)?;
    sync_parent(path)
}

/// Removes a file, also from the disk's memory; one that is not there is no error.
///
/// # Errors
/// As the file system gives them.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reads a file's text; nothing where there is no file.
///
/// # Errors
/// As the file system gives them.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a folder of this mode, with those above it; one that is there stays as it is.
///
/// # Errors
/// As the file system gives them.
pub fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(dir)
}

/// Has a folder's names on disk: what was made, renamed or removed in it is so after a crash too.
///
/// # Errors
/// As the file system gives them.
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
        fs::write(path.with_extension("new"), "of a crash").unwrap();
        replace(&path, b"one", 0o600).unwrap();
        replace(&path, b"two", 0o600).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("two"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(read(&path).unwrap(), None);
    }
}
