//! Container logs: where Docker keeps them, and Docker's own log stream for drivers that write no files.

use std::{collections::HashMap, io, path::PathBuf};

use bollard::{
    container::LogOutput,
    models::ContainerSummaryStateEnum,
    query_parameters::{ListContainersOptions, LogsOptions},
};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;

use super::{Cause, Engine, EngineError, containers::short, docker_api::LOGS, names};
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

/// A line that begins with Docker's timestamp, unless that is before `since` (nanoseconds since 1970); without the
/// timestamp unless it is to be kept. Pure.
fn not_before(line: Bytes, since: i64, keep: bool) -> Option<Bytes> {
    let end = line.iter().position(|byte| *byte == b' ');
    let stamp = end.and_then(|end| std::str::from_utf8(&line[..end]).ok()?.parse::<Timestamp>().ok());
    let (Some(stamp), Some(end)) = (stamp, end) else { return Some(line) };
    if stamp.as_nanosecond() < i128::from(since) {
        return None;
    }
    Some(if keep { line } else { line.slice(end + 1..) })
}

/// The first `limit` bytes of a stream. It ends with them: nothing is waited for, or asked of Docker, after that.
fn limited(
    chunks: impl Stream<Item = io::Result<Bytes>> + Send,
    limit: Option<u64>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::unfold((Box::pin(chunks), limit.unwrap_or(u64::MAX)), |(mut chunks, left)| async move {
        if left == 0 {
            return None;
        }
        let chunk = chunks.next().await?.map(|mut chunk| {
            chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            chunk
        });
        let left = chunk.as_ref().map_or(0, |chunk| left - chunk.len() as u64);
        Some((chunk, (chunks, left)))
    })
}

impl Engine {
    /// Where Docker keeps a container's log.
    pub(crate) async fn log_location(&self, id: &str) -> Result<LogLocation, EngineError> {
        let answer = self.inspected(id).await?.ok_or_else(|| EngineError {
            attempt: format!("the log of container {} could not be found", short(id)),
            reason: "there is no such container".to_owned(),
            cause: Cause::Refused(404),
        })?;
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
        // Docker cuts at seconds, and bollard's cannot be after 2038: the rest is done here, by Docker's timestamps.
        let (since, keep) = (request.since, request.timestamps);
        let options = LogsOptions {
            stdout: true,
            stderr: true,
            follow: request.follow,
            timestamps: keep || since.is_some(),
            since: since.and_then(|s| i32::try_from(s.div_euclid(1_000_000_000)).ok()).unwrap_or(0),
            tail: request.tail.map_or_else(|| "all".to_owned(), |n| n.to_string()),
            ..LogsOptions::default()
        };
        let lines = self.patient(LOGS.limit).logs(id, Some(options)).filter_map(move |line| {
            let line = match (line.map(LogOutput::into_bytes), since) {
                (Ok(line), Some(since)) => not_before(line, since, keep).map(Ok),
                (Ok(line), None) => Some(Ok(line)),
                (Err(e), _) => {
                    Some(Err(io::Error::other(EngineError::new("the container's log could not be read", &e))))
                }
            };
            std::future::ready(line)
        });
        let chunks = lines.ready_chunks(MAX_LINES_PER_CHUNK).map(|lines| {
            let lines = lines.into_iter().collect::<io::Result<Vec<Bytes>>>()?;
            Ok(Bytes::from(lines.concat()))
        });
        limited(chunks, request.limit)
    }

    /// The last lines of a container's log, at most `lines` and `bytes`.
    pub(crate) async fn log_tail(&self, id: &str, lines: usize, bytes: usize) -> Result<String, EngineError> {
        let options = LogsOptions { stdout: true, stderr: true, tail: lines.to_string(), ..LogsOptions::default() };
        let mut log = Box::pin(self.patient(LOGS.limit).logs(id, Some(options)));
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
        let found = self.listed("the container could not be looked up", Some(options)).await?;
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

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn a_limit_ends_the_log() {
        // After these nothing comes, ever: a container that runs and is silent.
        let chunks = |all: &[&'static str]| {
            let all: Vec<io::Result<Bytes>> = all.iter().map(|text| Ok(Bytes::from_static(text.as_bytes()))).collect();
            stream::iter(all).chain(stream::pending())
        };
        let read = async |limit: u64| {
            let all: Vec<Bytes> =
                limited(chunks(&["one\n", "two\n", "three\n"]), Some(limit)).map(Result::unwrap).collect().await;
            String::from_utf8(all.concat()).unwrap()
        };
        assert_eq!(read(1).await, "o");
        assert_eq!(read(8).await, "one\ntwo\n");
        let all: Vec<_> = limited(stream::iter([Ok(Bytes::from_static(b"all"))]), None).collect().await;
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn what_was_before_is_cut_to_the_nanosecond() {
        let since = i64::try_from("2040-01-01T00:00:00.5Z".parse::<Timestamp>().unwrap().as_nanosecond()).unwrap();
        let cut = |line: &'static str, keep| not_before(Bytes::from_static(line.as_bytes()), since, keep);
        assert_eq!(cut("2040-01-01T00:00:00.499999999Z a\n", false), None);
        assert_eq!(cut("2040-01-01T00:00:00.500000000Z a b\n", false).unwrap(), "a b\n");
        assert_eq!(cut("2040-01-01T01:00:00Z \n", false).unwrap(), "\n");
        assert_eq!(cut("2040-01-01T01:00:00Z a\n", true).unwrap(), "2040-01-01T01:00:00Z a\n");
        assert_eq!(cut("no timestamp\n", false).unwrap(), "no timestamp\n");
    }
}
