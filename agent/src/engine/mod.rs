//! Docker Engine's API: the only module that calls it. Names and labels of containers, create/start/stop/remove, exec
//! and attach, events, images, logs.
//!
//! Imports nothing of `pods`: what a container should be is decided there and handed in.

pub mod check;
pub mod client;
pub(crate) mod containers;
#[cfg(test)]
mod contracts;
pub(crate) mod data_root;
pub(crate) mod docker_api;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod exec_attach;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod hijack;
pub(crate) mod images;
pub(crate) mod inspect;
pub mod logs;
pub(crate) mod names;
pub mod pause;
pub mod unmanaged;

pub use client::{ConnectError, Engine, Health};

/// Why a call to Docker failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No connection, a broken one, or a timeout: nothing is known about the object.
    Unreachable,
    /// Docker answered with this HTTP status.
    Refused(u16),
    /// Docker reported a failure in the middle of its response, or sent one that cannot be parsed.
    Failed,
}

/// A failed call to Docker.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{attempt}: {reason}")]
pub struct EngineError {
    /// What was tried, on what.
    pub attempt: String,
    /// What Docker answered, or why there was no answer.
    pub reason: String,
    /// The class of the failure.
    pub cause: Cause,
}

impl EngineError {
    pub(crate) fn new(attempt: impl Into<String>, error: &bollard::errors::Error) -> Self {
        use bollard::errors::Error;
        let (cause, reason) = match error {
            Error::DockerResponseServerError { status_code, message } => {
                (Cause::Refused(*status_code), message.clone())
            }
            Error::DockerStreamError { error } | Error::DockerContainerWaitError { error, .. } => {
                (Cause::Failed, error.clone())
            }
            Error::IOError { .. }
            | Error::HyperResponseError { .. }
            | Error::HyperLegacyError { .. }
            | Error::RequestTimeoutError
            | Error::SocketNotFoundError(_) => (Cause::Unreachable, format!("Docker did not answer: {error}")),
            other => (Cause::Failed, format!("Docker's answer could not be used: {other}")),
        };
        Self { attempt: attempt.into(), reason, cause }
    }

    /// The HTTP status, if Docker answered with an error status.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self.cause {
            Cause::Refused(status) => Some(status),
            Cause::Unreachable | Cause::Failed => None,
        }
    }

    /// The object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.cause == Cause::Refused(404)
    }

    /// Docker could not be reached: nothing is known about the object.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.cause == Cause::Unreachable
    }
}
