//! Private files, written whole or not at all.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
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
