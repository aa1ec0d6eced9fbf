//! A small API server in memory for the tests of controllers, scheduler and manifests: no
//! validation, no defaults, but the verbs, watches, finalizers and deletion of the real one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
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
use serde_json::{Value, json};
use tokio::sync::broadcast;

mod discovery;

pub(crate) use discovery::custom;
use discovery::{KINDS, discovery};

type Id = (String, String, String);

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server fails and has done nothing.
    Fails,
    /// Somebody else writes its object a moment before.
    ComesSecond,
    /// It is done, and the answer does not come.
    IsLost,
}

/// Requests by their number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    /// The methods of those that were made.
    pub(crate) made: Vec<Method>,
    /// The one that is to fail.
    fault: Option<(usize, Fault)>,
    /// The one that has failed.
    pub(crate) last: Option<String>,
}

#[derive(Clone)]
pub(crate) struct FakeApi {
    inner: Arc<Mutex<Inner>>,
    changes: broadcast::Sender<(u64, String, Value)>,
    /// Of requests that do not fail by number.
    exempt: bool,
}

#[derive(Default)]
struct Inner {
    version: u64,
    objects: BTreeMap<Id, Value>,
    log: Vec<(u64, String, Value)>,
    /// Requests by method and plural.
    requests: HashMap<(Method, String), usize>,
    /// Creations that are refused, by plural.
    refuse: HashMap<String, String>,
    /// Answers that are no objects, such as those of metrics APIs, by path: code, content type and body.
    answers: HashMap<String, (u16, String, String)>,
    /// Requests that fail: method, plural with subresource, code, and how many.
    faults: Vec<(Method, String, u16, usize)>,
    calls: Calls,
    /// The first request of this method and plural with subresource whose answer is lost.
    lost: Option<(Method, String)>,
    /// Paths and queries of the requests that had those answers.
    asked: BTreeSet<String>,
    serves_custom: bool,
}

struct Path {
    plural: String,
    namespace: String,
    name: String,
    sub: String,
}

impl FakeApi {
    pub(crate) fn new() -> Self {
        Self { inner: Arc::default(), changes: broadcast::channel(65536).0, exempt: false }
    }

    pub(crate) fn client(&self) -> Client {
        let router: Router = Router::new().fallback(serve).with_state(self.clone());
        Client::new(router, "default")
    }

    /// A client whose calls are not counted, and none of which fails by its number.
    pub(crate) fn user(&self) -> Client {
        Self { exempt: true, ..self.clone() }.client()
    }

    pub(crate) fn requests(&self, method: Method, plural: &str) -> usize {
        self.inner.lock().unwrap().requests.get(&(method, plural.to_owned())).copied().unwrap_or(0)
    }

    pub(crate) fn refuse(&self, plural: &str, why: Option<&str>) {
        let mut inner = self.inner.lock().unwrap();
        match why {
            Some(why) => drop(inner.refuse.insert(plural.to_owned(), why.to_owned())),
            None => drop(inner.refuse.remove(plural)),
        }
    }

    /// The next `times` requests of this kind fail.
    pub(crate) fn fail(&self, method: Method, plural: &str, code: u16, times: usize) {
        self.inner.lock().unwrap().faults.push((method, plural.to_owned(), code, times));
    }

    /// From now on the call of this number, from 0, fails, or none does.
    pub(crate) fn fail_call(&self, fault: Option<(usize, Fault)>) {
        self.inner.lock().unwrap().calls = Calls { fault, ..Calls::default() };
    }

    /// The calls since then.
    pub(crate) fn calls(&self) -> Calls {
        self.inner.lock().unwrap().calls.clone()
    }

    /// All changes from now on: version, plural and watch event.
    pub(crate) fn changes(&self) -> broadcast::Receiver<(u64, String, Value)> {
        self.changes.subscribe()
    }

    /// The next such request is carried out, and its answer lost.
    pub(crate) fn lose_answer(&self, method: Method, plural: &str) {
        self.inner.lock().unwrap().lost = Some((method, plural.to_owned()));
    }

