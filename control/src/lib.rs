//! The embedded control plane: API server, store, controllers, scheduler.
//!
//! Controllers and scheduler are clients of the API and do not know the store; the API does not know Docker or
//! iptables. `apiserver` knows no kind; `kinds` and `plugin` do, and `control_plane` puts them together. Imports `kit`, `store`
//! and `apimachinery` only.

mod apiextensions;
pub mod apiserver;
pub mod controllers;
pub mod dns;
pub mod kinds;
pub mod manifests;
pub mod metrics;
pub mod pki;
pub mod scheduler;
pub mod schema;
pub mod service_account_tokens;

#[cfg(test)]
extern crate self as windlass_control;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod in_memory;

mod bootstrap_secret;
mod control_plane;
mod event_ttl;
mod fan_out;
mod loopback_probe;
mod plugin;
mod pod_ending;
mod quota;
mod storage_version;
#[cfg(test)]
mod tests;

pub use windlass_store as store;

pub use control_plane::{
    Component, Config, ControlPlane, Error, RESTORE_DIR, copy_store, finish_restore, has_store, is_data_dir,
    remove_unmarked_store, restore_store,
};
pub use loopback_probe::LoopbackProbe;
pub use plugin::audit::AuditConfig;
