//! The embedded control plane: API server, store, controllers, scheduler.
//!
//! Controllers and scheduler are clients of the API and do not know the store; the API does not know Docker or
//! iptables. Imports `kit` only.

pub mod api;
pub mod controllers;
pub mod manifests;
pub mod metrics;
pub mod patch;
pub mod pki;
pub mod registry;
pub mod scheduler;
pub mod schema;
pub mod selectors;
pub mod service_account_tokens;
pub mod store;
pub mod table;

#[cfg(test)]
extern crate self as windlass_control;

#[doc(hidden)]
pub mod fuzzing;

mod control_plane;
mod event_ttl;
mod loopback_probe;

pub use control_plane::{Config, ControlPlane, Error, is_data_dir};
pub use loopback_probe::LoopbackProbe;
