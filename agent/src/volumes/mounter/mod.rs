//! The life cycle of a volume on the node, by kind: set up once, verified after a restart of the agent, refreshed when
//! its content has changed, torn down with its pod. A [`Mounter`] has everything that comes from the API, so here are
//! file-system calls only, which run on the [`call_pool`](super::call_pool).

use std::{
    ffi::OsStr,
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, NFSVolumeSource};
use nix::mount::{MntFlags, umount2};

use super::{
    MountSource,
    atomic_writer::{self, VolumeFiles},
    call_pool::Call,
    dirfd, image, mount,
    mountinfo::{self, is_mounted},
};

/// The directories of a volume of a pod.
#[derive(Debug, Clone)]
pub(super) struct VolumeDir {
    pub(super) pod: PathBuf,
    pub(super) plugin: &'static str,
    pub(super) volume: String,
}

impl VolumeDir {
    pub(super) fn dir(&self) -> PathBuf {
        self.pod.join("volumes").join(format!("kubernetes.io~{}", self.plugin)).join(&self.volume)
    }

    /// The directory of an unpacked image.
    pub(super) fn files(&self) -> PathBuf {
        self.dir().join("files")
    }

    /// Marker file of a finished setup, at upstream's path. Later changes by containers are the pod's own.
    fn ready(&self) -> PathBuf {
        self.pod.join("plugins").join(format!("kubernetes.io~{}", self.plugin)).join(&self.volume).join("ready")
    }

    fn is_ready(&self, content: &str) -> bool {
        fs::read_to_string(self.ready()).is_ok_and(|there| there == content)
    }

    fn set_ready(&self, content: &str) -> Result<(), String> {
        let file = self.ready();
        let failed = |e: io::Error| format!("{} could not be written: {e}", file.display());
        mount::make_dir(file.parent().unwrap_or(&self.pod))?;
        fs::write(&file, content).map_err(failed)
    }
}

/// The medium of an emptyDir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    Memory,
    /// Of this page size, or the kernel's default.
    HugePages(Option<String>),
}

impl Medium {
    pub(super) fn parse(text: Option<&str>) -> Result<Self, String> {
        match text.unwrap_or("") {
            "" => Ok(Self::Disk),
            "Memory" => Ok(Self::Memory),
            "HugePages" => Ok(Self::HugePages(None)),
            other => match other.strip_prefix("HugePages-") {
                Some(page) => Ok(Self::HugePages(Some(page.to_owned()))),
                None => Err(format!("the medium {other:?} is not supported; use Memory, HugePages, or none")),
            },
        }
    }
}

/// A volume with everything that its setup needs.
#[derive(Debug)]
pub(super) enum Mounter {
    /// A host path, checked each time.
    HostPath {
        source: HostPathVolumeSource,
        read_only: bool,
    },
    /// A block device of the host, for `volumeDevices`.
    BlockDevice {
        path: PathBuf,
        read_only: bool,
    },
    EmptyDir {
        volume_dir: VolumeDir,
        medium: Medium,
        size: Option<i64>,
        group: Option<i64>,
    },
    /// A local volume, with the pod's fsGroup.
    Local {
        volume_dir: VolumeDir,
        path: PathBuf,
        read_only: bool,
        group: Option<i64>,
        on_root_mismatch: bool,
    },
    Nfs {
        volume_dir: VolumeDir,
        source: NFSVolumeSource,
        options: Vec<String>,
        read_only: bool,
    },
    /// An image, unpacked below the pod's directory.
    Image {
        volume_dir: VolumeDir,
        id: String,
    },
    /// Files from objects: configMap, secret, downwardAPI, projected.
    Files {
        volume_dir: VolumeDir,
        in_memory: bool,
        payload: VolumeFiles,
        group: Option<i64>,
    },
}

/// The result of a setup by file-system calls.
#[derive(Debug)]
pub(super) enum SetUp {
    Done(MountSource),
    /// The content must be fetched into the prepared directory.
    Fetch,
}

