//! The dashboard page on the read-only listener, and the data that it and `windlass top` show.
//!
//! All files of the page are embedded: it works without any other host, and its policy allows the browser none.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use jiff::Timestamp;
use serde_json::json;

use super::{ServerState, refuse};
use crate::dashboard::{node_usage, series};

/// Only this server's own files: no frames, no forms, no inline scripts.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Name, type and content of each file of the page.
const FILES: [(&str, &str, &[u8]); 6] = [
    ("page.css", "text/css; charset=utf-8", include_bytes!("page/page.css")),
    ("page.js", "text/javascript; charset=utf-8", include_bytes!("page/page.js")),
    ("graphs.js", "text/javascript; charset=utf-8", include_bytes!("page/graphs.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("page/icon.svg")),
    ("uplot.js", "text/javascript; charset=utf-8", include_bytes!("page/uplot/uPlot.iife.min.js")),
    ("uplot.css", "text/css; charset=utf-8", include_bytes!("page/uplot/uPlot.min.css")),
];

pub(super) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/", get(|| async { file("text/html; charset=utf-8", include_bytes!("page/index.html")) }))
        .route("/page/{name}", get(asset))
        .route("/windlass/usage", get(usage))
        .route("/windlass/history/node", get(node_history))
        .route("/windlass/history/pods/{uid}", get(pod_history))
}

async fn asset(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, content)) => file(kind, content),
        None => refuse(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

fn file(kind: &'static str, content: &'static [u8]) -> Response {
    let mut response = content.into_response();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version has other files under the same names.
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn usage(State(state): State<ServerState>) -> Response {
    state.usage.refresh().await;
    let pods = state.pods.borrow().clone();
    Json(node_usage(
        &state.node_info.node_name,
        &state.usage.snapshot(),
        &state.usage.storage(),
        &pods,
        Timestamp::now(),
    ))
    .into_response()
}

async fn node_history(State(state): State<ServerState>) -> Response {
    Json(series(&state.usage.history("").await)).into_response()
}

/// History of the pod, its network, its running containers, and when each was started.
async fn pod_history(State(state): State<ServerState>, Path(uid): Path<String>) -> Response {
    let snapshot = state.usage.snapshot();
    let mut containers = serde_json::Map::new();
    let mut network = None;
    for row in snapshot.rows.iter().filter(|row| row.target.pod_uid == uid) {
        let points = series(&state.usage.history(&row.target.container_id).await);
        if row.target.is_sandbox() {
            network = Some(points).filter(|_| !row.host_network);
        } else {
            containers.insert(row.target.container_name.clone(), json!(points));
        }
    }
    let is_known =
        !containers.is_empty() || state.pods.borrow().iter().any(|p| p.metadata.uid.as_deref() == Some(&uid));
    if uid.is_empty() || !is_known {
        return refuse(StatusCode::NOT_FOUND, format!("no pod of this node has the uid {uid:?}"));
    }
    let whole = series(&state.usage.history(&uid).await);
    let starts = state.usage.starts(&uid).into_iter();
    let starts: Vec<_> = starts.map(|(name, at)| json!({"name": name, "at": at})).collect();
    Json(json!({"pod": whole, "network": network, "containers": containers, "starts": starts})).into_response()
}
