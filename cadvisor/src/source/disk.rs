//! Usage of disks: slow, and able to stall on a dead network file system, so only the background task calls this.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::statvfs::statvfs;

use super::SourceError;
use crate::model::{Filesystem, Size};

/// A walk pauses after this number of entries, to leave the disk to the containers.
const ENTRIES_PER_PAUSE: u64 = 2_000;
const WALK_PAUSE: Duration = Duration::from_millis(5);
/// Files with several links that are remembered during a walk: some megabytes.
const MAX_LINKED_INODES: usize = 200_000;

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
/// entries that vanish or cannot be read are skipped. `None` when `keep_going` returns false.
#[must_use]
pub(crate) fn tree(top: &Path, keep_going: &dyn Fn() -> bool) -> Option<(u64, u64)> {
    walk(top, MAX_LINKED_INODES, keep_going)
}

pub(super) fn walk(top: &Path, max_linked: usize, keep_going: &dyn Fn() -> bool) -> Option<(u64, u64)> {
    let meta = fs::symlink_metadata(top).ok()?;
    let device = meta.dev();
    let (mut bytes, mut entries) = (meta.blocks().saturating_mul(512), 1_u64);
    let mut linked = Linked { max: max_linked, ..Linked::default() };
    let mut seen = 0_u64;
    let mut left: Vec<PathBuf> = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        let Ok(inside) = fs::read_dir(&dir) else { continue };
        for entry in inside.flatten() {
            // `metadata` of an entry does not follow symbolic links.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.dev() != device {
                continue;
            }
            if linked.counts(&meta) {
                bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
                entries += 1;
            }
            seen += 1;
            if meta.is_dir() {
                left.push(entry.path());
            }
            if seen.is_multiple_of(ENTRIES_PER_PAUSE) {
                if !keep_going() {
                    return None;
                }
                std::thread::sleep(WALK_PAUSE);
            }
        }
    }
    Some((bytes.saturating_add(linked.shared_bytes()), entries.saturating_add(linked.shared_inodes())))
}

/// Files with several links, which a container can make as many of as it wants. Those that can be remembered are counted at
/// their first link; of the others each link counts for its part, which is the same where all links are in the tree.
#[derive(Debug, Default)]
struct Linked {
    max: usize,
    /// The links that are still to come, by inode. Inodes are forgotten when all of their links have been seen.
    left: HashMap<u64, u64>,
    /// There were too many: no more are remembered.
    full: bool,
    /// In parts of [`WHOLE`].
    bytes: u128,
    inodes: u128,
}

/// A byte or an inode, in its parts.
const WHOLE: u128 = 1 << 32;

impl Linked {
    /// Whether an entry counts as a whole.
    fn counts(&mut self, meta: &fs::Metadata) -> bool {
        if meta.is_dir() || meta.nlink() <= 1 {
            return true;
        }
        if let Some(left) = self.left.get_mut(&meta.ino()) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.left.remove(&meta.ino());
            }
            return false;
        }
        self.full |= self.left.len() >= self.max;
        if self.full {
            let links = u128::from(meta.nlink());
            self.bytes += u128::from(meta.blocks()) * 512 * WHOLE / links;
            self.inodes += WHOLE / links;
            return false;
        }
        self.left.insert(meta.ino(), meta.nlink() - 1);
        true
    }

    fn shared_bytes(&self) -> u64 {
        u64::try_from(self.bytes.div_ceil(WHOLE)).unwrap_or(u64::MAX)
    }

    fn shared_inodes(&self) -> u64 {
        u64::try_from(self.inodes.div_ceil(WHOLE)).unwrap_or(u64::MAX)
    }
}

/// Files below a pod's directory that its containers can write: `/etc/hosts`, `/etc/resolv.conf` and termination
/// messages. `None` if the directory does not exist, or the walk was stopped.
pub(crate) fn pod_files(pod: &Path, keep_going: &dyn Fn() -> bool) -> Option<Size> {
    fs::symlink_metadata(pod).ok()?;
    let messages = pod.join("containers");
    let messages = if messages.exists() { tree(&messages, keep_going)? } else { (0, 0) };
    let files = ["etc-hosts", "resolv.conf"].into_iter().filter_map(|name| fs::symlink_metadata(pod.join(name)).ok());
    let (bytes, inodes) = files
        .fold(messages, |(bytes, inodes), file| (bytes.saturating_add(file.blocks().saturating_mul(512)), inodes + 1));
    Some(Size { bytes, inodes: Some(inodes) })
}

/// Whether a directory is on another device than its parent.
pub(crate) fn is_mount(dir: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| meta.dev());
    dir.parent().is_some_and(|parent| device(dir) != device(parent))
}

/// Bytes of all image layers, each counted once. `None` where Docker has no list of layers, as with the containerd
/// image store.
pub(crate) fn layers(data_root: &Path) -> Option<u64> {
    let drivers = fs::read_dir(data_root.join("image")).ok()?;
    let mut sum = None;
    for driver in drivers.flatten() {
        let Ok(layers) = fs::read_dir(driver.path().join("layerdb/sha256")) else { continue };
        let size = |layer: fs::DirEntry| fs::read_to_string(layer.path().join("size")).ok()?.trim().parse::<u64>().ok();
        sum = Some(layers.flatten().filter_map(size).fold(sum.unwrap_or(0), u64::saturating_add));
    }
    sum
}

/// Blocks (in bytes) and number of a container's log files: json-file's and local's. `None` when its directory cannot be
/// listed.
pub(crate) fn logs(data_root: &Path, container_id: &str) -> Option<(u64, u64)> {
    let home = data_root.join("containers").join(container_id);
    fs::read_dir(&home).ok()?;
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
    Some((bytes, files))
}
