//! A minimal Kubernetes API for the proxy: lists and watches of given objects.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    response::Response,
    routing::get,
};
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(Clone, Default)]
pub(crate) struct Api {
    state: Arc<Mutex<Objects>>,
    version: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct Objects {
    version: u64,
    objects: BTreeMap<(String, String), Value>,
    log: Vec<(u64, String, String)>,
}

impl Api {
    pub(crate) fn client(&self) -> kube::Client {
        let router = Router::new()
            .route("/api/v1/{plural}", get(answer))
            .route("/apis/discovery.k8s.io/v1/{plural}", get(answer))
            .route("/apis/networking.k8s.io/v1/{plural}", get(answer))
            .with_state(self.clone());
        kube::Client::new(router, "default")
    }

    fn change(&self, plural: &str, name: &str, object: Option<Value>) {
        let version = {
            let mut state = self.state.lock().unwrap();
            state.version += 1;
            let version = state.version;
            let key = (plural.to_owned(), name.to_owned());
            let (kind, mut value) = match object {
                Some(value) if state.objects.contains_key(&key) => ("MODIFIED", value),
                Some(value) => ("ADDED", value),
                None => match state.objects.remove(&key) {
                    Some(value) => ("DELETED", value),
                    None => return,
                },
            };
            value["metadata"]["resourceVersion"] = json!(version.to_string());
            let line = json!({"type": kind, "object": value}).to_string();
            state.log.push((version, plural.to_owned(), line));
            if kind != "DELETED" {
                state.objects.insert(key, value);
            }
            version
        };
        self.version.send_replace(version);
    }

    pub(crate) fn put(&self, plural: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().expect("objects have names").to_owned();
        self.change(plural, &name, Some(object));
    }

    pub(crate) fn delete(&self, plural: &str, name: &str) {
        self.change(plural, name, None);
    }

    fn since(&self, plural: &str, version: u64) -> (u64, String) {
        let state = self.state.lock().unwrap();
        let lines: String =
            state.log.iter().filter(|(v, p, _)| *v > version && p == plural).map(|(.., l)| format!("{l}\n")).collect();
        (state.version, lines)
    }
}

async fn answer(
    State(api): State<Api>,
    Path(plural): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if query.get("watch").is_none_or(|w| w != "true" && w != "1") {
        let state = api.state.lock().unwrap();
        let items: Vec<&Value> = state.objects.iter().filter(|((p, _), _)| *p == plural).map(|(_, v)| v).collect();
        let body = json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": items});
        return Response::new(Body::from(body.to_string()));
    }
    let from: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
    let receiver = api.version.subscribe();
    let lines = stream::unfold((api, plural, from, receiver), |(api, plural, mut at, mut receiver)| async move {
        loop {
            receiver.borrow_and_update();
            let (version, lines) = api.since(&plural, at);
            at = version;
            if !lines.is_empty() {
                return Some((Ok::<Bytes, std::io::Error>(lines.into()), (api, plural, at, receiver)));
            }
            receiver.changed().await.ok()?;
        }
    });
    Response::new(Body::from_stream(lines))
}