impl Mounter {
    /// Upstream's name of its plugin, without the domain.
    pub(super) fn plugin(&self) -> &'static str {
        match self {
            Self::HostPath { .. } | Self::BlockDevice { .. } => "host-path",
            Self::EmptyDir { volume_dir, .. }
            | Self::Local { volume_dir, .. }
            | Self::Nfs { volume_dir, .. }
            | Self::Image { volume_dir, .. }
            | Self::Files { volume_dir, .. } => volume_dir.plugin,
        }
    }

    /// Sets up the volume unless it is, and updates its files.
    ///
    /// # Errors
    /// What the kernel refused, or what does not match the volume.
    pub(super) fn prepare(&self, call: &Call) -> Result<SetUp, String> {
        if !self.is_set_up() {
            call.check_cancelled()?;
            self.set_up(call)?;
            if matches!(self, Self::Nfs { .. } | Self::Image { .. }) {
                return Ok(SetUp::Fetch);
            }
        }
        call.check_cancelled()?;
        self.refresh()?;
        Ok(SetUp::Done(self.place()?))
    }

    /// Whether it is set up already, perhaps before a restart of the agent.
    fn is_set_up(&self) -> bool {
        match self {
            // No state: they are checked each time.
            Self::HostPath { .. } | Self::BlockDevice { .. } => false,
            Self::EmptyDir { volume_dir, medium: Medium::Disk, .. } => {
                volume_dir.is_ready("") && is_dir(&volume_dir.dir())
            }
            Self::EmptyDir { volume_dir, .. } => volume_dir.is_ready("") && is_mounted(&volume_dir.dir()),
            Self::Local { volume_dir, path, .. } => volume_dir.is_ready(&path.to_string_lossy()) && path.is_dir(),
            // Its root belongs to the server and is not changed.
            Self::Nfs { volume_dir, .. } => is_mounted(&volume_dir.dir()),
            Self::Image { volume_dir, id } => volume_dir.is_ready(id),
            Self::Files { volume_dir, in_memory: true, .. } => is_mounted(&volume_dir.dir()),
            Self::Files { volume_dir, .. } => is_dir(&volume_dir.dir()),
        }
    }

    fn set_up(&self, call: &Call) -> Result<(), String> {
        match self {
            Self::HostPath { source, .. } => mount::host_path(source).map(drop),
            Self::BlockDevice { .. } => Ok(()),
            Self::EmptyDir { volume_dir, medium, size, group } => {
                let dir = volume_dir.dir();
                mount::make_dir(&dir)?;
                match medium {
                    Medium::Disk => mount::set_mode(&dir, 0o777)?,
                    Medium::Memory => mount::mount_memory(&dir, *size, 0o777)?,
                    Medium::HugePages(page) => mount::mount_huge_pages(&dir, page.as_deref(), *size)?,
                }
                mount::set_group(&dir, *group)?;
                volume_dir.set_ready("")
            }
            Self::Local { volume_dir, path, read_only, group, on_root_mismatch } => {
                if !path.is_dir() {
                    return Err(format!("the local volume's directory {} does not exist", path.display()));
                }
                // Ownership is not changed under another pod.
                if !read_only && group.is_some() && !is_used_by_another(volume_dir, path) {
                    mount::set_group_recursively(path, *group, *on_root_mismatch, &|| call.progress())?;
                }
                call.check_cancelled()?;
                volume_dir.set_ready(&path.to_string_lossy())
            }
            Self::Nfs { volume_dir, .. } => mount::make_dir(&volume_dir.dir()),
            Self::Image { volume_dir, .. } => {
                let dir = volume_dir.dir();
                mount::make_dir(&dir)?;
                let cleared = dirfd::open_root(&dir)
                    .and_then(|at| dirfd::remove(at.as_fd(), OsStr::new("files"), &mut || call.progress()));
                cleared.map_err(|e| format!("{} could not be cleared: {e}", volume_dir.files().display()))?;
                mount::make_dir(&volume_dir.files())?;
                mount::set_mode(&volume_dir.files(), 0o755)
            }
            Self::Files { volume_dir, in_memory, .. } => {
                let dir = volume_dir.dir();
                mount::make_dir(&dir)?;
                if *in_memory { mount::mount_memory(&dir, None, 0o755) } else { Ok(()) }
            }
        }
    }

    fn refresh(&self) -> Result<(), String> {
        let Self::Files { volume_dir, payload, group, .. } = self else { return Ok(()) };
        let dir = volume_dir.dir();
        atomic_writer::write(&dir, payload, *group)
            .map_err(|e| format!("its files could not be written in {}: {e}", dir.display()))
    }

    /// Finishes an unpacked image, whose helper container was created at `made`.
    pub(super) fn unpacked(&self, made: Timestamp) -> Result<(), String> {
        let Self::Image { volume_dir, id } = self else { return Ok(()) };
        let files = volume_dir.files();
        image::remove_engine_files(&files, made)
            .map_err(|e| format!("what Docker has put into {} could not be removed: {e}", files.display()))?;
        volume_dir.set_ready(id)
    }

    /// What containers mount.
    pub(super) fn place(&self) -> Result<MountSource, String> {
        let at = |path: PathBuf, read_only| MountSource { path, read_only, device: false, image: None };
        Ok(match self {
            Self::HostPath { source, read_only } => at(PathBuf::from(&source.path), *read_only),
            Self::BlockDevice { path, read_only } => {
                MountSource { device: true, ..at(mount::block_device(path)?, *read_only) }
            }
            Self::EmptyDir { volume_dir, .. } => at(volume_dir.dir(), false),
            Self::Local { path, read_only, .. } => at(path.clone(), *read_only),
            Self::Nfs { volume_dir, read_only, .. } => at(volume_dir.dir(), *read_only),
            Self::Image { volume_dir, .. } => at(volume_dir.files(), true),
            // Read-only: a writer could redirect the node's own writes.
            Self::Files { volume_dir, .. } => at(volume_dir.dir(), true),
        })
    }
}

