//! Errors of controllers, and predicates of API errors.

use std::path::PathBuf;

use kube::core::response::reason;
pub(crate) use windlass_kit::client::message;

/// An error of a controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API refused or could not be reached.
    #[error("failed to {action} {object}: {}; retrying", message(.source))]
    Api {
        /// What was attempted, such as `create a pod for`.
        action: &'static str,
        /// The object of the attempt.
        object: String,
        /// The API's answer.
        source: Box<kube::Error>,
    },
    /// The configured cluster CIDR is invalid.
    #[error("cluster range {range:?} cannot be split into node ranges: {why}; set it to something like 10.244.0.0/16")]
    ClusterRange {
        /// The range as configured.
        range: String,
        /// Why it is invalid.
        why: String,
    },
    /// The directory of a volume.
    #[error("failed to {action} the directory {}: {source}; retrying", .path.display())]
    Directory {
        /// What was attempted.
        action: &'static str,
        /// The directory.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A concurrent change; retrying with fresh state.
    #[error("{0} changed meanwhile; retrying")]
    Changed(String),
}

/// Adds the attempted action to an API error.
pub(crate) trait During<T> {
    fn during(self, action: &'static str, object: &impl ToString) -> Result<T, Error>;
}

impl<T> During<T> for Result<T, kube::Error> {
    fn during(self, action: &'static str, object: &impl ToString) -> Result<T, Error> {
        self.map_err(|source| Error::Api { action, object: object.to_string(), source: Box::new(source) })
    }
}

/// The object does not exist, or nothing is served at its path, for which kube knows no reason.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found() || status.code == 404)
}

/// A conflicting write, or a failed precondition such as the UID.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

/// What was written is not valid, such as a patch that names another UID.
pub(crate) fn is_invalid(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422)
}

pub(crate) fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == reason::ALREADY_EXISTS)
}

/// The namespace is terminating: nothing can be created in it, which is no failure worth reporting.
pub(crate) fn is_namespace_terminating(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.details.as_ref().is_some_and(|d| d.causes.iter().any(|c| c.reason == "NamespaceTerminating")))
}

/// The answer to a write of the version that was seen; `None` when the object is gone.
///
/// # Errors
/// [`Error::Changed`] when there is another version by now.
pub(crate) fn of_seen<T>(
    answer: Result<T, kube::Error>,
    action: &'static str,
    object: &impl ToString,
) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) if is_conflict(&error) => Err(Error::Changed(object.to_string())),
        answer => answer.during(action, object).map(Some),
    }
}

/// The answer to a write of the version that was seen; that somebody was faster is no failure but a change.
pub(crate) fn written<T>(
    answer: Result<T, kube::Error>,
    action: &'static str,
    object: &impl ToString,
) -> Result<T, Error> {
    of_seen(answer, action, object)?.ok_or_else(|| Error::Changed(object.to_string()))
}

/// Ignores a deleted or recreated object, which needs no more work.
pub(crate) fn ignore_deleted<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
