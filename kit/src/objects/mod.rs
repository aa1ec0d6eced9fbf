//! Semantics of API objects that the API server, its controllers and the node must agree on: label and node selectors,
//! tolerations, labels that a node may set, claims, requests and their sums, defaults, image references, percentages, disruption budgets.
//! Pure; imports no client.

pub mod claims;
pub mod disruption_budget;
pub mod image;
pub mod int_or_percent;
pub mod kept_metadata;
pub mod label_selector;
pub mod node_labels;
pub mod node_selector;
pub mod pod_defaults;
pub mod pod_secrets;
pub mod requests;
pub mod resource_names;
pub mod resources;
pub mod schedule;
pub mod storage_version;
pub mod sums;
pub mod tolerations;
#[cfg(test)]
mod upstream_tests;

/// Group, version and kind of what may own nothing: Events go after an hour, and would take with them what they own.
/// Upstream's `BannedOwners`.
pub const BANNED_OWNERS: [(&str, &str, &str); 1] = [("", "v1", "Event")];
