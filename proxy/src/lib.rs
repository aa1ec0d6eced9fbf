//! The service proxy: Services and EndpointSlices become iptables rules, with the chain names and
//! rules that kube-proxy 1.36 writes in iptables mode.
//!
//! Three storeys. Pure: [`model`], [`select`], [`rules`], [`plan`], [`kernel`] and [`explain`] know
//! neither clock, kernel nor network. Thin: [`apply`] is the only place that runs iptables,
//! [`conntrack`] the only one that touches tracked connections, `serve` the HTTP end points. The
//! loop: `sync` owns all state and ties them. Imports nothing of ours but `windlass-kit`.

pub mod apply;
mod check;
mod cleanup;
mod config;
pub mod conntrack;
pub mod explain;
mod inspect;
mod ipvs;
pub mod kernel;
mod local;
pub mod model;
mod netlink;
mod nfacct;
pub mod plan;
pub mod rules;
pub mod select;
mod serve;
mod subject;
mod sync;
mod sysctls;

pub use check::check;
pub use cleanup::{CleanupError, cleanup, prepare, record};
pub use config::{Config, DetectLocal, Error, NodePortAddresses, Page, Variant, rules_from_objects};
pub use inspect::{InspectError, inspect, kernel_rules};
pub use local::LocalAddresses;
pub use sync::run;
pub use sysctls::{Conntrack as ConntrackSettings, Timeout};
