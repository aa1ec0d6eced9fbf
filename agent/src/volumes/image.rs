//! Image volumes, for engines that cannot mount images.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    process::Stdio,
};

use futures::StreamExt as _;
use jiff::Timestamp;
use rustix::{
    fs::{AtFlags, FileType, statat, unlinkat},
    io::Errno,
};
use tokio::io::AsyncWriteExt as _;

use super::dirfd;
use crate::engine::Engine;

/// Paths that the engine creates in every container, the innermost first. A file of the image at such a path is hidden
/// by the engine's own empty one and cannot be recovered.
const ENGINE_PATHS: [&str; 12] = [
    ".dockerenv",
    "dev/console",
    "dev/pts",
    "dev/shm",
    "dev",
    "etc/hostname",
    "etc/hosts",
    "etc/mtab",
    "etc/resolv.conf",
    "etc",
    "proc",
    "sys",
];

/// Unpacks an image into an empty directory, through a helper container of this `name`, by which one left by a crash is
/// found and replaced.
pub(super) async fn unpack(engine: &Engine, files: &Path, id: &str, name: &str) -> Result<(), String> {
    let result = copy(engine, name, id, files).await;
    let removed = engine.remove(name).await.map_err(|e| e.to_string());
    result.and(removed)
}

/// Uses the host's tar, which neither leaves the directory nor follows symlinks of the archive.
async fn copy(engine: &Engine, name: &str, id: &str, files: &Path) -> Result<(), String> {
    let mut chunks = Box::pin(engine.files_of_image(id, name).await.map_err(|e| e.to_string())?);
    let failed = |e: std::io::Error| format!("the image could not be unpacked with tar: {e}");
    let mut child = tokio::process::Command::new("tar")
        .args(["--extract", "--preserve-permissions", "--numeric-owner"])
        // Devices, which this process may not create; containers mount their own /dev.
        .args(["--anchored", "--exclude=dev/*", "--file=-", "--directory"])
        .arg(files)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        while let Some(chunk) = chunks.next().await {
            stdin.write_all(&chunk.map_err(|e| e.to_string())?).await.map_err(failed)?;
        }
        stdin.shutdown().await.map_err(failed)?;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("the image could not be unpacked with tar: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Removes what the engine has created over the files of an image in the helper container, not before `made`: empty
/// files and directories, and symlinks. Older ones belong to the image.
pub(super) fn remove_engine_files(files: &Path, made: Timestamp) -> io::Result<()> {
    let root = dirfd::open_root(files)?;
    for path in ENGINE_PATHS {
        let (parent, name) = path.rsplit_once('/').map_or((".", path), |(parent, name)| (parent, name));
        let at = match dirfd::open_dir(&root, parent) {
            // Missing, or something else in the image.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            opened => opened?,
        };
        remove_engine_file(at.as_fd(), OsStr::new(name), made)?;
    }
    Ok(())
}

fn remove_engine_file(at: BorrowedFd<'_>, name: &OsStr, made: Timestamp) -> io::Result<()> {
    let status = match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        status => status?,
    };
    // Archives have whole seconds.
    if status.st_mtime < made.as_second() {
        return Ok(());
    }
    let how = match FileType::from_raw_mode(status.st_mode) {
        FileType::Directory => AtFlags::REMOVEDIR,
        FileType::RegularFile if status.st_size == 0 => AtFlags::empty(),
        FileType::Symlink => AtFlags::empty(),
        _ => return Ok(()),
    };
    match unlinkat(at, name, how) {
        // The image has files in it.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::symlink,
        time::{Duration, SystemTime},
    };

    use super::*;

    #[test]
    fn only_what_the_engine_made_goes() {
        let (dir, made) = (tempfile::tempdir().unwrap(), Timestamp::now());
        let at = |path: &str| dir.path().join(path);
        for folder in ["dev/pts", "dev/shm", "etc", "proc", "sys/of-the-image"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in [".dockerenv", "dev/console", "etc/hostname", "etc/resolv.conf"] {
            fs::write(at(file), "").unwrap();
        }
        symlink("/proc/mounts", at("etc/mtab")).unwrap();
        // The image's own: one that is older, though empty, and one that has something in it.
        fs::write(at("etc/hosts"), "").unwrap();
        let old = SystemTime::now() - Duration::from_secs(3600);
        fs::File::open(at("etc/hosts")).unwrap().set_modified(old).unwrap();
        fs::write(at("etc/passwd"), "root").unwrap();
        remove_engine_files(dir.path(), made).unwrap();
        let mut left: Vec<String> =
            fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        left.sort();
        assert_eq!(left, ["etc", "sys"]);
        let mut left: Vec<String> =
            fs::read_dir(at("etc")).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        left.sort();
        assert_eq!(left, ["hosts", "passwd"]);
        assert!(at("sys/of-the-image").is_dir());
    }

    #[test]
    fn links_in_the_place_of_folders_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (files, victim) = (dir.path().join("files"), dir.path().join("victim"));
        fs::create_dir_all(&files).unwrap();
        fs::create_dir_all(&victim).unwrap();
        fs::write(victim.join("hosts"), "").unwrap();
        symlink("../victim", files.join("etc")).unwrap();
        remove_engine_files(&files, Timestamp::UNIX_EPOCH).unwrap();
        assert!(victim.join("hosts").exists());
    }
}
