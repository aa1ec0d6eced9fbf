//! What containers have printed.

use std::collections::HashMap;

use bollard::{
    container::LogOutput,
    query_parameters::{ListContainersOptions, LogsOptions},
};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};

use super::{Engine, EngineError, names};

/// Which lines are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRequest {
    /// Wait for more.
    pub follow: bool,
    /// Of the attempt before the newest.
    pub previous: bool,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Only so many of the last lines.
    pub tail: Option<u64>,
    /// Only lines since this second of 1970.
    pub since: Option<i64>,
    /// No more than so many bytes.
    pub limit: Option<u64>,
}

/// Which container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSource {
    /// The pod's uid.
    pub pod_uid: String,
    /// The container's name in the pod.
    pub container: String,
}

/// Why there are no lines.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The container was never made.
    #[error("container is not there yet")]
    Waiting,
    /// There was no attempt before.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// Docker refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Engine {
    /// The lines of a container, as they come.
    ///
    /// # Errors
    /// Before the first line only; a broken connection later ends the stream.
    pub async fn logs(
        &self,
        source: &LogSource,
        request: &LogRequest,
    ) -> Result<impl Stream<Item = Result<Bytes, EngineError>> + Send + use<>, LogError> {
        let mut ids = self.attempts(source).await?;
        let id = if request.previous {
            let missing = || LogError::NoPrevious { container: source.container.clone(), pod: source.pod_uid.clone() };
            (ids.len() > 1).then(|| ids.swap_remove(1)).ok_or_else(missing)?
        } else {
            ids.into_iter().next().ok_or(LogError::Waiting)?
        };
        let options = LogsOptions {
            stdout: true,
            stderr: true,
            follow: request.follow,
            timestamps: request.timestamps,
            since: request.since.and_then(|s| i32::try_from(s).ok()).unwrap_or(0),
            tail: request.tail.map_or_else(|| "all".to_owned(), |n| n.to_string()),
            ..LogsOptions::default()
        };
        let lines = self.docker().logs(&id, Some(options)).map(move |line| {
            line.map(LogOutput::into_bytes).map_err(|e| EngineError::new("the container's log could not be read", &e))
        });
        let mut left = request.limit.unwrap_or(u64::MAX);
        Ok(lines.take_while(move |_| std::future::ready(left > 0)).map(move |line| {
            let mut bytes = line?;
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            if length > left {
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            }
            left -= length.min(left);
            Ok(bytes)
        }))
    }

    /// The end of what a container has printed: at most so many lines and bytes.
    pub(crate) async fn log_end(&self, id: &str, lines: usize, bytes: usize) -> Result<String, EngineError> {
        let options = LogsOptions { stdout: true, stderr: true, tail: lines.to_string(), ..LogsOptions::default() };
        let mut printed = Box::pin(self.docker().logs(id, Some(options)));
        let mut out = Vec::new();
        while let Some(line) = printed.next().await {
            let line = line.map_err(|e| EngineError::new("the container's log could not be read", &e))?;
            out.extend_from_slice(&line.into_bytes());
            let excess = out.len().saturating_sub(bytes);
            out.drain(..excess);
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    /// The attempts at a container, newest first.
    async fn attempts(&self, source: &LogSource) -> Result<Vec<String>, EngineError> {
        let labels = vec![
            format!("{}={}", names::POD_UID, source.pod_uid),
            format!("{}={}", names::CONTAINER_NAME, source.container),
        ];
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([("label".to_owned(), labels)])),
            ..ListContainersOptions::default()
        };
        let found = self.docker().list_containers(Some(options)).await;
        let found = found.map_err(|e| EngineError::new("the container could not be looked up", &e))?;
        let mut attempts: Vec<(u32, String)> = found
            .into_iter()
            .filter_map(|c| {
                let name = c.names?.into_iter().next()?;
                Some((names::Identity::read(&name, &c.labels?)?.attempt, c.id?))
            })
            .collect();
        attempts.sort_by(|a, b| b.cmp(a));
        Ok(attempts.into_iter().map(|(_, id)| id).collect())
    }
}
