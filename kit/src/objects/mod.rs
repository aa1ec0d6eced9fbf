//! Semantics of API objects that the API server and the node must agree on: label and node selectors, tolerations, labels
//! that a node may set, claims, requests, defaults, image references. Pure; imports no client.

pub mod claims;
pub mod image;
pub mod label_selector;
pub mod node_labels;
pub mod node_selector;
pub mod pod_defaults;
pub mod requests;
pub mod resources;
pub mod schedule;
pub mod tolerations;
