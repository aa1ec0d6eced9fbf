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
pub(crate) mod images;
pub(crate) mod instance;
pub mod logs;
pub(crate) mod names;
pub mod pause;
pub(crate) mod process;
pub mod strangers;

pub use client::{ConnectError, Engine, Health};

/// A call to Docker that did not work.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{attempt}: {reason}")]
pub struct EngineError {
    /// What was tried, on what.
    pub attempt: String,
    /// What Docker answered, or why there was no answer.
    pub reason: String,
    /// The HTTP status of Docker's answer; `None` when there was none.
    pub status: Option<u16>,
}

impl EngineError {
    pub(crate) fn new(attempt: impl Into<String>, error: &bollard::errors::Error) -> Self {
        let (status, reason) = match error {
            bollard::errors::Error::DockerResponseServerError { status_code, message } => {
                (Some(*status_code), message.clone())
            }
            other => (None, format!("Docker did not answer: {other}")),
        };
        Self { attempt: attempt.into(), reason, status }
    }

    /// The thing is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status == Some(404)
    }

    /// Docker itself could not be asked: nothing is known about the thing.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.status.is_none()
    }
}
