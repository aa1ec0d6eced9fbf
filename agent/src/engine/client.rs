//! The connection to Docker Engine, and whether it answers.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bollard::{BollardRequest, Docker};
use http::{HeaderValue, Response, Uri, header::HOST, uri::PathAndQuery};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::{
    Cause, EngineError,
    docker_api::{ApiVersion, Contract, INFO, REQUEST_TIMEOUT},
};
use crate::metrics::Metrics;

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

/// No client could be made.
#[derive(Debug, thiserror::Error)]
#[error("no client of Docker's socket {socket} could be made: {source}")]
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
    api: Spoken,
}

/// The version of the API that was negotiated; 0 until one was.
#[derive(Debug, Clone, Default)]
struct Spoken(Arc<AtomicU32>);

impl Spoken {
    fn get(&self) -> Option<ApiVersion> {
        let [a, b, c, d] = self.0.load(Ordering::Relaxed).to_be_bytes();
        let version = ApiVersion(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        (version.0 > 0).then_some(version)
    }

    fn set(&self, version: ApiVersion) {
        let ([a, b], [c, d]) = (version.0.to_be_bytes(), version.1.to_be_bytes());
        self.0.store(u32::from_be_bytes([a, b, c, d]), Ordering::Relaxed);
    }
}

/// A request's path with the version in front, but for the two that every version answers, by which it is found.
fn path_of(version: Option<ApiVersion>, path: &str) -> String {
    let of_any = ["/_ping", "/version"].iter().any(|known| path.split('?').next() == Some(known));
    match version.filter(|_| !of_any) {
        Some(version) => format!("/v{version}{path}"),
        None => path.to_owned(),
    }
}

/// A request by the version of the API that is spoken. bollard leaves the version out, and then the engine takes the
/// request to mean its newest one.
fn pinned(mut request: BollardRequest, version: Option<ApiVersion>) -> BollardRequest {
    let path = path_of(version, request.uri().path_and_query().map_or("/", PathAndQuery::as_str));
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = path.parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// Connects to Docker, which may have been started, or its socket made, since the last time.
pub(super) async fn connect(socket: &Path) -> io::Result<UnixStream> {
    let told = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", socket.display()));
    UnixStream::connect(socket).await.map_err(told)
}

/// Sends a request over a new connection.
async fn send(socket: Arc<Path>, request: BollardRequest) -> Result<Response<Incoming>, bollard::errors::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(connect(&socket).await?)).await?;
    // The task ends with the response or when its caller gives up; the response carries the connection's error.
    drop(tokio::spawn(connection.with_upgrades()));
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    head.uri = Uri::from(path);
    head.headers.insert(HOST, HeaderValue::from_static("docker"));
    Ok(sender.send_request(BollardRequest::from_parts(head, body)).await?)
}

impl Engine {
    /// Makes a client of the Unix socket `socket`, such as `/var/run/docker.sock`, which need not be there yet: a node may
    /// start before Docker, or before it is installed. Nothing is sent yet. Calls are counted in `metrics`.
    ///
    /// # Errors
    /// When the client's library refuses it.
    pub fn new(socket: &str, metrics: Arc<Metrics>) -> Result<Self, ConnectError> {
        let path: Arc<Path> = Path::new(socket.strip_prefix("unix://").unwrap_or(socket)).into();
        // Not the library's own connection, which must find the socket when the client is made.
        let at = Arc::clone(&path);
        let docker = Docker::connect_with_custom_transport(
            move |request| send(Arc::clone(&at), request),
            Some("http://docker"),
            REQUEST_TIMEOUT,
            bollard::API_DEFAULT_VERSION,
        )
        .map_err(|source| ConnectError { socket: socket.to_owned(), source })?;
        let api = Spoken::default();
        let spoken = api.clone();
        let docker = docker.with_request_modifier(move |request| pinned(request, spoken.get()));
        Ok(Self { docker, socket: path, metrics, api })
    }

