//! `/containerLogs`: logs of containers.

use std::path::Path as FilePath;

use axum::{
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use windlass_kit::serve::LongRunning;

use super::{ServerState, known_pod, refuse};
use crate::{
    engine::logs::Attempt,
    logs::{self, ContainerExit, LogRequest},
    pods::runtime_uid,
};

/// An invalid query.
#[derive(Debug, PartialEq, Eq)]
enum QueryError {
    /// A value cannot be parsed.
    Unreadable(String),
    /// Its options violate upstream's rules.
    Invalid(String),
}

/// Parses the query, by upstream's parameter names.
fn request(query: &[(String, String)], now: Timestamp) -> Result<LogRequest, QueryError> {
    let unreadable = |name: &str, value: &str| QueryError::Unreadable(format!("{name}: {value:?} cannot be read"));
    let (mut request_options, mut seconds, mut time) = (LogRequest::default(), None, None);
    let (mut tail, mut limit, mut stream) = (None, None, false);
    for (name, value) in query {
        let flag = || match value.as_str() {
            // The values of Go's `ParseBool`, which clients send.
            "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err(unreadable(name, value)),
        };
        let number = || value.parse::<i64>().map_err(|_| unreadable(name, value));
        match name.as_str() {
            "follow" => request_options.follow = flag()?,
            "previous" => request_options.previous = flag()?,
            "timestamps" => request_options.timestamps = flag()?,
            // The kubelet's older name, where `all` is for all lines.
            "tail" if value == "all" => tail = None,
            "tailLines" | "tail" => tail = Some(number()?),
            "limitBytes" => limit = Some(number()?),
            "sinceSeconds" => seconds = Some(number()?),
            "sinceTime" => time = Some(value.parse::<Timestamp>().map_err(|_| unreadable(name, value))?),
            "stream" => stream = true,
            _ => {}
        }
    }
    let mut wrong = Vec::new();
    if let Some(lines) = tail.filter(|n| *n < 0) {
        wrong.push(format!("tailLines: Invalid value: {lines}: must be greater than or equal to 0"));
    }
    if let Some(bytes) = limit.filter(|n| *n < 1) {
        wrong.push(format!("limitBytes: Invalid value: {bytes}: must be greater than 0"));
    }
    match (seconds, time) {
        (Some(_), Some(_)) => {
            wrong.push("Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified".to_owned());
        }
        (Some(n), None) if n < 1 => wrong.push(format!("sinceSeconds: Invalid value: {n}: must be greater than 0")),
        _ => {}
    }
    if stream {
        wrong.push("stream: Forbidden: may not be specified".to_owned());
    }
    match wrong.as_slice() {
        [] => {}
        [one] => return Err(QueryError::Invalid(one.clone())),
        all => return Err(QueryError::Invalid(format!("[{}]", all.join(", ")))),
    }
    let positive = |value: Option<i64>| value.and_then(|v| u64::try_from(v).ok());
    let ago = seconds.map(|n| now.as_nanosecond().saturating_sub(i128::from(n).saturating_mul(1_000_000_000)));
    let since = time.map(Timestamp::as_nanosecond).or(ago);
    // A time beyond the range is before or after all entries.
    let clamped = |at: i128| i64::try_from(at).unwrap_or(if at < 0 { i64::MIN } else { i64::MAX });
    Ok(LogRequest { tail: positive(tail), limit: positive(limit), since: since.map(clamped), ..request_options })
}

pub(super) async fn container_logs(
    State(state): State<ServerState>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let request_options = match request(&query, Timestamp::now()) {
        Ok(request_options) => request_options,
        Err(QueryError::Unreadable(why)) => return refuse(StatusCode::BAD_REQUEST, why),
        Err(QueryError::Invalid(why)) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, why),
    };
    let Some(found) = known_pod(&state, &namespace, &pod).await else {
        return refuse(StatusCode::NOT_FOUND, format!("pod \"{pod}_{namespace}\" does not exist"));
    };
    if !has_container(&found, &container) {
        let why = format!("container {container:?} not found in pod \"{pod}_{namespace}\"");
        return refuse(StatusCode::NOT_FOUND, why);
    }
    let attempts = match state.engine.attempts(runtime_uid(&found), &container).await {
        Ok(attempts) => attempts,
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    match select_attempt(status_of(&found, &container), &attempts, request_options.previous) {
        Ok(id) => {
            let mut answer = serve_log(&state, id, request_options).await;
            answer.extensions_mut().insert(LongRunning);
            answer
        }
        Err(why) => refuse(StatusCode::BAD_REQUEST, why.message(&container, &pod)),
    }
}

/// Serves the log of an existing container.
async fn serve_log(state: &ServerState, id: &str, request_options: LogRequest) -> Response {
    let location = match state.engine.log_location(id).await {
        Ok(location) => location,
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let kind = [(header::CONTENT_TYPE, "text/plain")];
    if let Some(file) = &location.file {
        let ended = if location.running {
            state.exits.clone().of_container(state.engine.clone(), id.to_owned()).boxed()
        } else {
            std::future::ready(()).boxed()
        };
        match stream_files(file, &request_options, ended).await {
            Ok(body) => return (kind, body).into_response(),
            Err(error) => {
                tracing::debug!(%error, file = %file.display(), "failed to read log file; streaming the log from Docker");
            }
        }
    }
    (kind, Body::from_stream(state.engine.docker_log(id, &request_options))).into_response()
}

async fn stream_files(file: &FilePath, request_options: &LogRequest, ended: ContainerExit) -> std::io::Result<Body> {
    Ok(Body::from_stream(logs::stream(file, request_options.clone(), ended).await?))
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.name.as_str());
    let plain = spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|c| c.name.as_str());
    plain.chain(ephemeral).any(|n| n == name)
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|c| c.name == container)
}

