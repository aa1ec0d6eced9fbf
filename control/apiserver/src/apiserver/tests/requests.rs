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

/// A watch as its client reads it.
pub(crate) struct Watching {
    path: String,
    body: Body,
    /// What has been read and is no event that was returned.
    read: Vec<u8>,
}

impl Watching {
    /// How long an awaited event may take, on the busiest machine.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// How long one that nobody awaits may take.
    const SILENCE: Duration = Duration::from_millis(200);

    pub(crate) async fn open(api: &Api, path: impl Into<String>) -> Self {
        Self::open_as(api, path, "application/json").await
    }

    /// The same for a client that accepts another form of the objects.
    pub(crate) async fn open_as(api: &Api, path: impl Into<String>, accept: &str) -> Self {
        let path = path.into();
        let request =
            Request::get(&path).header(header::ACCEPT, accept).extension(User::internal("test")).body(Body::empty());
        let body = api.router().oneshot(request.unwrap()).await.unwrap().into_body();
        Self { path, body, read: Vec::new() }
    }

    /// The next event, and `None` at the end of the watch; an error if it takes longer.
    async fn within(&mut self, patience: Duration) -> Result<Option<Value>, tokio::time::error::Elapsed> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            match tokio::time::timeout(patience, self.body.frame()).await? {
                Some(frame) => self.read.extend_from_slice(&frame.unwrap().into_data().unwrap()),
                None => return Ok(None),
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.within(Self::PATIENCE).await.unwrap_or_else(|_| panic!("{} stands still", self.path))
    }

    /// So many events, and what comes right after them, which only one too many does.
    pub(crate) async fn first(mut self, awaited: usize) -> Vec<Value> {
        let mut events = Vec::new();
        while events.len() < awaited {
            let event = self.next().await;
            events.push(event.unwrap_or_else(|| panic!("{} has ended after {events:?}", self.path)));
        }
        while let Ok(Some(event)) = self.within(Self::SILENCE).await {
            events.push(event);
        }
        events
    }

    /// All events until the server ends the watch.
    pub(crate) async fn until_end(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
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
