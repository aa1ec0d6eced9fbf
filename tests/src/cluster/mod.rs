//! A real Kubernetes control plane for tests: etcd, kube-apiserver, kube-controller-manager and kube-scheduler run on
//! the machine outside of a [`Testbed`](crate::Testbed), whose node joins that cluster.
//!
//! The programs are not part of this repository. They are read from the directory in the variable `KUBEBUILDER_ASSETS`
//! (the convention of envtest); [`assets`] returns it if it is set.

mod access;
mod bootstrap;
mod control_plane;
pub(crate) mod pki;

pub use control_plane::{ADDRESS, ControlPlane, PORT, Part};

use std::path::PathBuf;

/// The variable that names the directory of the control plane's programs.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The variable that selects the API of a [`Testbed`](crate::Testbed)'s node: `embedded` (the default) or `cluster`.
pub const API: &str = "TEST_API";

/// The kind of Kubernetes API of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// The API of `windlass up`, in the same process.
    Embedded,
    /// A real control plane, which `windlass agent` joins.
    Cluster,
}

impl Api {
    /// The API selected by the environment.
    ///
    /// # Panics
    /// When the variable has another value.
    #[must_use]
    pub fn from_env() -> Self {
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
/// When the directory lacks one of the programs: a requested run must not be skipped silently.
#[must_use]
pub fn assets() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(ASSETS).filter(|name| !name.is_empty())?);
    for part in Part::ALL {
        let program = folder.join(part.program());
        assert!(program.is_file(), "{} is missing, and {ASSETS} names its folder", program.display());
    }
    Some(folder)
}
