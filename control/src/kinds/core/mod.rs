//! Kinds of the core group.

pub(crate) mod config_map;
pub(crate) mod endpoints;
pub(crate) mod event;
pub(crate) mod namespace;
pub(crate) mod node;
pub(crate) mod persistent_volume;
pub(crate) mod persistent_volume_claim;
pub(crate) mod pod;
pub(crate) mod replication_controller;
pub(crate) mod secret;
pub(crate) mod service;
pub(crate) mod service_account;
