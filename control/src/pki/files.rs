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
    })
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