/// Why a container has no log.
#[derive(Debug, PartialEq, Eq)]
enum NoLog {
    /// Not started yet, with the reason of its status.
    Waiting(String),
    /// There is no previous instance.
    Previous,
}

impl NoLog {
    /// Upstream's words.
    fn message(&self, container: &str, pod: &str) -> String {
        match self {
            Self::Previous => format!("previous terminated container {container:?} in pod {pod:?} not found"),
            Self::Waiting(reason) => {
                let why = match reason.as_str() {
                    "ErrImagePull" => "image can't be pulled",
                    "ImagePullBackOff" => "trying and failing to pull image",
                    other => other,
                };
                format!("container {container:?} in pod {pod:?} is waiting to start: {why}")
            }
        }
    }
}

/// Selects the requested attempt: the newest, or the last terminated one.
fn select_attempt<'a>(
    status: Option<&ContainerStatus>,
    attempts: &'a [Attempt],
    previous: bool,
) -> Result<&'a str, NoLog> {
    let state = status.and_then(|s| s.state.as_ref());
    let waiting = state.and_then(|s| s.waiting.as_ref());
    if !previous {
        let reason = || waiting.and_then(|w| w.reason.clone()).unwrap_or_else(|| "ContainerCreating".to_owned());
        return attempts.first().map(|a| a.id.as_str()).ok_or_else(|| NoLog::Waiting(reason()));
    }
    // While the next attempt waits, the newest is the previous one.
    let between = waiting.is_some() && attempts.first().is_some_and(|a| !a.running);
    attempts.get(usize::from(!between)).map(|a| a.id.as_str()).ok_or(NoLog::Previous)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn queries() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let read = |query: &str| {
            let uri = format!("http://node/?{query}").parse().unwrap();
            request(&Query::<Vec<(String, String)>>::try_from_uri(&uri).unwrap().0, now)
        };
        assert_eq!(read(""), Ok(LogRequest::default()));
        let at = |text: &str| i64::try_from(text.parse::<Timestamp>().unwrap().as_nanosecond()).ok();
        assert_eq!(read("sinceSeconds=60").unwrap().since, at("2026-01-01T00:00:00Z"));
        assert_eq!(read("sinceTime=2026-01-01T02:00:00%2B02:00").unwrap().since, at("2026-01-01T00:00:00Z"));
        assert_eq!(read("sinceSeconds=9223372036854775807").unwrap().since, Some(i64::MIN));
        let all = "follow=true&previous=1&timestamps=T&tailLines=5&limitBytes=7&container=c&pretty=true";
        let expected =
            LogRequest { follow: true, previous: true, timestamps: true, tail: Some(5), since: None, limit: Some(7) };
        assert_eq!(read(all), Ok(expected));
        assert_eq!(read("tail=all"), Ok(LogRequest::default()));
        assert_eq!(read("tail=3").unwrap().tail, Some(3));
        for (query, why) in [
            ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
            (
                "sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z",
                "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            ("stream=Stdout", "stream: Forbidden: may not be specified"),
            (
                "limitBytes=0&stream=All",
                "[limitBytes: Invalid value: 0: must be greater than 0, stream: Forbidden: may not be specified]",
            ),
        ] {
            assert_eq!(read(query), Err(QueryError::Invalid(why.to_owned())), "{query}");
        }
        for query in ["sinceTime=yesterday", "tailLines=x", "follow=perhaps", "limitBytes=1.5"] {
            assert!(matches!(read(query), Err(QueryError::Unreadable(_))), "{query}");
        }
    }

    #[test]
    fn the_attempt_that_is_meant() {
        let status = |state: serde_json::Value| -> ContainerStatus {
            let all =
                json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            serde_json::from_value(all).unwrap()
        };
        let waiting = |reason: &str| status(json!({"waiting": {"reason": reason}}));
        let (running, ended) = (status(json!({"running": {}})), status(json!({"terminated": {"exitCode": 0}})));
        let attempt = |number: u32, running| Attempt { number, id: number.to_string(), running };
        let (two, ran) = ([attempt(1, true), attempt(0, false)], [attempt(1, false), attempt(0, false)]);
        let none = NoLog::Waiting("ContainerCreating".into());
        for (status, attempts, previous, expected) in [
            (None, &[][..], false, Err(none)),
            (Some(&waiting("ErrImagePull")), &[][..], false, Err(NoLog::Waiting("ErrImagePull".into()))),
            (Some(&running), &two[..], false, Ok("1")),
            (Some(&running), &two[..], true, Ok("0")),
            (Some(&running), &two[..1], true, Err(NoLog::Previous)),
            (Some(&ended), &ran[..], true, Ok("0")),
            (Some(&ended), &ran[..1], true, Err(NoLog::Previous)),
            (Some(&waiting("CrashLoopBackOff")), &ran[..], false, Ok("1")),
            (Some(&waiting("CrashLoopBackOff")), &ran[..], true, Ok("1")),
            // The status is a little older than what runs.
            (Some(&waiting("CrashLoopBackOff")), &two[..], true, Ok("0")),
            (None, &[][..], true, Err(NoLog::Previous)),
        ] {
            assert_eq!(select_attempt(status, attempts, previous), expected);
        }
        let message = NoLog::Waiting("ImagePullBackOff".into()).message("c", "p");
        assert_eq!(message, "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image");
    }
}
