//! A client of one of the two API servers, without checks of responses.

use std::collections::BTreeMap;

use futures::{StreamExt as _, future::BoxFuture};
use http::{Request, header};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// The name of the step in the table of known differences.
    pub(crate) name: String,
    /// The caller: `admin`, or the name of a node.
    pub(crate) who: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// The content type.
    pub(crate) kind: &'static str,
    /// The body. A string `${PATH POINTER}` in it is replaced by the value on that server.
    pub(crate) body: Value,
    /// The `Accept` header.
    pub(crate) accept: &'static str,
}

/// An API server with a client for each caller.
pub(crate) struct ApiServer {
    pub(crate) name: &'static str,
    pub(crate) clients: BTreeMap<&'static str, Client>,
}

impl ApiServer {
    /// Sends a request; returns status code and body.
    pub(crate) async fn ask(&self, step: &Step) -> anyhow::Result<Value> {
        let body = if step.body.is_null() { String::new() } else { self.filled(&step.body).await?.to_string() };
        let end = tokio::time::Instant::now() + SETTLE_TIMEOUT;
        loop {
            let (code, body) =
                self.send(step.who, step.method, &step.path, step.kind, step.accept, body.clone()).await?;
            // After each change of a definition the real one opens the storage of its objects once more.
            if body["message"] != "storage is (re)initializing" || tokio::time::Instant::now() >= end {
                return Ok(json!({"code": code, "body": body}));
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Sends a request until its answer has a value at a pointer; returns the last answer.
    pub(crate) async fn ask_until(&self, step: &Step, pointer: &str, value: &Value) -> anyhow::Result<Value> {
        let end = tokio::time::Instant::now() + SETTLE_TIMEOUT;
        loop {
            let answer = self.ask(step).await?;
            if answer.pointer(pointer) == Some(value) || tokio::time::Instant::now() >= end {
                return Ok(answer);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    async fn send(
        &self,
        who: &str,
        method: &str,
        path: &str,
        kind: &str,
        accept: &str,
        body: String,
    ) -> anyhow::Result<(u16, Value)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .header(header::ACCEPT, accept)
            .header(header::USER_AGENT, "differential/1")
            .body(Body::from(body.into_bytes()))?;
        let response = self.clients[who].send(request).await?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        Ok((code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text())))
    }

    /// A body with references replaced by the values of this server.
    fn filled<'a>(&'a self, body: &'a Value) -> BoxFuture<'a, anyhow::Result<Value>> {
        Box::pin(async move {
            Ok(match body {
                Value::Object(fields) => {
                    let mut out = serde_json::Map::new();
                    for (key, value) in fields {
                        out.insert(key.clone(), self.filled(value).await?);
                    }
                    Value::Object(out)
                }
                Value::Array(items) => {
                    let mut out = Vec::new();
                    for item in items {
                        out.push(self.filled(item).await?);
                    }
                    Value::Array(out)
                }
                Value::String(text) => match text.strip_prefix("${").and_then(|t| t.strip_suffix('}')) {
                    None => body.clone(),
                    Some(reference) => {
                        let (path, pointer) = reference.split_once(' ').unwrap_or((reference, ""));
                        let (_, object) = self.send("admin", "GET", path, JSON, JSON, String::new()).await?;
                        object.pointer(pointer).cloned().unwrap_or_default()
                    }
                },
                other => other.clone(),
            })
        })
    }

    /// The current revision, from which a watch can begin.
    pub(crate) async fn now(&self, path: &str) -> anyhow::Result<u64> {
        let (code, list) = self.send("admin", "GET", path, JSON, JSON, String::new()).await?;
        anyhow::ensure!(code == 200, "{} {path}: {list}", self.name);
        Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().parse()?)
    }

    /// The events of a watch from a revision until a new object of this name.
    pub(crate) async fn watched(&self, path: &str, from: u64, last: &str) -> anyhow::Result<Vec<Value>> {
        let uri = format!("{path}?watch=true&resourceVersion={from}");
        let response = self.clients["admin"].send(Request::get(uri).body(Body::empty())?).await?;
        anyhow::ensure!(response.status().is_success(), "{} watch of {path}: {}", self.name, response.status());
        let mut stream = response.into_body().into_data_stream();
        let (mut text, mut events) = (Vec::new(), Vec::new());
        while let Some(chunk) = tokio::time::timeout(WATCH_TIMEOUT, stream.next()).await? {
            text.extend_from_slice(&chunk?);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line)?;
                if event["type"] == "ADDED" && event["object"]["metadata"]["name"] == last {
                    return Ok(events);
                }
                events.push(event);
            }
        }
        anyhow::bail!("{}: the watch of {path} ended before the event of {last}", self.name)
    }
}

/// Time limit for what a server does by itself.
const SETTLE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);
/// Time limit for an event, also on a slow machine.
const WATCH_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// The default content type.
pub(crate) const JSON: &str = "application/json";
