//! A network namespace that outlives its processes: a bind mount of it, as other container runtimes and `ip netns` keep
//! theirs, and in their directory, which the DaemonSets of plugins mount. It outlives this process too; only the end of
//! the machine's run takes it away.

use std::{fs::File, io, path::Path};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statfs::{NSFS_MAGIC, statfs},
};
use windlass_kit::atomic_file;

use crate::network::NetworkNamespace;

/// Whether a namespace is held there.
pub(super) fn is_held(at: &Path) -> bool {
    statfs(at).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

/// Holds a network namespace.
///
/// # Errors
/// When the kernel refuses the mount.
pub(super) fn hold(namespace: &NetworkNamespace, at: &Path) -> io::Result<()> {
    // What an earlier attachment may have left is another namespace.
    release(at)?;
    if let Some(dir) = at.parent() {
        atomic_file::make_dir(dir, 0o755)?;
    }
    File::create_new(at)?;
    let from = format!("/proc/self/fd/{}", namespace.descriptor());
    mount(Some(from.as_str()), at, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(io::Error::from)
}

/// Stops holding it; the namespace is removed with its last process. One that is not held is success.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn release(at: &Path) -> io::Result<()> {
    while is_held(at) {
        umount2(at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    match std::fs::remove_file(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
