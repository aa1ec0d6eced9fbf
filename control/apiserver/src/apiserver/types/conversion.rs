//! How a served version differs from the stored one. Pure.

use serde_json::Value;

use super::Gvk;

/// The conversion between a version and the others of its resource.
#[derive(Debug, Clone, Copy)]
pub enum Conversion {
    /// The version is stored as it is served.
    None,
    /// The versions differ in `apiVersion`, and in what their schemas prune: a CustomResourceDefinition of the strategy
    /// `None`.
    Rename,
    /// A webhook converts: a CustomResourceDefinition of the strategy `Webhook`. None is called yet, so that a request that
    /// needs it fails.
    Webhook,
    /// Fields have other names.
    Fn {
        /// Makes the served object of the stored one.
        from_storage: fn(&mut Value),
        /// Makes the stored object of the served one.
        to_storage: fn(&mut Value),
    },
}

/// An object that cannot be had in a version, in the words of the answer, which is 500 as upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConversionError(String);

impl ConversionError {
    /// The webhook that converts objects of `from` cannot be called.
    pub(super) fn webhook(from: &Gvk) -> Self {
        let Gvk { group, version, kind } = from;
        Self(format!(
            "conversion webhook for {group}/{version}, Kind={kind} failed: conversion webhooks are not called by this API server"
        ))
    }

    /// The resource has no such version any more.
    pub(super) fn from_unknown(api_version: &str) -> Self {
        Self(format!("request to convert CR from an invalid group/version: {api_version}"))
    }

    /// The resource does not have the version that is asked for.
    pub(super) fn to_unknown(api_version: &str) -> Self {
        Self(format!("request to convert CR to an invalid group/version: {api_version}"))
    }
}
