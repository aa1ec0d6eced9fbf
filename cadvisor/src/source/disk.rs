//! Usage of disks: slow, and able to stall on a dead network file system, so only the background task calls this.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::statvfs::statvfs;

use super::SourceError;
use crate::model::Filesystem;

/// A walk pauses after so many entries, to leave the disk to the containers.
const ENTRIES_PER_PAUSE: u64 = 2_000;
const WALK_PAUSE: Duration = Duration::from_millis(5);

/// Space of the file system of a path, and its device number.
pub(crate) fn space(path: &Path, at: jiff::Timestamp) -> Result<(Filesystem, u64), SourceError> {
    let failed = |source: io::Error| SourceError::Read { path: path.to_owned(), source };
    let device = fs::metadata(path).map_err(failed)?.dev();
    let found = statvfs(path).map_err(|errno| failed(errno.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Ok((
        Filesystem {
            at,
            capacity_bytes: bytes(found.blocks()),
            available_bytes: bytes(found.blocks_available()),
            used_bytes: bytes(found.blocks().saturating_sub(found.blocks_free())),
            inodes: found.files(),
            inodes_free: found.files_free(),
        },
        device,
    ))
}

/// Blocks (in bytes) and entries below and including a directory. Other devices are not entered, hard links count once,
/// entries that vanish or cannot be read are skipped. Stops early when `keep_going` returns false.
#[must_use]
pub fn tree(top: &Path, keep_going: &dyn Fn() -> bool) -> Option<(u64, u64)> {
    let meta = fs::symlink_metadata(top).ok()?;
    let device = meta.dev();
    let (mut bytes, mut entries) = (meta.blocks().saturating_mul(512), 1_u64);
    let mut linked = HashSet::new();
    let mut left: Vec<PathBuf> = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        let Ok(inside) = fs::read_dir(&dir) else { continue };
        for entry in inside.flatten() {
            // `metadata` of an entry does not follow symbolic links.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.dev() != device || (!meta.is_dir() && meta.nlink() > 1 && !linked.insert(meta.ino())) {
                continue;
            }
            bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
            entries += 1;
            if meta.is_dir() {
                left.push(entry.path());
            }
            if entries.is_multiple_of(ENTRIES_PER_PAUSE) {
                if !keep_going() {
                    return None;
                }
                std::thread::sleep(WALK_PAUSE);
            }
        }
    }
    Some((bytes, entries))
}

/// Whether a directory is on another device than its parent.
pub(crate) fn is_mount(dir: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| meta.dev());
    dir.parent().is_some_and(|parent| device(dir) != device(parent))
}

/// Bytes of all image layers, each counted once. `None` where Docker has no list of layers, as with the containerd
/// image store.
pub(crate) fn layers(docker_root: &Path) -> Option<u64> {
    let drivers = fs::read_dir(docker_root.join("image")).ok()?;
    let mut sum = None;
    for driver in drivers.flatten() {
        let Ok(layers) = fs::read_dir(driver.path().join("layerdb/sha256")) else { continue };
        let size = |layer: fs::DirEntry| fs::read_to_string(layer.path().join("size")).ok()?.trim().parse::<u64>().ok();
        sum = Some(layers.flatten().filter_map(size).fold(sum.unwrap_or(0), u64::saturating_add));
    }
    sum
}

/// Blocks (in bytes) and number of a container's log files: json-file's and local's.
pub(crate) fn logs(docker_root: &Path, container_id: &str) -> (u64, u64) {
    let home = docker_root.join("containers").join(container_id);
    let (mut bytes, mut files) = (0_u64, 0);
    for dir in [home.join("local-logs"), home] {
        let local = dir.ends_with("local-logs");
        let Ok(inside) = fs::read_dir(&dir) else { continue };
        for entry in inside.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_file() && (local || entry.file_name().to_string_lossy().contains("-json.log")) {
                bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
                files += 1;
            }
        }
    }
    (bytes, files)
}
