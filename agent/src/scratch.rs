//! Small files that are there whole or not at all, whenever the machine stops.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Writes a file of root's own: beside its place first, onto the disk, and then into its place. What a crash leaves
/// beside it is hidden and has the ending `new`.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let scratch = path.with_file_name(format!(".{}.new", name.to_string_lossy()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&scratch)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&scratch, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        // Left by a crash.
        fs::write(dir.path().join(".a.json.new"), "longer than what comes").unwrap();
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(Path::new("/"), b"x").is_err());
    }
}
