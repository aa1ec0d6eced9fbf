//! The connection to Docker Engine, and whether it answers.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bollard::Docker;

use super::EngineError;
use crate::metrics::Metrics;

/// Seconds that one request may take until its headers arrive; upstream's `runtimeRequestTimeout`.
const REQUEST_TIMEOUT: u64 = 120;

/// Whether Docker answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// No call has finished yet.
    Unknown,
    /// It answers; `version` is the engine's, such as `20.10.24`.
    Up {
        /// The engine's version.
        version: String,
    },
    /// It does not answer; `reason` is the error of the last call.
    Down {
        /// What was tried and what came back.
        reason: String,
    },
}

impl Health {
    /// Whether the engine mounts images as volumes: since version 28 (API 1.48).
    pub(crate) fn mounts_images(&self) -> bool {
        let Self::Up { version } = self else { return false };
        version.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major >= 28)
    }
}

/// Docker could not be reached.
#[derive(Debug, thiserror::Error)]
#[error("could not open Docker's socket {socket}: {source}; is the Docker service running?")]
pub struct ConnectError {
    socket: String,
    source: bollard::errors::Error,
}

/// A handle to Docker Engine; clones share one connection pool.
#[derive(Debug, Clone)]
pub struct Engine {
    docker: Docker,
    socket: Arc<Path>,
    metrics: Arc<Metrics>,
}

impl Engine {
    /// Makes a client of the Unix socket `socket`, such as `/var/run/docker.sock`. Nothing is sent yet. Calls are
    /// counted in `metrics`.
    ///
    /// # Errors
    /// When the socket's path cannot be used.
    pub fn new(socket: &str, metrics: Arc<Metrics>) -> Result<Self, ConnectError> {
        let docker = Docker::connect_with_unix(socket, REQUEST_TIMEOUT, bollard::API_DEFAULT_VERSION)
            .map_err(|source| ConnectError { socket: socket.to_owned(), source })?;
        let path = Path::new(socket.strip_prefix("unix://").unwrap_or(socket));
        Ok(Self { docker, socket: path.into(), metrics })
    }

    /// The client, for the modules of this folder.
    pub(crate) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// The path of its socket, for connections that are hijacked.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Awaits a call to Docker and records it in the metrics as `operation`, one of the kubelet's names of runtime
    /// operations. 304 and 404 count as success.
    pub(super) async fn counted<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, bollard::errors::Error>>,
    ) -> Result<T, bollard::errors::Error> {
        let begun = Instant::now();
        let result = call.await;
        self.metrics.operations.add([operation]);
        self.metrics.operation_seconds.observe_duration([operation], begun.elapsed());
        let failed = result.as_ref().err().map(|error| EngineError::new("", error).status());
        if failed.is_some_and(|status| !matches!(status, Some(304 | 404))) {
            self.metrics.operation_errors.add([operation]);
        }
        result
    }

    /// A client with another request timeout: for stops, waits, pulls and loads.
    pub(crate) fn patient(&self, timeout: Duration) -> Docker {
        self.docker.clone().with_timeout(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_engines_mount_images() {
        for (version, can) in
            [("20.10.24+dfsg1", false), ("27.5.1", false), ("28.0.0", true), ("29.1.0", true), ("dev", false)]
        {
            assert_eq!(Health::Up { version: version.to_owned() }.mounts_images(), can, "{version}");
        }
        assert!(!Health::Unknown.mounts_images());
    }
}
