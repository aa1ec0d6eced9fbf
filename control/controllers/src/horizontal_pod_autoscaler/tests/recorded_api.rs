//! An API server with the answers that `recorded.jsonl` has: those of APIs of metrics, among them such that no server gives.
//! Of the real one it has what an autoscaler asks for; objects are taken as they are, statuses too.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    sync::Arc,
};

use axum::{
    Router,
    body::Body,
    extract::{Query, Request, State},
    response::Response,
};
use futures::StreamExt;
use http::Method;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

type Id = (String, String, String);

#[derive(Clone)]
pub(super) struct RecordedApi {
    inner: Arc<Mutex<Inner>>,
    changes: broadcast::Sender<(u64, String, Value)>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    objects: BTreeMap<Id, Value>,
    log: Vec<(u64, String, Value)>,
    /// Recorded answers by path: code, content type and body.
    answers: HashMap<String, (u16, String, String)>,
    /// Paths and queries of the requests that had those answers.
    asked: BTreeSet<String>,
}

struct Path {
    plural: String,
    namespace: String,
    name: String,
    sub: String,
}

/// Group, version, kind and plural of what is served; all but namespaces are in namespaces.
const KINDS: [(&str, &str, &str, &str); 11] = [
    ("", "v1", "Pod", "pods"),
    ("", "v1", "ReplicationController", "replicationcontrollers"),
    ("", "v1", "Service", "services"),
    ("", "v1", "Event", "events"),
    ("", "v1", "Namespace", "namespaces"),
    ("apps", "v1", "Deployment", "deployments"),
    ("apps", "v1", "DaemonSet", "daemonsets"),
    ("apps", "v1", "ReplicaSet", "replicasets"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ("example.com", "v1", "Widget", "widgets"),
];

fn discovery(path: &str) -> Option<Value> {
    let list = |group: &str| {
        let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let found = KINDS.iter().filter(|kind| kind.0 == group);
        let resources: Vec<Value> = found
            .map(|kind| {
                json!({"name": kind.3, "singularName": "", "namespaced": kind.3 != "namespaces", "kind": kind.2,
                    "verbs": verbs})
            })
            .collect();
        json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
    };
    let group = |name: &str| {
        let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
        json!({"name": name, "versions": [version], "preferredVersion": version})
    };
    match path {
        "/api/v1" => Some(list("")),
        "/apis" | "/apis/" => {
            let groups = ["apps", "example.com"].map(group);
            Some(json!({"kind": "APIGroupList", "groups": groups}))
        }
        "/apis/example.com/v1" => Some(list("example.com")),
        "/apis/apps/v1" => Some(list("apps")),
        _ => None,
    }
}

impl RecordedApi {
    pub(super) fn new() -> Self {
        Self { inner: Arc::default(), changes: broadcast::channel(65536).0 }
    }

    pub(super) fn client(&self) -> Client {
        let router: Router = Router::new().fallback(serve).with_state(self.clone());
        Client::new(router, "default")
    }

    /// Answers requests for `path` with this, which need be no JSON.
    pub(super) fn answer(&self, path: &str, code: u16, content_type: &str, body: &str) {
        let answer = (code, content_type.to_owned(), body.to_owned());
        self.inner.lock().answers.insert(path.to_owned(), answer);
    }

    /// Paths and queries of the requests that had such answers, each once.
    pub(super) fn asked(&self) -> Vec<String> {
        self.inner.lock().asked.iter().cloned().collect()
    }

    pub(super) fn all(&self, plural: &str) -> Vec<Value> {
        self.inner.lock().objects.iter().filter(|(id, _)| id.0 == plural).map(|(_, o)| o.clone()).collect()
    }

    /// All changes so far: plural and watch event.
    pub(super) fn history(&self) -> Vec<(String, Value)> {
        self.inner.lock().log.iter().map(|(_, plural, event)| (plural.clone(), event.clone())).collect()
    }

    fn store(&self, inner: &mut Inner, id: Id, mut object: Value) -> Value {
        let old = inner.objects.get(&id);
        if let Some(old) = old {
            let mut same = object.clone();
            same["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
            if same == *old {
                return same;
            }
        }
        inner.version += 1;
        object["metadata"]["resourceVersion"] = json!(inner.version.to_string());
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        inner.objects.insert(id.clone(), object.clone());
        let change = (inner.version, id.0, json!({"type": kind, "object": object}));
        inner.log.push(change.clone());
        let _ = self.changes.send(change);
        object
    }
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message});
    Response::builder().status(code).body(Body::from(body.to_string())).unwrap()
}

fn not_found(id: &Id) -> Response {
    status(404, "NotFound", &format!("{} {:?} not found", id.0, id.2))
}

fn ok(value: &Value) -> Response {
    Response::new(Body::from(value.to_string()))
}

fn parse(path: &str) -> Option<Path> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    parts.drain(..if parts[0] == "api" { 2 } else { 3 });
    if parts.is_empty() {
        return None;
    }
    let part = |i: usize| parts.get(i).copied().unwrap_or_default().to_owned();
    if part(0) == "namespaces" && parts.len() > 2 {
        return Some(Path { namespace: part(1), plural: part(2), name: part(3), sub: part(4) });
    }
    KINDS.iter().any(|kind| kind.3 == parts[0]).then(|| Path {
        namespace: String::new(),
        plural: part(0),
        name: part(1),
        sub: part(2),
    })
}