    /// Stores an object of which no watch tells: what the API has, and a cache has not yet.
    pub(crate) fn hide(&self, plural: &str, object: Value) {
        let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        self.inner.lock().unwrap().objects.insert((plural.to_owned(), part("namespace"), part("name")), object);
    }

    /// Answers requests for `path` with `answer`, or not any more.
    pub(crate) fn answer(&self, path: &str, answer: Option<Value>) {
        match answer {
            Some(answer) => self.answer_with(path, 200, "application/json", &answer.to_string()),
            None => drop(self.inner.lock().unwrap().answers.remove(path)),
        }
    }

    /// Answers requests for `path` with this, which need be no JSON.
    pub(crate) fn answer_with(&self, path: &str, code: u16, content_type: &str, body: &str) {
        let answer = (code, content_type.to_owned(), body.to_owned());
        self.inner.lock().unwrap().answers.insert(path.to_owned(), answer);
    }

    /// Paths and queries of the requests that had such answers, each once.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.inner.lock().unwrap().asked.iter().cloned().collect()
    }

    pub(crate) fn serve_custom(&self, serves: bool) {
        self.inner.lock().unwrap().serves_custom = serves;
    }

    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        self.inner.lock().unwrap().objects.iter().filter(|(id, _)| id.0 == plural).map(|(_, o)| o.clone()).collect()
    }

    /// All changes so far: plural and watch event.
    pub(crate) fn history(&self) -> Vec<(String, Value)> {
        self.inner.lock().unwrap().log.iter().map(|(_, plural, event)| (plural.clone(), event.clone())).collect()
    }

    /// Waits until `check` holds for the objects of a kind.
    pub(crate) async fn until(&self, plural: &str, what: &str, check: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        for _ in 0..2000 {
            let all = self.all(plural);
            if check(&all) {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never came: {what}; there is {:#?}", self.all(plural));
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
        let deleting = !object["metadata"]["deletionTimestamp"].is_null();
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty())
            || object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty())
            || (id.0 == "pods" && object["metadata"]["deletionGracePeriodSeconds"] != json!(0));
        let change = if deleting && !held {
            inner.objects.remove(&id);
            (inner.version, id.0, json!({"type": "DELETED", "object": object}))
        } else {
            inner.objects.insert(id.clone(), object.clone());
            (inner.version, id.0, json!({"type": kind, "object": object}))
        };
        inner.log.push(change.clone());
        let _ = self.changes.send(change);
        object
    }

    fn delete(&self, inner: &mut Inner, id: &Id, options: &Value) -> Result<Value, Box<Response>> {
        let Some(mut object) = inner.objects.get(id).cloned() else { return Err(Box::new(not_found(id))) };
        let wanted = &options["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if !wanted[field].is_null() && wanted[field] != object["metadata"][field] {
                return Err(Box::new(status(409, "Conflict", "precondition failed")));
            }
        }
        let finalizer = match options["propagationPolicy"].as_str() {
            Some("Foreground") => Some("foregroundDeletion"),
            Some("Orphan") => Some("orphan"),
            _ => None,
        };
        let meta = &mut object["metadata"];
        if let Some(finalizer) = finalizer {
            let mut all = meta["finalizers"].as_array().cloned().unwrap_or_default();
            if !all.contains(&json!(finalizer)) {
                all.push(json!(finalizer));
            }
            meta["finalizers"] = json!(all);
        }
        if meta["deletionTimestamp"].is_null() {
            meta["deletionTimestamp"] = json!(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
        let unbound = object["spec"]["nodeName"].is_null();
        let grace = options["gracePeriodSeconds"].as_i64().unwrap_or(if unbound { 0 } else { 30 });
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        Ok(self.store(inner, id.clone(), object))
    }
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    let causes = if reason == "Terminating" { json!([{"reason": "NamespaceTerminating"}]) } else { json!([]) };
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message, "details": {"causes": causes}});
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
    // `namespaces/x/finalize` is no collection of a namespace.
    if part(0) == "namespaces" && parts.len() > 2 && KINDS.iter().any(|k| k.3 == parts[2]) {
        return Some(Path { namespace: part(1), plural: part(2), name: part(3), sub: part(4) });
    }
    KINDS.iter().any(|k| k.3 == parts[0]).then(|| Path {
        namespace: String::new(),
        plural: part(0),
        name: part(1),
        sub: part(2),
    })
}

