//! The service proxy: Services and EndpointSlices become iptables rules, with the chain names and
//! rules that kube-proxy 1.36 writes in iptables mode.
//!
//! And NetworkPolicies of the built-in pod network become chains and IP sets ([`network_policy`]).
//!
//! Three storeys. Pure: [`model`], [`topology`], [`rules`], [`plan`], [`network_policy`], [`iptables_save`] and [`explain`] know
//! neither clock, kernel nor network. Thin: [`apply`] is the only place that runs iptables and changes IP sets,
//! [`conntrack`] decides which tracked connections are stale, `serve` the HTTP end points. The
//! loop: `sync` owns all state and ties them. Imports nothing of ours but `windlass-kit`.

mod affinity;
pub mod apply;
mod check;
mod cleanup;
mod config;
pub mod conntrack;
pub mod explain;
mod inspect;
pub mod iptables_save;
mod ipvs;
pub mod model;
pub mod network_policy;
mod nfacct;
mod object_ref;
pub mod plan;
pub mod rules;
mod serve;
mod startup;
mod sync;
mod sysctls;
pub mod topology;

pub use apply::Variant;
pub use check::check;
pub use cleanup::{CleanupError, cleanup};
pub use config::{Config, DetectLocal, Error, NodePortAddresses, Page, ValidConfig};
pub use inspect::{InspectError, inspect, kernel_rules};
pub use plan::{Objects, policies_from_objects, rules_from_objects};
pub use startup::{prepare, snapshot_tables};
pub use sync::{NetworkPolicies, run};
pub use sysctls::{Conntrack as ConntrackSettings, Timeout};
pub use windlass_kit::local_addresses::LocalAddresses;
use windlass_kit::{local_addresses, netlink};