async fn serve(
    State(api): State<RecordedApi>,
    Query(query): Query<HashMap<String, String>>,
    request: Request,
) -> Response {
    if let Some(document) = discovery(request.uri().path()) {
        return ok(&document);
    }
    let answer = api.inner.lock().answers.get(request.uri().path()).cloned();
    if let Some((code, content_type, body)) = answer {
        api.inner.lock().asked.insert(request.uri().to_string());
        return Response::builder().status(code).header("Content-Type", content_type).body(Body::from(body)).unwrap();
    }
    if request.uri().path().contains("metrics.k8s.io") {
        return Response::builder().status(404).body(Body::from("404 page not found\n")).unwrap();
    }
    let Some(path) = parse(request.uri().path()) else { return status(404, "NotFound", "no such path") };
    let method = request.method().clone();
    let bytes = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    if query.get("watch").is_some_and(|w| w == "true" || w == "1") {
        if query.contains_key("sendInitialEvents") {
            // As servers without streaming lists.
            return status(422, "Invalid", "sendInitialEvents is forbidden for watch");
        }
        return watch(&api, path, query["resourceVersion"].parse().unwrap());
    }
    carry_out(&api, path, &method, body)
}

fn carry_out(api: &RecordedApi, path: Path, method: &Method, body: Value) -> Response {
    let mut inner = api.inner.lock();
    let id: Id = (path.plural.clone(), path.namespace.clone(), path.name.clone());
    let in_scope = |o: &(&Id, &Value)| o.0.0 == path.plural && (path.namespace.is_empty() || o.0.1 == path.namespace);
    match (method.as_str(), path.name.is_empty(), path.sub.as_str()) {
        ("GET", true, _) => {
            let items: Vec<Value> = inner.objects.iter().filter(in_scope).map(|(_, o)| o.clone()).collect();
            ok(&json!({"kind": "List", "apiVersion": "v1", "items": items,
                "metadata": {"resourceVersion": inner.version.to_string()}}))
        }
        ("GET", false, "scale") => inner.objects.get(&id).map_or_else(|| not_found(&id), |object| ok(&scale(object))),
        ("GET", false, _) => inner.objects.get(&id).map_or_else(|| not_found(&id), ok),
        ("POST", true, _) => create(api, &mut inner, path, body),
        ("PUT" | "PATCH", false, sub) => {
            let Some(old) = inner.objects.get(&id).cloned() else { return not_found(&id) };
            for field in ["uid", "resourceVersion"] {
                let wanted = &body["metadata"][field];
                if !wanted.is_null() && *wanted != old["metadata"][field] {
                    return status(409, "Conflict", "the object has been modified");
                }
            }
            let mut new = old;
            if sub == "scale" {
                new["spec"]["replicas"] = body["spec"]["replicas"].clone();
            } else if method == Method::PUT {
                new = body;
            } else {
                json_patch::merge(&mut new, &body);
            }
            let stored = api.store(&mut inner, id, new);
            ok(&if sub == "scale" { scale(&stored) } else { stored })
        }
        _ => status(405, "MethodNotAllowed", "no such verb"),
    }
}

fn scale(object: &Value) -> Value {
    let meta = &object["metadata"];
    // A replication controller has labels only.
    let labels = json!({"matchLabels": object["spec"]["selector"]});
    let selector = if object["kind"] == "ReplicationController" { &labels } else { &object["spec"]["selector"] };
    let selector = object["status"]["selector"]
        .as_str()
        .map_or_else(|| windlass_apimachinery::selectors::label_selector_text(selector), str::to_owned);
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"]},
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0), "selector": selector}})
}

fn create(api: &RecordedApi, inner: &mut Inner, path: Path, mut object: Value) -> Response {
    let kind = KINDS.iter().find(|kind| kind.3 == path.plural).unwrap();
    if kind.3 != "namespaces" {
        object["metadata"]["namespace"] = json!(path.namespace);
    }
    let serial = inner.version + 1;
    if object["metadata"]["name"].is_null() {
        let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default();
        object["metadata"]["name"] = json!(format!("{prefix}{serial:05}"));
    }
    let id: Id = (path.plural, path.namespace, object["metadata"]["name"].as_str().unwrap().to_owned());
    if inner.objects.contains_key(&id) {
        return status(409, "AlreadyExists", &format!("{} {:?} already exists", id.0, id.2));
    }
    object["apiVersion"] = json!(if kind.0.is_empty() { "v1".to_owned() } else { format!("{}/{}", kind.0, kind.1) });
    object["kind"] = json!(kind.2);
    object["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{serial:012}"));
    object["metadata"]["generation"] = json!(1);
    if object["metadata"]["creationTimestamp"].is_null() {
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    ok(&api.store(inner, id, object))
}

fn watch(api: &RecordedApi, path: Path, from: u64) -> Response {
    let inner = api.inner.lock();
    let past: Vec<_> = inner.log.iter().filter(|(version, ..)| *version > from).cloned().collect();
    let future = tokio_stream::wrappers::BroadcastStream::new(api.changes.subscribe())
        .filter_map(|change| futures::future::ready(Some(change.unwrap())));
    let lines = futures::stream::iter(past).chain(future).filter_map(move |(_, plural, event)| {
        let inside = path.namespace.is_empty() || event["object"]["metadata"]["namespace"] == json!(path.namespace);
        let line = (plural == path.plural && inside).then(|| Ok::<_, Infallible>(format!("{event}\n")));
        futures::future::ready(line)
    });
    Response::new(Body::from_stream(lines))
}