async fn serve(State(api): State<FakeApi>, Query(query): Query<HashMap<String, String>>, request: Request) -> Response {
    let serves_custom = api.inner.lock().unwrap().serves_custom;
    if let Some(document) = discovery(request.uri().path(), serves_custom) {
        return ok(&document);
    }
    let is_watch = query.get("watch").is_some_and(|w| w == "true" || w == "1");
    let fault = if is_watch { None } else { fault_of(&api, &request) };
    if fault == Some(Fault::Fails) {
        return failure();
    }
    let answer = api.inner.lock().unwrap().answers.get(request.uri().path()).cloned();
    if let Some((code, content_type, body)) = answer {
        api.inner.lock().unwrap().asked.insert(request.uri().to_string());
        return Response::builder().status(code).header("Content-Type", content_type).body(Body::from(body)).unwrap();
    }
    if request.uri().path().contains("metrics.k8s.io") {
        return Response::builder().status(404).body(Body::from("404 page not found\n")).unwrap();
    }
    let Some(path) = parse(request.uri().path()) else { return status(404, "NotFound", "no such path") };
    let method = request.method().clone();
    let strategic =
        request.headers().get("content-type").is_some_and(|c| c.as_bytes().starts_with(b"application/strategic"));
    let bytes = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let id: Id = (path.plural.clone(), path.namespace.clone(), path.name.clone());
    if is_watch {
        if query.contains_key("sendInitialEvents") {
            // As servers without streaming lists.
            return status(422, "Invalid", "sendInitialEvents is forbidden for watch");
        }
        return watch(&api, path, query["resourceVersion"].parse().unwrap());
    }
    let mut inner = api.inner.lock().unwrap();
    *inner.requests.entry((method.clone(), format!("{}{}", path.plural, path.sub))).or_default() += 1;
    let inner = &mut *inner;
    let kind = format!("{}{}", path.plural, path.sub);
    if let Some(fault) = inner.faults.iter_mut().find(|f| f.0 == method && f.1 == kind && f.3 > 0) {
        fault.3 -= 1;
        let reason = if fault.2 == 409 { "Conflict" } else { "InternalError" };
        return status(fault.2, reason, "a test wants it so");
    }
    let lost = inner.lost.take_if(|lost| lost.0 == method && lost.1 == kind).map(|_| Fault::IsLost);
    if fault == Some(Fault::ComesSecond)
        && let Some(mut object) = inner.objects.get(&id).cloned()
    {
        object["metadata"]["managedFields"] = json!([{"manager": "another"}]);
        api.store(inner, id.clone(), object);
    }
    let answer = carry_out(&api, inner, path, id, method, body, strategic);
    if fault.or(lost) == Some(Fault::IsLost) { failure() } else { answer }
}

/// What becomes of a request by its number. Events may be lost.
fn fault_of(api: &FakeApi, request: &Request) -> Option<Fault> {
    let (method, path) = (request.method(), request.uri().path());
    if api.exempt || path.contains("/events") {
        return None;
    }
    let calls = &mut api.inner.lock().unwrap().calls;
    let number = calls.made.len();
    calls.made.push(method.clone());
    let (_, fault) = calls.fault.filter(|(of, _)| *of == number)?;
    calls.last = Some(format!("{method} {path}"));
    Some(fault)
}

fn failure() -> Response {
    status(500, "InternalError", "a test wants it so")
}

