//! Disks: file systems by their roles, and what containers, pods and volumes use of them.

use std::{path::PathBuf, sync::Arc};

use super::SharedMap;

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filesystem {
    /// When it was queried.
    pub at: jiff::Timestamp,
    /// Size of the file system.
    pub capacity_bytes: u64,
    /// Available to unprivileged users.
    pub available_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// Total inodes; 0 where the file system has no fixed number.
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
}

/// Usage of a part of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Blocks, in bytes.
    pub bytes: u64,
    /// Files and directories; `None` where only bytes are known.
    pub inodes: Option<u64>,
}

/// The sum of sizes, as far as they are known: `None` when none is.
pub fn sum_of_sizes(sizes: impl IntoIterator<Item = Option<Size>>) -> Option<Size> {
    sizes.into_iter().flatten().reduce(|sum, size| Size {
        bytes: sum.bytes.saturating_add(size.bytes),
        inodes: sum.inodes.zip(size.inodes).map(|(a, b)| a.saturating_add(b)),
    })
}

/// Disk usage of one container, from the last scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerSize {
    /// When the scan ended.
    pub at: jiff::Timestamp,
    /// The writable layer; `None` if it cannot be measured.
    pub rootfs: Option<Size>,
    /// Log files; `None` when they cannot be listed.
    pub logs: Option<Size>,
    /// A scan is stalled.
    pub stale: bool,
}

/// Disk usage of a volume, from the last scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSize {
    /// Its name in the pod.
    pub name: String,
    /// Namespace and name of its PersistentVolumeClaim.
    pub claim: Option<(String, String)>,
    /// Deleted with the pod and on the node's disk, so that it counts as ephemeral storage.
    pub ephemeral: bool,
    /// Its usage, and the space and inodes of its file system.
    pub space: Filesystem,
    /// Files and directories in it.
    pub inodes_used: u64,
    /// The scan is stalled: the file system does not respond.
    pub stale: bool,
}

/// The result of all scans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Storage {
    /// The file system of the data directory.
    pub node: Option<Filesystem>,
    /// The directory of images and writable layers, for use of the file system itself.
    pub image_root: Option<PathBuf>,
    /// The file system of images and writable layers.
    pub images: Option<Filesystem>,
    /// Whether images and the node's own data are on one file system; `None` while one of them is unknown.
    pub is_one_file_system: Option<bool>,
    /// The file system of containers' logs.
    pub logs: Option<Filesystem>,
    /// Device name of the images' file system, for labels.
    pub images_device: String,
    /// By container id.
    pub containers: SharedMap<Arc<str>, ContainerSize>,
    /// By pod uid.
    pub volumes: SharedMap<Arc<str>, Vec<VolumeSize>>,
    /// Files of pods on the node's file system besides volumes, which containers can write: `/etc/hosts`,
    /// `/etc/resolv.conf` and termination messages. By pod uid.
    pub pod_files: SharedMap<Arc<str>, Size>,
    /// Bytes of all image layers, where Docker has a list of them.
    pub image_bytes: Option<u64>,
}