    /// Agrees with the engine on the version of its API for all further calls, of all clones. To be called whenever a
    /// connection was lost: another engine may be there.
    ///
    /// # Errors
    /// When Docker does not answer, or there is no common version.
    pub(crate) async fn negotiate(&self) -> Result<ApiVersion, EngineError> {
        let attempt = "the version of Docker's API could not be agreed on";
        let answer = self.patient(INFO.limit).version().await;
        let answer = answer.map_err(|e| EngineError::new(attempt, &e))?;
        let read = |text: Option<String>| text.as_deref().and_then(ApiVersion::parse);
        let failed = |reason: String| EngineError { attempt: attempt.to_owned(), reason, cause: Cause::Failed };
        let newest = read(answer.api_version).ok_or_else(|| failed("it does not say which it speaks".to_owned()))?;
        let version = ApiVersion::negotiate(read(answer.min_api_version).unwrap_or(newest), newest).map_err(failed)?;
        self.api.set(version);
        Ok(version)
    }

    /// Whether the engine mounts images as volumes.
    pub(crate) fn mounts_images(&self) -> bool {
        self.api.get().is_some_and(|version| version >= ApiVersion::IMAGE_MOUNTS)
    }

    /// A path of the API by the version that is spoken, for connections that are hijacked.
    pub(super) fn path(&self, path: &str) -> String {
        path_of(self.api.get(), path)
    }

    /// The path of its socket, for connections that are hijacked.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Awaits a call to Docker and records it in the metrics as `operation`, one of the kubelet's names of runtime
    /// operations, if it has one. 304 and 404 count as success.
    async fn counted<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, bollard::errors::Error>>,
    ) -> Result<T, bollard::errors::Error> {
        let begun = Instant::now();
        let result = call.await;
        if operation.is_empty() {
            return result;
        }
        self.metrics.operations.add([operation]);
        self.metrics.operation_seconds.observe_duration([operation], begun.elapsed());
        let failed = result.as_ref().err().map(|error| EngineError::new("", error).status());
        if failed.is_some_and(|status| !matches!(status, Some(304 | 404))) {
            self.metrics.operation_errors.add([operation]);
        }
        result
    }

    /// Makes a call by its contract: with its time limit, and what it means by being done already as success.
    pub(super) async fn done<F: Future<Output = Result<(), bollard::errors::Error>>>(
        &self,
        contract: &Contract,
        attempt: impl FnOnce() -> String,
        call: impl FnOnce(Docker) -> F,
    ) -> Result<(), EngineError> {
        self.ask(contract, attempt, call).await.map(drop)
    }

    /// Asks something by a contract; `None` for the statuses that it names.
    pub(super) async fn ask<T, F: Future<Output = Result<T, bollard::errors::Error>>>(
        &self,
        contract: &Contract,
        attempt: impl FnOnce() -> String,
        call: impl FnOnce(Docker) -> F,
    ) -> Result<Option<T>, EngineError> {
        match self.counted(contract.operation, call(self.patient(contract.limit))).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                let error = EngineError::new(attempt(), &error);
                if error.status().is_some_and(|status| contract.done.contains(&status)) { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Asks something that must be there.
    pub(super) async fn get<T, F: Future<Output = Result<T, bollard::errors::Error>>>(
        &self,
        contract: &Contract,
        attempt: impl FnOnce() -> String,
        call: impl FnOnce(Docker) -> F,
    ) -> Result<T, EngineError> {
        let answer = self.counted(contract.operation, call(self.patient(contract.limit))).await;
        answer.map_err(|error| EngineError::new(attempt(), &error))
    }

    /// A client with this request timeout, for the streams of a contract.
    pub(crate) fn patient(&self, timeout: Duration) -> Docker {
        self.docker.clone().with_timeout(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;

    #[tokio::test]
    async fn requests_name_the_version_that_was_agreed_on() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let engine = fake::scripted(dir.path(), move |line| {
            lines.send(line.to_owned()).unwrap();
            let body = if line.contains("/version") {
                r#"{"Version":"29.0.0","ApiVersion":"1.52","MinAPIVersion":"1.44"}"#
            } else {
                "[]"
            };
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        });
        assert!(!engine.mounts_images());
        engine.images().await.unwrap();
        assert_eq!(engine.negotiate().await.unwrap().to_string(), "1.51");
        assert!(engine.clone().mounts_images());
        engine.images().await.unwrap();
        engine.negotiate().await.unwrap();
        let mut paths = Vec::new();
        while let Ok(line) = asked.try_recv() {
            paths.push(line.split([' ', '?']).nth(1).unwrap().to_owned());
        }
        assert_eq!(paths, ["/images/json", "/version", "/v1.51/images/json", "/version"]);
        assert_eq!(engine.path("/exec/0e/start"), "/v1.51/exec/0e/start");
    }
}
