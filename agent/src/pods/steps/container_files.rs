//! Files of the host that containers can write, since they are mounted into them: only a bounded part of such a file is
//! read, and never through a link.

use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Neither follow a link, nor block on the other end of a pipe.
    options.custom_flags(OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed());
    options
}

fn open(path: &Path) -> io::Result<File> {
    let file = options().read(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// The last `max` bytes of a file.
pub(crate) fn read_tail(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes sure that a file contains `text`. It is written in place: containers have the inode mounted, not the name.
pub(crate) fn ensure_text(path: &Path, text: &str) -> io::Result<()> {
    let is_equal = || -> io::Result<bool> {
        let mut bytes = Vec::new();
        open(path)?.take(text.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes == text.as_bytes())
    };
    if is_equal().is_ok_and(|equal| equal) {
        return Ok(());
    }
    options().create(true).write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// Creates an empty file that any user can write.
pub(crate) fn create_world_writable(path: &Path) -> io::Result<()> {
    let file = options().create(true).write(true).truncate(true).mode(0o666).open(path)?;
    // The umask of this process must not apply.
    file.set_permissions(Permissions::from_mode(0o666))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_bounded_end_is_read_however_long_a_file_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        fs::write(&path, "short").unwrap();
        assert_eq!(read_tail(&path, 4096).unwrap(), b"short");
        // As large as a disk, and nothing of it is in memory but the end.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 42).unwrap();
        (&file).seek(SeekFrom::End(-3)).unwrap();
        (&file).write_all(b"end").unwrap();
        let end = read_tail(&path, 4096).unwrap();
        assert_eq!((end.len(), &end[4093..], end.capacity() < 1 << 16), (4096, &b"end"[..], true));
    }

    #[test]
    fn links_and_pipes_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, link) = (dir.path().join("secret"), dir.path().join("link"));
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, &link).unwrap();
        assert!(read_tail(&link, 10).is_err());
        assert!(ensure_text(&link, "other").is_err() && create_world_writable(&link).is_err());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read_tail(&pipe, 10).is_err());
    }

    #[test]
    fn a_text_is_kept_in_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        ensure_text(&path, "first").unwrap();
        let mut held = File::open(&path).unwrap();
        for other in ["first and more", "firs", "", "second"] {
            fs::write(&path, other).unwrap();
            ensure_text(&path, "first").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "first", "{other:?}");
        }
        let mut text = String::new();
        held.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first");
    }
}
