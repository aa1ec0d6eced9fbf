//! Private files, written whole or not at all.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use super::Error;

pub(super) fn make_dir(dir: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|source| Error::File {
        path: dir.to_owned(),
        attempt: "made",
        source,
    })?;
    keep_private(dir, 0o700);
    Ok(())
}

/// Reads a file that holds a private key: nobody else may read it from now on, whoever made it.
pub(super) fn read_key(path: &Path) -> Result<Option<String>, Error> {
    let found = read(path)?;
    if found.is_some() {
        keep_private(path, 0o600);
    }
    Ok(found)
}

/// Takes rights away that others than its owner have; what cannot be mended is told.
pub(super) fn keep_private(path: &Path, allowed: u32) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let mode = metadata.mode() & 0o7777;
    let owner = metadata.uid();
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        tracing::warn!(path = %path.display(), owner, "somebody else owns this file of keys and certificates, and can change it; run chown root on it");
    }
    let beyond = mode & 0o0777 & !allowed;
    if beyond == 0 {
        return;
    }
    let (path_shown, mode_shown) = (path.display(), format!("{mode:04o}"));
    match fs::set_permissions(path, fs::Permissions::from_mode(mode & !beyond)) {
        Ok(()) => {
            tracing::warn!(path = %path_shown, mode = mode_shown, "others could read or change this; its mode was corrected; if somebody may have copied a private key, make new certificates")
        }
        Err(error) => {
            tracing::warn!(path = %path_shown, mode = mode_shown, %error, "others can read or change this, and its mode could not be corrected; run chmod go= on it")
        }
    }
}

pub(super) fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path: path.to_owned(), attempt: "read", source }),
    }
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let scratch = path.with_extension("new");
    let put = || -> io::Result<()> {
        let _ = fs::remove_file(&scratch);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&scratch)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&scratch, path)?;
        if let Some(parent) = path.parent() {
            fs::File::open(parent)?.sync_all()?;
        }
        Ok(())
    };
    put().map_err(|source| Error::File { path: path.to_owned(), attempt: "written", source })
}

pub(super) fn share_with_group(path: &Path) -> Result<(), Error> {
    const GIVES_ITS_GROUP: u32 = 0o2000;
    let share = || -> io::Result<()> {
        let Some(folder) = path.parent() else { return Ok(()) };
        let folder = fs::metadata(folder)?;
        // A file from before the folder did may still have another group.
        if folder.mode() & GIVES_ITS_GROUP != 0 && fs::metadata(path)?.gid() == folder.gid() {
            fs::set_permissions(path, fs::Permissions::from_mode(0o640))?;
        }
        Ok(())
    };
    share().map_err(|source| Error::File { path: path.to_owned(), attempt: "shared", source })
}