fn carry_out(
    api: &FakeApi,
    inner: &mut Inner,
    path: Path,
    id: Id,
    method: Method,
    body: Value,
    strategic: bool,
) -> Response {
    let in_scope = |o: &(&Id, &Value)| o.0.0 == path.plural && (path.namespace.is_empty() || o.0.1 == path.namespace);
    match (method.as_str(), path.name.is_empty(), path.sub.as_str()) {
        ("GET", true, _) => {
            let items: Vec<Value> = inner.objects.iter().filter(in_scope).map(|(_, o)| o.clone()).collect();
            ok(&json!({"kind": "List", "apiVersion": "v1", "items": items,
                "metadata": {"resourceVersion": inner.version.to_string()}}))
        }
        ("GET", false, "scale") => inner.objects.get(&id).map_or_else(|| not_found(&id), |object| ok(&scale(object))),
        ("GET", false, _) => inner.objects.get(&id).map_or_else(|| not_found(&id), ok),
        ("POST", false, "binding") => {
            let Some(mut pod) = inner.objects.get(&id).cloned() else { return not_found(&id) };
            pod["spec"]["nodeName"] = body["target"]["name"].clone();
            api.store(inner, id, pod);
            ok(&json!({"kind": "Status", "status": "Success"}))
        }
        ("POST", ..) => create(api, inner, path, body),
        ("PUT", ..) | ("PATCH", ..) => {
            let Some(old) = inner.objects.get(&id).cloned() else { return not_found(&id) };
            for field in ["uid", "resourceVersion"] {
                let wanted = &body["metadata"][field];
                if !wanted.is_null() && *wanted != old["metadata"][field] {
                    return status(409, "Conflict", "the object has been modified");
                }
            }
            let mut new = old.clone();
            if path.sub == "scale" {
                new["spec"]["replicas"] = body["spec"]["replicas"].clone();
            } else if method == Method::PUT {
                new = body;
            } else {
                let mut patch = body;
                if strategic && let Some(added) = patch["status"]["conditions"].as_array().cloned() {
                    let mut all = old["status"]["conditions"].as_array().cloned().unwrap_or_default();
                    all.retain(|c| !added.iter().any(|a| a["type"] == c["type"]));
                    all.extend(added);
                    patch["status"]["conditions"] = json!(all);
                }
                json_patch::merge(&mut new, &patch);
            }
            let stored = api.store(inner, id, new);
            ok(&if path.sub == "scale" { scale(&stored) } else { stored })
        }
        ("DELETE", true, _) => {
            let ids: Vec<Id> = inner.objects.iter().filter(in_scope).map(|(id, _)| id.clone()).collect();
            for id in ids {
                let _ = api.delete(inner, &id, &body);
            }
            ok(&json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}))
        }
        ("DELETE", false, _) => api.delete(inner, &id, &body).map_or_else(|refusal| *refusal, |o| ok(&o)),
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

fn create(api: &FakeApi, inner: &mut Inner, path: Path, mut object: Value) -> Response {
    if let Some(why) = inner.refuse.get(&path.plural) {
        return status(403, "Forbidden", why);
    }
    let kind = KINDS.iter().find(|k| k.3 == path.plural).unwrap();
    if kind.4 {
        let namespace = inner.objects.get(&("namespaces".to_owned(), String::new(), path.namespace.clone()));
        match namespace {
            None => return status(404, "NotFound", &format!("namespaces {:?} not found", path.namespace)),
            Some(n) if !n["metadata"]["deletionTimestamp"].is_null() => {
                return status(403, "Terminating", "the namespace is being terminated");
            }
            Some(_) => object["metadata"]["namespace"] = json!(path.namespace),
        }
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
    if kind.2 == "Namespace" {
        object["spec"]["finalizers"] = json!(["kubernetes"]);
    }
    ok(&api.store(inner, id, object))
}

fn watch(api: &FakeApi, path: Path, from: u64) -> Response {
    let inner = api.inner.lock().unwrap();
    let past: Vec<_> = inner.log.iter().filter(|(version, ..)| *version > from).cloned().collect();
    let future = tokio_stream::wrappers::BroadcastStream::new(api.changes.subscribe())
        .filter_map(|change| futures::future::ready(change.ok()));
    let lines = futures::stream::iter(past).chain(future).filter_map(move |(_, plural, event)| {
        let inside = path.namespace.is_empty() || event["object"]["metadata"]["namespace"] == json!(path.namespace);
        let line = (plural == path.plural && inside).then(|| Ok::<_, Infallible>(format!("{event}\n")));
        futures::future::ready(line)
    });
    Response::new(Body::from_stream(lines))
}
