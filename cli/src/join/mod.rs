//! Joins this machine to an existing cluster and leaves it again, as `kubeadm join` and `kubeadm reset` do.
//!
//! `cluster_info`, `kubelet_config` and `cluster` evaluate what the cluster publishes and are pure, except for the
//! requests of `cluster`; `discovery` finds the cluster, `certificate` obtains the node's certificate, `join_dir` is
//! the files of a joined node, `unit` its systemd unit. The commands combine these. Imports settings and API clients;
//! nothing that runs a node.

pub(crate) mod certificate;
pub(crate) mod cluster;
mod cluster_info;
pub(crate) mod discovery;
pub(crate) mod feature_gates;
pub(crate) mod join_dir;
pub(crate) mod kubelet_config;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;
