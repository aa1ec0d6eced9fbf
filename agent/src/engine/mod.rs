//! The only part of Windlass that talks to Docker Engine: names and labels, container bodies, calls,
//! events, images, logs.
//!
//! Imports nothing of `pods`; what a container should be is decided there and handed in.

pub(crate) mod attached;
pub(crate) mod calls;
pub mod check;
pub mod client;
pub(crate) mod events;
pub(crate) mod exec;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod images;
pub(crate) mod instance;
pub mod logs;
pub(crate) mod names;
pub mod pause;
pub(crate) mod process;
pub mod strangers;

pub use client::{ConnectError, Engine, Health};

/// Why a call to Docker did not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// There was no connection, it broke, or no answer came in time: nothing is known about the thing.
    Unreachable,
    /// Docker answered with this HTTP status.
    Refused(u16),
    /// Docker began to answer and then told of a failure, or its answer is none that can be used.
    Failed,
}

/// A call to Docker that did not work.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{attempt}: {reason}")]
pub struct EngineError {
    /// What was tried, on what.
    pub attempt: String,
    /// What Docker answered, or why there was no answer.
    pub reason: String,
    /// What it says of the thing that was asked about.
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

    /// The HTTP status of Docker's answer, where it is what says that something went wrong.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self.cause {
            Cause::Refused(status) => Some(status),
            Cause::Unreachable | Cause::Failed => None,
        }
    }

    /// The thing is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.cause == Cause::Refused(404)
    }

    /// Docker itself could not be asked: nothing is known about the thing.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.cause == Cause::Unreachable
    }
}
