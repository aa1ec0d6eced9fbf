//! Private files, written atomically.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use windlass_kit::atomic_file;

use super::Error;

pub(super) fn make_dir(dir: &Path) -> Result<(), Error> {
    atomic_file::make_dir(dir, 0o700).map_err(|source| Error::File {
        path: dir.to_owned(),
        attempt: "made",
        source,
    })?;
    restrict_permissions(dir, 0o700);
    Ok(())
}

/// Reads a file with a private key, after restricting its permissions.
pub(super) fn read_key(path: &Path) -> Result<Option<String>, Error> {
    let found = read(path)?;
    if found.is_some() {
        restrict_permissions(path, 0o600);
    }
    Ok(found)
}

/// Removes permissions of group and others; failures are logged.
pub(super) fn restrict_permissions(path: &Path, allowed: u32) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let mode = metadata.mode() & 0o7777;
    let owner = metadata.uid();
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        tracing::warn!(path = %path.display(), owner, "key or certificate file is not owned by root, and its owner can change it; run chown root on it");
    }
    let beyond = mode & 0o0777 & !allowed;
    if beyond == 0 {
        return;
    }
    let (path_shown, mode_shown) = (path.display(), format!("{mode:04o}"));
    match fs::set_permissions(path, fs::Permissions::from_mode(mode & !beyond)) {
        Ok(()) => {
            tracing::warn!(path = %path_shown, mode = mode_shown, "key file was readable or writable by others; mode corrected; if a private key may have been copied, create new certificates")
        }
        Err(error) => {
            tracing::warn!(path = %path_shown, mode = mode_shown, %error, "key file is readable or writable by others and its mode could not be corrected; run chmod go= on it")
        }
    }
}

pub(super) fn read(path: &Path) -> Result<Option<String>, Error> {
    atomic_file::read(path).map_err(|source| Error::File { path: path.to_owned(), attempt: "read", source })
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), Error> {
    atomic_file::write_durable(path, text.as_bytes(), 0o600).map_err(|source| Error::File {
        path: path.to_owned(),
        attempt: "written",
        source,
    })
}

/// Has the name of a file survive a crash.
pub(super) fn sync_name(path: &Path) -> Result<(), Error> {
    atomic_file::sync_parent(path).map_err(|source| Error::File { path: path.to_owned(), attempt: "written", source })
}

pub(super) fn share_with_group(path: &Path) -> Result<(), Error> {
    const GIVES_ITS_GROUP: u32 = 0o2000;
    let share = || -> io::Result<()> {
        let Some(folder) = path.parent() else { return Ok(()) };
        let folder = fs::metadata(folder)?;
        // A file from before the directory had the bit may have another group.
        if folder.mode() & GIVES_ITS_GROUP != 0 && fs::metadata(path)?.gid() == folder.gid() {
            fs::set_permissions(path, fs::Permissions::from_mode(0o640))?;
        }
        Ok(())
    };
    share().map_err(|source| Error::File { path: path.to_owned(), attempt: "shared", source })
}
