//! Files of the host that containers can write, since they are mounted into them: whatever such a file holds, only a
//! bounded part of it is read, and never through a link.

use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Neither through a link, nor waiting for the other end of a pipe.
    options.custom_flags(OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed());
    options
}

fn open(path: &Path) -> io::Result<File> {
    let file = options().read(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// The last `most` bytes of a file.
pub(crate) fn read_end(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Sees to it that a file holds `text`. It is written in place: containers hold the file itself, not its name.
pub(crate) fn keep_text(path: &Path, text: &str) -> io::Result<()> {
    let holds = || -> io::Result<bool> {
        let mut bytes = Vec::new();
        open(path)?.take(text.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes == text.as_bytes())
    };
    if holds().is_ok_and(|holds| holds) {
        return Ok(());
    }
    options().create(true).write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// Makes an empty file that any user can write.
pub(crate) fn make_writable_by_all(path: &Path) -> io::Result<()> {
    let file = options().create(true).write(true).truncate(true).mode(0o666).open(path)?;
    // The process's umask does not apply to what the container is promised.
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
        assert_eq!(read_end(&path, 4096).unwrap(), b"short");
        // As large as a disk, and nothing of it is in memory but the end.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 42).unwrap();
        (&file).seek(SeekFrom::End(-3)).unwrap();
        (&file).write_all(b"end").unwrap();
        let end = read_end(&path, 4096).unwrap();
        assert_eq!((end.len(), &end[4093..], end.capacity() < 1 << 16), (4096, &b"end"[..], true));
    }

    #[test]
    fn links_and_pipes_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, link) = (dir.path().join("secret"), dir.path().join("link"));
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, &link).unwrap();
        assert!(read_end(&link, 10).is_err());
        assert!(keep_text(&link, "other").is_err() && make_writable_by_all(&link).is_err());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read_end(&pipe, 10).is_err());
    }

    #[test]
    fn a_text_is_kept_in_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        keep_text(&path, "first").unwrap();
        let mut held = File::open(&path).unwrap();
        for other in ["first and more", "firs", "", "second"] {
            fs::write(&path, other).unwrap();
            keep_text(&path, "first").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "first", "{other:?}");
        }
        let mut text = String::new();
        held.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first");
    }
}