/// Whether another pod of the node uses this local volume.
fn is_used_by_another(volume_dir: &VolumeDir, path: &Path) -> bool {
    let Some(pods) = volume_dir.pod.parent() else { return false };
    let others =
        fs::read_dir(pods).into_iter().flatten().flatten().map(|e| e.path()).filter(|pod| *pod != volume_dir.pod);
    others.into_iter().any(|pod| {
        let volumes = fs::read_dir(pod.join("plugins").join(format!("kubernetes.io~{}", volume_dir.plugin)));
        let mut volumes = volumes.into_iter().flatten().flatten();
        volumes.any(|v| fs::read_to_string(v.path().join("ready")).is_ok_and(|content| Path::new(&content) == path))
    })
}

fn is_dir(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|metadata| metadata.is_dir())
}

/// Directories below a pod's that belong to volumes.
const VOLUME_DIRS: [&str; 3] = ["volume-subpaths", "volumes", "plugins"];

/// Unmounts everything below a pod's directory, the deepest first. What is in memory, such as Secrets, is gone with that; what
/// is on a disk or a server stays.
///
/// # Errors
/// What could not be unmounted; the rest was.
pub(super) fn unmount(pod: &Path, call: &Call) -> Result<(), String> {
    let mut mounts = mountinfo::mounts_below(pod).map_err(|e| format!("the mounts could not be read: {e}"))?;
    mounts.sort_unstable_by_key(|m| std::cmp::Reverse(m.as_os_str().len()));
    let mut failed = Vec::new();
    for mounted in mounts {
        call.progress();
        // Detached, so that an unreachable server does not block.
        if let Err(error) = umount2(&mounted, MntFlags::MNT_DETACH) {
            failed.push(format!("{} could not be unmounted: {error}", mounted.display()));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// Tears down all volumes of a pod: unmounts them, and removes its volume directories. Data on the host or a server stays.
///
/// # Errors
/// When something cannot be unmounted: nothing below a mount is ever removed.
pub(super) fn tear_down(pod: &Path, call: &Call) -> Result<(), String> {
    unmount(pod, call)?;
    let at = match dirfd::open_root(pod) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(|e| format!("{} could not be opened: {e}", pod.display()))?,
    };
    for subdir in VOLUME_DIRS {
        dirfd::remove(at.as_fd(), OsStr::new(subdir), &mut || call.progress())
            .map_err(|e| format!("{} could not be removed: {e}", pod.join(subdir).display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
