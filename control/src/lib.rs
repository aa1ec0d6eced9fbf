//! The embedded control plane: API server, store, controllers, scheduler.
//!
//! Controllers and scheduler are clients of the API and know nothing of the store; the API knows nothing of
//! Docker or iptables. Imports `kit` only.

pub mod api;
pub mod controllers;
pub mod manifests;
pub mod metrics;
pub mod patch;
pub mod pki;
pub mod registry;
pub mod scheduler;
pub mod schema;
pub mod select;
pub mod store;
pub mod table;
pub mod tokens;

#[cfg(test)]
extern crate self as windlass_control;

#[doc(hidden)]
pub mod fuzzing;

mod events;
mod own_api;
mod plane;

pub use own_api::OwnApi;
pub use plane::{Config, ControlPlane, Error, is_data_dir};
