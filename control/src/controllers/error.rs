//! What can go wrong in a controller, and what an API refusal means.

use kube::core::response::reason;

/// Why a controller could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API refused or could not be reached.
    #[error("could not {action} {object}: {source}; it is tried again")]
    Api {
        /// What was tried, such as `create a pod for`.
        action: &'static str,
        /// On what.
        object: String,
        /// The API's answer.
        source: Box<kube::Error>,
    },
    /// A range in the configuration makes no sense.
    #[error("cluster range {range:?} cannot be cut into node ranges: {why}; set it to something like 10.244.0.0/16")]
    ClusterRange {
        /// The range as configured.
        range: String,
        /// What is wrong with it.
        why: String,
    },
    /// A watch ended before its first list was complete.
    #[error("the watch of {kind} ended before its first list; restart the control plane")]
    WatchEnded {
        /// The kind watched.
        kind: String,
    },
    /// Something else changed meanwhile; a new try decides anew.
    #[error("{0} changed meanwhile; it is tried again")]
    Changed(String),
}

/// Adds what was tried to an API error.
pub(crate) trait Context<T> {
    fn during(self, action: &'static str, object: &impl ToString) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, kube::Error> {
    fn during(self, action: &'static str, object: &impl ToString) -> Result<T, Error> {
        self.map_err(|source| Error::Api { action, object: object.to_string(), source: Box::new(source) })
    }
}

/// The object is not there.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

/// Another write came first, or a precondition such as the UID does not hold.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

pub(crate) fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == reason::ALREADY_EXISTS)
}

/// The namespace is being deleted: nothing can be created in it and nobody need be told.
pub(crate) fn is_namespace_terminating(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.details.as_ref().is_some_and(|d| d.causes.iter().any(|c| c.reason == "NamespaceTerminating")))
}

/// The text that a user sees in an event: the API's own message where there is one.
pub(crate) fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// An object that is gone, or another than the one meant, needs no more work.
pub(crate) fn ignore_gone<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
