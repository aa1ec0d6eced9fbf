//! A real Kubernetes control plane for tests: etcd, kube-apiserver, kube-controller-manager and kube-scheduler run on
//! the machine outside of a [`Testbed`](crate::Testbed), whose node joins that cluster.
//!
//! The programs are not part of this repository. They are read from the directory in the variable `KUBEBUILDER_ASSETS`
//! (the convention of envtest); [`assets`] returns it if it is set.

mod access;
mod bootstrap;
mod control_plane;
mod pki;

pub use control_plane::{ADDRESS, ControlPlane, PORT, Part};

use std::path::PathBuf;

/// The variable that names the directory of the control plane's programs.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The variable that says which API the node of a [`Testbed`](crate::World) has: `embedded` (also when it is not set) or
/// `cluster`.
pub const API: &str = "TEST_API";

/// Which Kubernetes API a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// The one of `windlass up`, in the same process.
    Embedded,
    /// That of a real control plane, which `windlass agent` joins.
    Cluster,
}

impl Api {
    /// The one that this run of the tests asks for.
    ///
    /// # Panics
    /// When the variable holds something else.
    #[must_use]
    pub fn asked() -> Self {
        match std::env::var(API).as_deref() {
            Err(_) | Ok("" | "embedded") => Self::Embedded,
            Ok("cluster") => Self::Cluster,
            Ok(other) => panic!("{API} is {other:?}; it can be embedded or cluster"),
        }
    }
}

/// The directory of the control plane's programs, if there is one.
///
/// # Panics
/// When the variable names a directory that lacks one of them: a run that was asked for must not be skipped.
#[must_use]
pub fn assets() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(ASSETS).filter(|name| !name.is_empty())?);
    for part in Part::ALL {
        let program = folder.join(part.program());
        assert!(program.is_file(), "{} is missing, and {ASSETS} names its folder", program.display());
    }
    Some(folder)
}
