//! The embedded API server, with its store, certificates and first objects.
//!
//! `apiserver` knows no kind; `kinds` and `plugin` do, and `control_plane` puts them together. Controllers, scheduler and DNS are
//! clients of it and crates of their own; none of them is imported here.

mod aggregator;
mod apiextensions;
pub mod apiserver;
mod cel;
pub mod kinds;
pub mod metrics;
pub mod schema;

#[cfg(test)]
extern crate self as windlass_control;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod in_memory;

mod control_plane;
mod event_ttl;
mod loopback_probe;
mod plugin;
mod validating_admission_policy_status;
mod webhook;

pub use windlass_store as store;

pub use control_plane::{
    AuthorizationMode, ClientAuthority, Component, Config, ControlPlane, Durability, Error, RESTORE_DIR, ServerOptions,
    ServiceAccountIssuer, copy_store, finish_restore, has_store, is_data_dir, remove_unmarked_store, restore_store,
};
pub use loopback_probe::LoopbackProbe;
pub use plugin::audit::AuditConfig;
