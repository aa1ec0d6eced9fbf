//! Container logs: where Docker keeps them, and Docker's own log stream for drivers that write no files.

use std::{collections::HashMap, io, path::PathBuf};

use bollard::{
    container::LogOutput,
    models::ContainerSummaryStateEnum,
    query_parameters::{InspectContainerOptions, ListContainersOptions, LogsOptions},
};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};

use super::{Engine, EngineError, containers::short, names};
use crate::logs::LogRequest;

/// The logging driver whose files are read directly.
const JSON_FILE_DRIVER: &str = "json-file";
/// Most lines in one chunk when the client is slower than Docker.
const MAX_LINES_PER_CHUNK: usize = 256;

/// One attempt at running a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) number: u32,
    pub(crate) id: String,
    pub(crate) running: bool,
}

/// Where a container's log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLocation {
    /// The newest file; `None` when Docker keeps it in another way.
    pub(crate) file: Option<PathBuf>,
    pub(crate) running: bool,
}

impl Engine {
    /// Where Docker keeps a container's log.
    pub(crate) async fn log_location(&self, id: &str) -> Result<LogLocation, EngineError> {
        let answer = self.docker().inspect_container(id, None::<InspectContainerOptions>).await;
        let answer =
            answer.map_err(|e| EngineError::new(format!("container {} could not be inspected", short(id)), &e))?;
        let driver = answer.host_config.and_then(|h| h.log_config).and_then(|l| l.typ);
        let path = answer.log_path.filter(|p| !p.is_empty() && driver.as_deref() == Some(JSON_FILE_DRIVER));
        Ok(LogLocation {
            file: path.map(PathBuf::from),
            running: answer.state.and_then(|s| s.running).unwrap_or_default(),
        })
    }

    /// A container's log as Docker streams it.
    pub(crate) fn docker_log(
        &self,
        id: &str,
        request: &LogRequest,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        let options = LogsOptions {
            stdout: true,
            stderr: true,
            follow: request.follow,
            timestamps: request.timestamps,
            since: request.since.and_then(|s| i32::try_from(s.div_euclid(1_000_000_000)).ok()).unwrap_or(0),
            tail: request.tail.map_or_else(|| "all".to_owned(), |n| n.to_string()),
            ..LogsOptions::default()
        };
        let lines = self.docker().logs(id, Some(options)).map(move |line| {
            line.map(LogOutput::into_bytes)
                .map_err(|e| io::Error::other(EngineError::new("the container's log could not be read", &e)))
        });
        let mut left = request.limit.unwrap_or(u64::MAX);
        lines
            .ready_chunks(MAX_LINES_PER_CHUNK)
            .map(|lines| {
                let lines = lines.into_iter().collect::<io::Result<Vec<Bytes>>>()?;
                Ok(Bytes::from(lines.concat()))
            })
            .take_while(move |_| std::future::ready(left > 0))
            .map(move |chunk: io::Result<Bytes>| {
                let mut chunk = chunk?;
                chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= chunk.len() as u64;
                Ok(chunk)
            })
    }

    /// The last lines of a container's log, at most `lines` and `bytes`.
    pub(crate) async fn log_tail(&self, id: &str, lines: usize, bytes: usize) -> Result<String, EngineError> {
        let options = LogsOptions { stdout: true, stderr: true, tail: lines.to_string(), ..LogsOptions::default() };
        let mut log = Box::pin(self.docker().logs(id, Some(options)));
        let mut out = Vec::new();
        while let Some(line) = log.next().await {
            let line = line.map_err(|e| EngineError::new("the container's log could not be read", &e))?;
            out.extend_from_slice(&line.into_bytes());
            let excess = out.len().saturating_sub(bytes);
            out.drain(..excess);
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    /// The attempts at a container of a pod, newest first.
    pub(crate) async fn attempts(&self, pod_uid: &str, container: &str) -> Result<Vec<Attempt>, EngineError> {
        let labels = vec![format!("{}={pod_uid}", names::POD_UID), format!("{}={container}", names::CONTAINER_NAME)];
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([("label".to_owned(), labels)])),
            ..ListContainersOptions::default()
        };
        let found = self.docker().list_containers(Some(options)).await;
        let found = found.map_err(|e| EngineError::new("the container could not be looked up", &e))?;
        let mut attempts: Vec<Attempt> = found
            .into_iter()
            .filter_map(|c| {
                let name = c.names?.into_iter().next()?;
                Some(Attempt {
                    number: names::Identity::read(&name, &c.labels?)?.attempt,
                    id: c.id?,
                    running: c.state == Some(ContainerSummaryStateEnum::RUNNING),
                })
            })
            .collect();
        attempts.sort_by_key(|a| std::cmp::Reverse(a.number));
        Ok(attempts)
    }
}
