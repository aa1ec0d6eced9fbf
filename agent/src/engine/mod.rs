//! Docker Engine's API: the only module that calls it. Names and labels of containers, create/start/stop/remove, exec
//! and attach, events, images, logs.
//!
//! Imports nothing of `pods`: what a container should be is decided there and handed in.

pub mod check;
pub mod client;
pub(crate) mod containers;
pub(crate) mod data_root;
pub(crate) mod docker_api;
#[cfg(test)]
mod docker_api_tests;
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
pub(crate) mod process;
#[cfg(test)]
mod recorded_tests;
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
            Error::IOError { .. } | Error::HyperResponseError { .. } | Error::RequestTimeoutError => {
                (Cause::Unreachable, format!("Docker did not answer: {}", windlass_kit::client::innermost(error)))
            }
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

    /// Docker has refused before it did anything: the object is as it was.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.status().is_some_and(|status| (400..500).contains(&status))
    }

    /// Docker could not be reached: nothing is known about the object.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.cause == Cause::Unreachable
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Someone who stopped Docker, or has not started it yet, gets an error that says so rather than a client error;
    /// the same client works once Docker is up.
    #[tokio::test]
    async fn docker_may_come_later_and_why_it_does_not_answer_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let engine = Engine::new(&socket.to_string_lossy(), Arc::default()).unwrap();
        for why in ["No such file or directory (os error 2)", "Connection refused (os error 111)"] {
            let error = engine.negotiate().await.unwrap_err();
            assert!(error.is_unreachable());
            let text = format!(
                "the version of Docker's API could not be agreed on: Docker did not answer: {}: {why}",
                socket.display()
            );
            assert_eq!(error.to_string(), text);
            if !socket.exists() {
                drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
            }
        }
        std::fs::remove_file(&socket).unwrap();
        let body = r#"{"Version":"28.5.2","ApiVersion":"1.51","MinAPIVersion":"1.24"}"#;
        let _docker = fake::scripted(dir.path(), move |_| fake::json(200, body));
        assert_eq!(engine.negotiate().await.unwrap().to_string(), "1.51");
    }
}
