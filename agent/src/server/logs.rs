//! `/containerLogs`: what a container has printed.

use std::{path::Path as FilePath, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::sync::watch;
use windlass_kit::serve::LongRunning;

use super::{ServerState, known_pod, refuse};
use crate::{
    ContainerRecord,
    engine::{Engine, logs::Attempt},
    logs::{self, Follow, LogRequest},
    pods::runtime_uid,
};

/// Whether a followed container still runs is asked this often, should its end have been missed.
const ASK: Duration = Duration::from_secs(10);

/// Why a query cannot be answered.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    /// It cannot be read.
    Unreadable(String),
    /// Its options contradict each other, or upstream's rules.
    Invalid(String),
}

/// What is asked for, in upstream's words.
fn request(query: &[(String, String)], now: Timestamp) -> Result<LogRequest, Wrong> {
    let unreadable = |name: &str, value: &str| Wrong::Unreadable(format!("{name}: {value:?} cannot be read"));
    let (mut wanted, mut seconds, mut time) = (LogRequest::default(), None, None);
    let (mut tail, mut limit, mut stream) = (None, None, false);
    for (name, value) in query {
        let flag = || match value.as_str() {
            // The words of Go's parser, which clients write.
            "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err(unreadable(name, value)),
        };
        let number = || value.parse::<i64>().map_err(|_| unreadable(name, value));
        match name.as_str() {
            "follow" => wanted.follow = flag()?,
            "previous" => wanted.previous = flag()?,
            "timestamps" => wanted.timestamps = flag()?,
            // Another name that upstream's kubelet has, where `all` is for all lines.
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
        [one] => return Err(Wrong::Invalid(one.clone())),
        all => return Err(Wrong::Invalid(format!("[{}]", all.join(", ")))),
    }
    let positive = |value: Option<i64>| value.and_then(|v| u64::try_from(v).ok());
    let ago = seconds.map(|n| now.as_nanosecond().saturating_sub(i128::from(n).saturating_mul(1_000_000_000)));
    let since = time.map(Timestamp::as_nanosecond).or(ago);
    // A time that the files cannot hold is before or after all that they do.
    let clamped = |at: i128| i64::try_from(at).unwrap_or(if at < 0 { i64::MIN } else { i64::MAX });
    Ok(LogRequest { tail: positive(tail), limit: positive(limit), since: since.map(clamped), ..wanted })
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
    let wanted = match request(&query, Timestamp::now()) {
        Ok(wanted) => wanted,
        Err(Wrong::Unreadable(why)) => return refuse(StatusCode::BAD_REQUEST, why),
        Err(Wrong::Invalid(why)) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, why),
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
    match pick(status_of(&found, &container), &attempts, wanted.previous) {
        Ok(id) => {
            let mut answer = printed(&state, id, wanted).await;
            answer.extensions_mut().insert(LongRunning);
            answer
        }
        Err(why) => refuse(StatusCode::BAD_REQUEST, why.message(&container, &pod)),
    }
}

/// The answer of a container that was made.
async fn printed(state: &ServerState, id: &str, wanted: LogRequest) -> Response {
    let place = match state.engine.log_place(id).await {
        Ok(place) => place,
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let kind = [(header::CONTENT_TYPE, "text/plain")];
    if let Some(file) = &place.file {
        let ended = if place.running {
            end_of(state.engine.clone(), state.containers.clone(), id.to_owned()).boxed()
        } else {
            std::future::ready(()).boxed()
        };
        match from_files(file, &wanted, ended).await {
            Ok(body) => return (kind, body).into_response(),
            Err(error) => {
                tracing::debug!(%error, file = %file.display(), "a log's file cannot be read; Docker is asked for the lines");
            }
        }
    }
    (kind, Body::from_stream(state.engine.told_log(id, &wanted))).into_response()
}

async fn from_files(file: &FilePath, wanted: &LogRequest, ended: Follow) -> std::io::Result<Body> {
    Ok(Body::from_stream(logs::stream(file, wanted.clone(), ended).await?))
}

/// Waits until a container has ended.
pub(super) async fn end_of(engine: Engine, mut containers: watch::Receiver<Arc<Vec<ContainerRecord>>>, id: String) {
    let is_over = async || match engine.log_place(&id).await {
        Ok(place) => !place.running,
        Err(error) => error.is_not_found(),
    };
    loop {
        let listed = containers.borrow_and_update().iter().any(|c| c.id == id);
        // A container that has just begun is not in the list yet.
        if !listed && is_over().await {
            return;
        }
        tokio::select! {
            changed = containers.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(ASK) => if is_over().await { return },
        }
    }
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
enum Missing {
    /// It was not started yet; why, as its status says.
    Waiting(String),
    /// It was not started before.
    Previous,
}

impl Missing {
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

/// The attempt whose log is meant: the newest, or the last one that has ended.
fn pick<'a>(status: Option<&ContainerStatus>, attempts: &'a [Attempt], previous: bool) -> Result<&'a str, Missing> {
    let state = status.and_then(|s| s.state.as_ref());
    let waiting = state.and_then(|s| s.waiting.as_ref());
    if !previous {
        let reason = || waiting.and_then(|w| w.reason.clone()).unwrap_or_else(|| "ContainerCreating".to_owned());
        return attempts.first().map(|a| a.id.as_str()).ok_or_else(|| Missing::Waiting(reason()));
    }
    // Between two attempts the newest is the previous one.
    let between = waiting.is_some() && attempts.first().is_some_and(|a| !a.running);
    attempts.get(usize::from(!between)).map(|a| a.id.as_str()).ok_or(Missing::Previous)
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
            assert_eq!(read(query), Err(Wrong::Invalid(why.to_owned())), "{query}");
        }
        for query in ["sinceTime=yesterday", "tailLines=x", "follow=perhaps", "limitBytes=1.5"] {
            assert!(matches!(read(query), Err(Wrong::Unreadable(_))), "{query}");
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
        let none = Missing::Waiting("ContainerCreating".into());
        for (status, attempts, previous, expected) in [
            (None, &[][..], false, Err(none)),
            (Some(&waiting("ErrImagePull")), &[][..], false, Err(Missing::Waiting("ErrImagePull".into()))),
            (Some(&running), &two[..], false, Ok("1")),
            (Some(&running), &two[..], true, Ok("0")),
            (Some(&running), &two[..1], true, Err(Missing::Previous)),
            (Some(&ended), &ran[..], true, Ok("0")),
            (Some(&ended), &ran[..1], true, Err(Missing::Previous)),
            (Some(&waiting("CrashLoopBackOff")), &ran[..], false, Ok("1")),
            (Some(&waiting("CrashLoopBackOff")), &ran[..], true, Ok("1")),
            // The status is a little older than what runs.
            (Some(&waiting("CrashLoopBackOff")), &two[..], true, Ok("0")),
            (None, &[][..], true, Err(Missing::Previous)),
        ] {
            assert_eq!(pick(status, attempts, previous), expected);
        }
        let message = Missing::Waiting("ImagePullBackOff".into()).message("c", "p");
        assert_eq!(message, "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image");
    }
}
