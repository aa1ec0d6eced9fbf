//! How a served version differs from the stored one.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use serde_json::Value;

/// The conversion between a version and the others of its resource.
#[derive(Debug, Clone)]
pub enum Conversion {
    /// The version is stored as it is served.
    None,
    /// The versions differ in `apiVersion`, and in what their schemas prune: a CustomResourceDefinition of the strategy
    /// `None`.
    Rename,
    /// A webhook converts: a CustomResourceDefinition of the strategy `Webhook`.
    Webhook(Arc<dyn Converter>),
    /// Fields have other names.
    Fn {
        /// Makes the served object of the stored one.
        from_storage: fn(&mut Value),
        /// Makes the stored object of the served one.
        to_storage: fn(&mut Value),
    },
}

/// Converts custom objects between the versions of their resource.
#[async_trait]
pub trait Converter: fmt::Debug + Send + Sync {
    /// The objects in the version `to`, as many and in their order. None of them is in it already.
    ///
    /// # Errors
    /// When one cannot be converted.
    async fn convert(&self, objects: Vec<Value>, to: &str) -> Result<Vec<Value>, ConversionError>;
}

/// Takes the revision out of an object that is converted from or to what is stored: upstream's stored objects have none, and get
/// it when they have been converted.
pub(super) fn take_revision(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("resourceVersion")
}

/// Gives a converted object the revision that was taken out.
pub(super) fn restore_revision(object: &mut Value, revision: Option<Value>) {
    if let Some(revision) = revision
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("resourceVersion".to_owned(), revision);
    }
}

/// An object that cannot be had in a version, in the words of the answer, which is 500 as upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ConversionError {
    why: String,
    /// Whatever the objects are, they would not be converted now: the webhook does not answer.
    pub(super) is_of_all: bool,
}

impl ConversionError {
    /// One of the objects cannot be converted.
    pub fn of_object(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_of_all: false }
    }

    /// Nothing can be converted now.
    pub fn of_all(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_of_all: true }
    }

    /// The resource has no such version any more.
    pub(super) fn from_unknown(api_version: &str) -> Self {
        Self::of_object(format!("request to convert CR from an invalid group/version: {api_version}"))
    }

    /// The resource does not have the version that is asked for.
    pub(super) fn to_unknown(api_version: &str) -> Self {
        Self::of_object(format!("request to convert CR to an invalid group/version: {api_version}"))
    }

    /// Nobody has asked the webhook before the object was read: a fault of this program.
    pub(super) fn not_converted(api_version: &str) -> Self {
        Self::of_object(format!("the object was not converted from {api_version} before it was read"))
    }
}
