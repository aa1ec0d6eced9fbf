//! `/containerLogs`: what a container has printed.

use axum::{
    body::Body,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{ServerState, refuse};
use crate::engine::logs::{LogError, LogRequest, LogSource};

/// The query as upstream has it.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LogQuery {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<i64>,
    since_seconds: Option<i64>,
    since_time: Option<String>,
    limit_bytes: Option<i64>,
}

/// What is asked for; the error is the answer's text.
fn request(query: &LogQuery, now: Timestamp) -> Result<LogRequest, String> {
    let positive = |name: &str, value: Option<i64>, least: i64| match value {
        Some(v) if v < least => Err(format!("{name}: Invalid value: {v}: must be greater than or equal to {least}")),
        Some(v) => Ok(u64::try_from(v).ok()),
        None => Ok(None),
    };
    if query.since_seconds.is_some() && query.since_time.is_some() {
        return Err("at most one of `sinceTime` or `sinceSeconds` may be specified".to_owned());
    }
    let since = match (&query.since_time, query.since_seconds) {
        (Some(text), _) => {
            Some(text.parse::<Timestamp>().map_err(|e| format!("sinceTime: Invalid value: {text:?}: {e}"))?.as_second())
        }
        (None, Some(seconds)) if seconds < 1 => {
            return Err(format!("sinceSeconds: Invalid value: {seconds}: must be greater than 0"));
        }
        (None, Some(seconds)) => Some(now.as_second().saturating_sub(seconds)),
        (None, None) => None,
    };
    Ok(LogRequest {
        follow: query.follow,
        previous: query.previous,
        timestamps: query.timestamps,
        tail: positive("tailLines", query.tail_lines, 0)?,
        limit: positive("limitBytes", query.limit_bytes, 1)?,
        since,
    })
}

pub(super) async fn container_logs(
    State(state): State<ServerState>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(query): Query<LogQuery>,
) -> Response {
    let wanted = match request(&query, Timestamp::now()) {
        Ok(wanted) => wanted,
        Err(why) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, why),
    };
    let pods = state.pods.borrow().clone();
    let found = pods
        .iter()
        .find(|p| p.metadata.namespace.as_deref() == Some(&namespace) && p.metadata.name.as_deref() == Some(&pod));
    let Some(found) = found else {
        return refuse(StatusCode::NOT_FOUND, format!("pod {pod:?} does not exist on this node"));
    };
    let source = LogSource { pod_uid: found.metadata.uid.clone().unwrap_or_default(), container: container.clone() };
    match state.engine.logs(&source, &wanted).await {
        Ok(lines) => ([(header::CONTENT_TYPE, "text/plain")], Body::from_stream(lines)).into_response(),
        Err(LogError::Waiting) => {
            let why = waiting_reason(found, &container);
            refuse(
                StatusCode::BAD_REQUEST,
                format!("container {container:?} in pod {pod:?} is waiting to start: {why}"),
            )
        }
        Err(LogError::NoPrevious { .. }) => refuse(
            StatusCode::BAD_REQUEST,
            format!("previous terminated container {container:?} in pod {pod:?} not found"),
        ),
        Err(LogError::Engine(error)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn waiting_reason(pod: &Pod, container: &str) -> String {
    let status = pod.status.as_ref();
    let all = status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()));
    all.filter(|c| c.name == container)
        .find_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone())
        .unwrap_or_else(|| "ContainerCreating".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let read = |query: LogQuery| request(&query, now);
        assert_eq!(read(LogQuery::default()), Ok(LogRequest::default()));
        let since = read(LogQuery { since_seconds: Some(60), ..LogQuery::default() }).unwrap();
        assert_eq!(since.since, Some("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap().as_second()));
        for wrong in [
            LogQuery { tail_lines: Some(-1), ..LogQuery::default() },
            LogQuery { limit_bytes: Some(0), ..LogQuery::default() },
            LogQuery { since_seconds: Some(0), ..LogQuery::default() },
            LogQuery { since_time: Some("yesterday".into()), ..LogQuery::default() },
            LogQuery { since_time: Some("2026-01-01T00:00:00Z".into()), since_seconds: Some(5), ..LogQuery::default() },
        ] {
            assert!(read(wrong).is_err());
        }
    }
}
