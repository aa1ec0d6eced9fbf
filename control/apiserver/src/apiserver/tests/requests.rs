//! Requests to the router and their answers.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Request, header},
};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::{Api, User};
pub(crate) use crate::kinds::tests::recorded::Reply;

pub(crate) async fn send(
    api: &Api,
    user: &User,
    method: &str,
    path: &str,
    kind: &str,
    accept: &str,
    body: &str,
) -> Reply {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, kind)
        .header(header::ACCEPT, accept)
        .extension(user.clone())
        .body(Body::from(body.to_owned()))
        .unwrap();
    answer(api, request).await
}

/// The same for a client that has a token.
pub(crate) async fn send_with(api: &Api, token: &str, method: &str, path: &str, body: &str) -> Reply {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Body::from(body.to_owned()))
        .unwrap();
    answer(api, request).await
}

async fn answer(api: &Api, request: Request<Body>) -> Reply {
    let response = api.router().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let warnings =
        parts.headers.get_all("warning").iter().map(|w| String::from_utf8(w.as_bytes().to_vec()).unwrap()).collect();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    Reply { code: parts.status.as_u16(), body, warnings }
}

/// The body of the answer to a GET, of what is no single object.
pub(crate) async fn text(api: &Api, path: &str) -> String {
    let request = Request::get(path).extension(User::internal("test")).body(Body::empty()).unwrap();
    let body = api.router().oneshot(request).await.unwrap().into_body();
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// The events of a watch, a line each: those that are awaited, and what comes right after them, which only one too many does.
pub(crate) async fn watched(api: &Api, path: &str, awaited: usize) -> String {
    let request = Request::get(path).extension(User::internal("test")).body(Body::empty()).unwrap();
    let mut body = api.router().oneshot(request).await.unwrap().into_body();
    let mut text = String::new();
    loop {
        let has_all = text.lines().count() >= awaited;
        let patience = if has_all { Duration::from_millis(200) } else { Duration::from_secs(60) };
        match tokio::time::timeout(patience, body.frame()).await {
            Ok(Some(frame)) => text.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap()),
            Err(_) if has_all => return text,
            Ok(None) | Err(_) => panic!("{path} has ended or stands still after {text}"),
        }
    }
}

pub(crate) async fn call(api: &Api, method: &str, path: &str, body: Value) -> Reply {
    call_as(api, &User::internal("test"), method, path, body).await
}

async fn call_as(api: &Api, user: &User, method: &str, path: &str, body: Value) -> Reply {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let text = if body.is_null() { String::new() } else { body.to_string() };
    send(api, user, method, path, kind, "application/json", &text).await
}
