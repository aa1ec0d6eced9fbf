//! The life of one volume on the node, by its kind: set up once, looked at after a restart of the agent, refreshed when
//! what it shows has changed, taken down with its pod. Everything that had to be asked of the API stands in the
//! [`Mounter`] already, so that here are file-system calls alone; they are made on the volumes' own [`threads`](super::threads).

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
    Place,
    atomic::{self, Payload},
    host, image,
    mounted::{self, is_mounted},
    threads::Call,
    tree,
};

/// Where the node keeps what belongs to one volume of a pod.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) pod: PathBuf,
    pub(super) plugin: &'static str,
    pub(super) volume: String,
}

impl Home {
    pub(super) fn dir(&self) -> PathBuf {
        self.pod.join("volumes").join(format!("kubernetes.io~{}", self.plugin)).join(&self.volume)
    }

    /// The folder of an unpacked image: beside it stands of which.
    pub(super) fn files(&self) -> PathBuf {
        self.dir().join("files")
    }

    /// Is there once the volume has been set up; upstream's place and name. What a container has made of it since is the
    /// pod's own business.
    fn ready(&self) -> PathBuf {
        self.pod.join("plugins").join(format!("kubernetes.io~{}", self.plugin)).join(&self.volume).join("ready")
    }

    fn is_ready(&self, told: &str) -> bool {
        fs::read_to_string(self.ready()).is_ok_and(|there| there == told)
    }

    fn set_ready(&self, told: &str) -> Result<(), String> {
        let file = self.ready();
        let failed = |e: io::Error| format!("{} could not be written: {e}", file.display());
        host::make_dir(file.parent().unwrap_or(&self.pod))?;
        fs::write(&file, told).map_err(failed)
    }
}

/// What a volume is made of in memory or on the node's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    Memory,
    /// Of this size, or of the kernel's own.
    HugePages(Option<String>),
}

impl Medium {
    pub(super) fn of(text: Option<&str>) -> Result<Self, String> {
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

/// One volume with all that its set-up needs.
#[derive(Debug)]
pub(super) enum Mounter {
    /// A path of the host, checked each time.
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
        home: Home,
        medium: Medium,
        size: Option<i64>,
        group: Option<i64>,
    },
    /// A folder of the host that is a volume of its own, given to the pod's group.
    Local {
        home: Home,
        path: PathBuf,
        read_only: bool,
        group: Option<i64>,
        root_is_enough: bool,
    },
    Nfs {
        home: Home,
        source: NFSVolumeSource,
        options: Vec<String>,
        read_only: bool,
    },
    /// An image that is unpacked below the pod's folder.
    Image {
        home: Home,
        id: String,
    },
    /// Files made of objects: configMap, secret, downwardAPI, projected.
    Files {
        home: Home,
        in_memory: bool,
        payload: Payload,
        group: Option<i64>,
    },
}

/// How far file-system calls alone bring a volume.
#[derive(Debug)]
pub(super) enum Progress {
    Done(Place),
    /// What is to be shown must be fetched first, into what has been made for it.
    Fetch,
}

impl Mounter {
    /// Sets up what is not set up, and writes what has changed.
    ///
    /// # Errors
    /// What the kernel refused, or what is not as the volume says.
    pub(super) fn prepare(&self, call: &Call) -> Result<Progress, String> {
        if !self.is_set_up() {
            call.still_wanted()?;
            self.set_up(call)?;
            if matches!(self, Self::Nfs { .. } | Self::Image { .. }) {
                return Ok(Progress::Fetch);
            }
        }
        call.still_wanted()?;
        self.refresh()?;
        Ok(Progress::Done(self.place()?))
    }

    /// Whether an earlier set-up was finished, perhaps before a restart of the agent.
    fn is_set_up(&self) -> bool {
        match self {
            // Nothing is kept of these: what is there is looked at.
            Self::HostPath { .. } | Self::BlockDevice { .. } => false,
            Self::EmptyDir { home, medium: Medium::Disk, .. } => home.is_ready("") && is_folder(&home.dir()),
            Self::EmptyDir { home, .. } => home.is_ready("") && is_mounted(&home.dir()),
            Self::Local { home, path, .. } => home.is_ready(&path.to_string_lossy()) && path.is_dir(),
            // Its root is the server's: nothing is done to it, now or later.
            Self::Nfs { home, .. } => is_mounted(&home.dir()),
            Self::Image { home, id } => home.is_ready(id),
            Self::Files { home, in_memory: true, .. } => is_mounted(&home.dir()),
            Self::Files { home, .. } => is_folder(&home.dir()),
        }
    }

