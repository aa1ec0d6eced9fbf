//! Files that are replaced atomically: readers and the next start after a crash find the old or the new content.

use std::{io, path::Path};

use crate::disk::{self, Open};
pub use crate::disk::{make_dir, remove, sync_parent};

/// Replaces a file: writes and syncs a temporary file with this mode, `.NAME.new` in the same directory, and renames
/// it. After a crash the file has either content, see [`write_durable`].
///
/// # Errors
/// Any error of the file system; the previous file is unchanged then, and nothing is left next to it that could be removed.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let temporary = path.with_file_name(format!(".{}.new", name.display()));
    let disk = disk::of(path);
    let _ = disk.remove(&temporary);
    let written = || -> io::Result<()> {
        let file = disk.open(&temporary, Open::New(mode))?;
        disk::write_all_at(&*file, 0, content)?;
        file.sync()?;
        disk.rename(&temporary, path)
    };
    // What has filled the disk makes room at once, not at the next attempt.
    written().inspect_err(|_| drop(disk.remove(&temporary)))
}

/// [`write`], with the directory synced: after the call the new content survives a crash.
///
/// # Errors
/// Any error of the file system. If only the sync of the directory failed, the new content is in place anyway.
pub fn write_durable(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write(path, content, mode)?;
    sync_parent(path)
}

/// Reads a text file; `None` when it does not exist.
///
/// # Errors
/// Any error of the file system, and content that is not UTF-8.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    match disk::read(path) {
        Ok(bytes) => {
            String::from_utf8(bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

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
