//! How this machine becomes a node of a cluster that others run, and how it ends being one, as `kubeadm join` does it.
//!
//! `cluster_info`, `kubelet_config` and `cluster` judge what the cluster says and are pure but for the last one's questions;
//! `discovery` finds the cluster, `certificate` has the node's certificate issued, `place` is the files that make a machine a
//! node, `unit` the service that runs it. The commands join these. Imports settings and the ways to an API; nothing of what
//! runs a node.

pub(crate) mod certificate;
pub(crate) mod cluster;
mod cluster_info;
pub(crate) mod discovery;
pub(crate) mod kubelet_config;
pub(crate) mod place;
pub(crate) mod unit;

#[cfg(test)]
mod tests;
