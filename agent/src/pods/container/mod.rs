//! The shape of a container: from a pod's spec to what Docker is asked to create. Pure; `steps` gathers what it needs
//! and calls Docker.
//!
//! Imports `lifecycle` for questions about specs, `cgroup`'s arithmetic and `engine`'s names; nothing of the other
//! folders.

pub(crate) mod container_config;
pub(crate) mod env;
mod env_file;
pub(crate) mod hosts_and_dns;
pub(crate) mod mounts;
pub(crate) mod qos;
pub(crate) mod security;