    fn set_up(&self, call: &Call) -> Result<(), String> {
        match self {
            Self::HostPath { source, .. } => host::host_path(source).map(drop),
            Self::BlockDevice { .. } => Ok(()),
            Self::EmptyDir { home, medium, size, group } => {
                let dir = home.dir();
                host::make_dir(&dir)?;
                match medium {
                    Medium::Disk => host::open_to_pod(&dir, 0o777)?,
                    Medium::Memory => host::mount_memory(&dir, *size, 0o777)?,
                    Medium::HugePages(page) => host::mount_huge_pages(&dir, page.as_deref(), *size)?,
                }
                host::give_group(&dir, *group)?;
                home.set_ready("")
            }
            Self::Local { home, path, read_only, group, root_is_enough } => {
                if !path.is_dir() {
                    return Err(format!("the local volume's folder {} is not there", path.display()));
                }
                // Who has it already works in it as it is.
                if !read_only && group.is_some() && !is_used_by_another(home, path) {
                    host::give_all_to_group(path, *group, *root_is_enough, &|| call.progress())?;
                }
                call.still_wanted()?;
                home.set_ready(&path.to_string_lossy())
            }
            Self::Nfs { home, .. } => host::make_dir(&home.dir()),
            Self::Image { home, .. } => {
                let dir = home.dir();
                host::make_dir(&dir)?;
                let cleared = tree::open(&dir)
                    .and_then(|at| tree::remove(at.as_fd(), OsStr::new("files"), &mut || call.progress()));
                cleared.map_err(|e| format!("{} could not be cleared: {e}", home.files().display()))?;
                host::make_dir(&home.files())?;
                host::open_to_pod(&home.files(), 0o755)
            }
            Self::Files { home, in_memory, .. } => {
                let dir = home.dir();
                host::make_dir(&dir)?;
                if *in_memory { host::mount_memory(&dir, None, 0o755) } else { Ok(()) }
            }
        }
    }

    fn refresh(&self) -> Result<(), String> {
        let Self::Files { home, payload, group, .. } = self else { return Ok(()) };
        let dir = home.dir();
        atomic::write(&dir, payload, *group)
            .map_err(|e| format!("its files could not be written in {}: {e}", dir.display()))
    }

    /// What is left to be done once an image has been unpacked, of which a container was made then.
    pub(super) fn unpacked(&self, made: Timestamp) -> Result<(), String> {
        let Self::Image { home, id } = self else { return Ok(()) };
        let files = home.files();
        image::drop_engines_own(&files, made)
            .map_err(|e| format!("what Docker has put into {} could not be removed: {e}", files.display()))?;
        home.set_ready(id)
    }

    /// Where it is.
    pub(super) fn place(&self) -> Result<Place, String> {
        let at = |path: PathBuf, read_only| Place { path, read_only, device: false, image: None };
        Ok(match self {
            Self::HostPath { source, read_only } => at(PathBuf::from(&source.path), *read_only),
            Self::BlockDevice { path, read_only } => {
                Place { device: true, ..at(host::block_device(path)?, *read_only) }
            }
            Self::EmptyDir { home, .. } => at(home.dir(), false),
            Self::Local { path, read_only, .. } => at(path.clone(), *read_only),
            Self::Nfs { home, read_only, .. } => at(home.dir(), *read_only),
            Self::Image { home, .. } => at(home.files(), true),
            // Whoever could write there could have the node write and remove elsewhere.
            Self::Files { home, .. } => at(home.dir(), true),
        })
    }
}

/// Whether another pod of the node has this local volume too.
fn is_used_by_another(home: &Home, path: &Path) -> bool {
    let Some(pods) = home.pod.parent() else { return false };
    let others = fs::read_dir(pods).into_iter().flatten().flatten().map(|e| e.path()).filter(|pod| *pod != home.pod);
    others.into_iter().any(|pod| {
        let volumes = fs::read_dir(pod.join("plugins").join(format!("kubernetes.io~{}", home.plugin)));
        let mut volumes = volumes.into_iter().flatten().flatten();
        volumes.any(|v| fs::read_to_string(v.path().join("ready")).is_ok_and(|told| Path::new(&told) == path))
    })
}

fn is_folder(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|about| about.is_dir())
}

/// Folders below a pod's that hold what volumes are made of and mounted at, and that they are ready.
const FOLDERS: [&str; 3] = ["volume-subpaths", "volumes", "plugins"];

/// Takes down all volumes of a pod: unmounts everything below its folder, the deepest first, and removes what the volumes
/// have held there. What they only led to, on the host or a server, stays.
///
/// # Errors
/// When something cannot be unmounted: nothing below a mount is ever removed.
pub(super) fn tear_down(pod: &Path, call: &Call) -> Result<(), String> {
    let mut mounts = mounted::below(pod).map_err(|e| format!("the mounts could not be read: {e}"))?;
    mounts.sort_unstable_by_key(|m| std::cmp::Reverse(m.as_os_str().len()));
    for mounted in mounts {
        call.progress();
        // Detached: a server that is away is not waited for.
        umount2(&mounted, MntFlags::MNT_DETACH)
            .map_err(|e| format!("{} could not be unmounted: {e}", mounted.display()))?;
    }
    let at = match tree::open(pod) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(|e| format!("{} could not be opened: {e}", pod.display()))?,
    };
    for folder in FOLDERS {
        tree::remove(at.as_fd(), OsStr::new(folder), &mut || call.progress())
            .map_err(|e| format!("{} could not be removed: {e}", pod.join(folder).display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
