//! The directories of volumes, below one. What is in them was written by pods: no link in it is followed, and nothing
//! outside or on another mount is touched.

use std::{ffi::OsStr, io, os::fd::AsFd as _, path::Path};

use rustix::fs::{Mode, fchmod, fsync};
use windlass_kit::{
    dirfd::{names, open_dir, open_root, remove},
    disk,
};

/// Pods run as any user; upstream's provisioner does the same.
const OF_ALL: u32 = 0o777;
/// Only the super-user passes through the directory of all volumes.
const OF_ROOT: u32 = 0o700;

/// Makes the directory of a volume, writable for all users; it may exist from an earlier attempt. Directories of
/// volumes in the API survive a power failure with this mode.
pub(super) fn make(dir: &Path, name: &str) -> io::Result<()> {
    disk::make_dir(dir, OF_ROOT)?;
    // The administrator may have put it elsewhere, by a link.
    let dir = dir.canonicalize()?;
    disk::make_dir(&dir.join(name), OF_ROOT)?;
    // No link in its place is taken for it.
    let made = open_dir(&open_root(&dir)?, name)?;
    fchmod(&made, Mode::from_raw_mode(OF_ALL))?;
    Ok(fsync(&made)?)
}

/// Removes the directory of a volume with its contents; one that does not exist is success.
pub(super) fn erase(dir: &Path, name: &str) -> io::Result<()> {
    let dir = match dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        dir => dir?,
    };
    let all = open_root(&dir)?;
    remove(all.as_fd(), OsStr::new(name), &mut || ())?;
    Ok(fsync(&all)?)
}

/// The names in the directory of all volumes.
pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    match dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        dir => Ok(names(open_root(&dir?)?)?.into_iter().filter_map(|name| name.into_string().ok()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, symlink},
    };

    use super::*;

    #[test]
    fn a_directory_is_made_once_and_removed_with_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, outside) = (folder.path().join("a/storage"), folder.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        for _ in 0..2 {
            make(&dir, "pvc-1_n_c").unwrap();
        }
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, OF_ROOT);
        let volume = dir.join("pvc-1_n_c");
        assert_eq!(fs::metadata(&volume).unwrap().mode() & 0o777, OF_ALL);
        fs::create_dir_all(volume.join("b/c")).unwrap();
        symlink(&outside, volume.join("b/out")).unwrap();
        assert_eq!(list(&dir).unwrap(), ["pvc-1_n_c"]);
        for _ in 0..2 {
            erase(&dir, "pvc-1_n_c").unwrap();
        }
        assert!(!volume.exists() && outside.join("kept").exists());
        erase(&folder.path().join("none"), "pvc-1_n_c").unwrap();
    }

    #[test]
    fn a_link_in_place_of_a_volume_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        symlink(&outside, folder.path().join("pvc-1_n_c")).unwrap();
        assert!(make(folder.path(), "pvc-1_n_c").is_err());
        assert_ne!(fs::metadata(&outside).unwrap().mode() & 0o777, OF_ALL);
        erase(folder.path(), "pvc-1_n_c").unwrap();
        assert!(outside.join("kept").exists() && !folder.path().join("pvc-1_n_c").exists());
    }

    /// The process may end, or the disk fail, between any two steps: success is reported only for a directory with its
    /// mode.
    #[test]
    fn each_step_of_a_directory_may_fail() {
        let pairs = windlass_model_disk::Case {
            what: "the directory of a volume",
            prepare: &|_| (),
            act: &|dir| make(&dir.join("storage"), "pvc-1_n_c").map_err(|error| error.to_string()),
            judge: &|dir, done, what| {
                let (storage, volume) = (dir.join("storage"), dir.join("storage/pvc-1_n_c"));
                if done {
                    assert_eq!(fs::metadata(&volume).unwrap().mode() & 0o777, OF_ALL, "{what}");
                }
                // Until its volume is created, the directory is one of those logged at a start.
                assert!(list(&storage).unwrap().iter().all(|name| name == "pvc-1_n_c"), "{what}");
            },
            lasts: windlass_model_disk::Lasts::Power,
            says: &[],
        }
        .run_on_real();
        println!("the directory of a volume: {pairs} pairs");
        assert!(pairs > 10, "{pairs}");
    }

    #[test]
    fn the_directory_of_all_volumes_may_be_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, dir) = (folder.path().join("disk"), folder.path().join("storage"));
        fs::create_dir(&disk).unwrap();
        symlink(&disk, &dir).unwrap();
        make(&dir, "pvc-1_n_c").unwrap();
        assert!(disk.join("pvc-1_n_c").is_dir());
        erase(&dir, "pvc-1_n_c").unwrap();
        assert_eq!(list(&dir).unwrap(), Vec::<String>::new());
    }
}
