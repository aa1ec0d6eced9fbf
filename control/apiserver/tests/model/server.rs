//! The server that is compared with the model: sends requests, and reads objects and events as the model sees them.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt as _;
use http::{Request as HttpRequest, header};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::{
    kinds::Kind,
    request::{Change, PatchType, Policy, Precondition, Request, UPDATER, Verb},
    semantics::{EventType, Fields, Managers},
};

const WATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

/// An object as the model sees it, with the server's own uid and revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) fields: Fields,
    pub(crate) managers: Managers,
    pub(crate) finalizers: Vec<String>,
    pub(crate) generation: Option<u64>,
    pub(crate) deletion: Option<i64>,
    pub(crate) uid: String,
    pub(crate) revision: u64,
}

impl Seen {
    pub(crate) fn of(kind: Kind, object: &Value) -> Self {
        let metadata = &object["metadata"];
        let mut fields = Fields::new();
        for field in kind.fields() {
            if let Some(value) = object.pointer(field.pointer) {
                fields.insert(field.pointer, value.clone());
            }
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let deleting = !metadata["deletionTimestamp"].is_null();
        Self {
            fields,
            managers: managers(kind, metadata),
            finalizers: metadata["finalizers"].as_array().into_iter().flatten().map(text).collect(),
            generation: metadata["generation"].as_u64(),
            deletion: deleting.then(|| metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0)),
            uid: text(&metadata["uid"]),
            revision: text(&metadata["resourceVersion"]).parse().unwrap_or(0),
        }
    }
}

/// The managers of modelled fields.
fn managers(kind: Kind, metadata: &Value) -> Managers {
    let mut managers = Managers::new();
    for entry in metadata["managedFields"].as_array().into_iter().flatten().filter(|_| kind.is_managed()) {
        let name = entry["manager"].as_str().unwrap_or_default().to_owned();
        for field in kind.fields().iter().filter(|field| field.is_managed()) {
            let path: String = parts(field.pointer).map(|part| format!("/f:{part}")).collect();
            if entry["fieldsV1"].pointer(&path).is_some() {
                managers.entry((name.clone(), entry["operation"] == "Apply")).or_default().insert(field.pointer);
            }
        }
    }
    managers
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) struct SeenEvent {
    pub(crate) event: EventType,
    pub(crate) name: String,
    pub(crate) object: Seen,
}

async fn send(client: &Client, method: &str, uri: &str, kind: &str, body: &Value) -> Result<Response, kube::Error> {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = HttpRequest::builder()
        .method(method)
        .uri(uri)
        .header(header::CONTENT_TYPE, kind)
        .header(header::ACCEPT, "application/json")
        .body(Body::from(bytes))
        .expect("a request");
    let response = client.send(request).await?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok(Response { code, body: serde_json::from_slice(&bytes).unwrap_or_default() })
}

pub(crate) async fn get(client: &Client, path: &str) -> Result<Response, kube::Error> {
    send(client, "GET", path, JSON, &Value::Null).await
}

const JSON: &str = "application/json";

/// A request as it is sent, made from what is stored.
#[derive(Debug)]
pub(crate) struct Sent {
    method: &'static str,
    uri: String,
    kind: &'static str,
    body: Value,
}

impl Sent {
    /// Reads the stored object where the request is made from it.
    pub(crate) async fn prepare(client: &Client, request: &Request) -> Result<Self, kube::Error> {
        let stored = get(client, &format!("{}/{}", request.kind.collection(), request.name)).await?;
        let stored = (stored.code == 200).then_some(stored.body);
        let (method, kind, body) = render(request, stored.as_ref());
        let mut query = vec![match &request.verb {
            Verb::Apply { manager, force, .. } => format!("fieldManager={manager}&force={force}"),
            _ => format!("fieldManager={UPDATER}"),
        }];
        if request.dry_run {
            query.push("dryRun=All".to_owned());
        }
        if matches!(request.verb, Verb::DeleteCollection { .. }) {
            query.push("labelSelector=a%3D1".to_owned());
        }
        Ok(Self { method, uri: format!("{}?{}", request.path(), query.join("&")), kind, body })
    }

    pub(crate) async fn send(&self, client: &Client) -> Result<Response, kube::Error> {
        send(client, self.method, &self.uri, self.kind, &self.body).await
    }
}

fn render(request: &Request, stored: Option<&Value>) -> (&'static str, &'static str, Value) {
    let current = |field: &str| stored.map_or(Value::Null, |object| object["metadata"][field].clone());
    let preconditions = |precondition: Precondition| match precondition {
        Precondition::None => json!({}),
        Precondition::SameVersion => json!({"resourceVersion": current("resourceVersion")}),
        Precondition::SameUid => json!({"uid": current("uid")}),
        Precondition::OtherVersion => json!({"resourceVersion": "1"}),
        Precondition::OtherUid => json!({"uid": "11111111-2222-3333-4444-555555555555"}),
    };
    match &request.verb {
        Verb::Get => ("GET", JSON, Value::Null),
        Verb::Create(change) => ("POST", JSON, changed(request.kind.template(request.name), change)),
        Verb::Update { change, precondition, .. } => {
            let template = || request.kind.template(request.name);
            let mut object = changed(stored.cloned().unwrap_or_else(template), change);
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.retain(|field, _| !matches!(field.as_str(), "resourceVersion" | "uid"));
                if stored.is_some() {
                    metadata.extend(preconditions(*precondition).as_object().cloned().unwrap_or_default());
                }
            }
            ("PUT", JSON, object)
        }
        Verb::Patch { kind: PatchType::Json, change, .. } => {
            ("PATCH", "application/json-patch+json", operations(change))
        }
        Verb::Patch { kind, change, precondition, .. } => {
            let patch = merge_patch(change, preconditions(*precondition));
            let strategic = *kind == PatchType::Strategic;
            (
                "PATCH",
                if strategic { "application/strategic-merge-patch+json" } else { "application/merge-patch+json" },
                {
                    // A merge patch replaces lists as a whole.
                    let replaces_containers = !strategic && !patch["spec"]["containers"].is_null();
                    match stored.filter(|_| replaces_containers) {
                        Some(object) => with_stored_container(patch, object),
                        None => patch,
                    }
                },
            )
        }
        Verb::Apply { fields, .. } => {
            let fields = fields.iter().map(|(pointer, value)| (*pointer, Some(value.clone()))).collect();
            let config = changed(request.kind.template(request.name), &Change { fields, finalizers: None });
            ("PATCH", "application/apply-patch+yaml", config)
        }
        Verb::Delete { policy, grace, precondition } => {
            let mut options = delete_options(*policy);
            if let Some(grace) = grace {
                options["gracePeriodSeconds"] = json!(grace);
            }
            if *precondition != Precondition::None && stored.is_some() {
                options["preconditions"] = preconditions(*precondition);
            }
            ("DELETE", JSON, options)
        }
        Verb::DeleteCollection { policy } => ("DELETE", JSON, delete_options(*policy)),
    }
}

fn delete_options(policy: Option<Policy>) -> Value {
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    if let Some(policy) = policy {
        options["propagationPolicy"] = json!(format!("{policy:?}"));
    }
    options
}

/// The steps of a pointer into an object; numbers are of lists.
fn parts(pointer: &str) -> impl Iterator<Item = &str> {
    pointer.split('/').skip(1)
}

/// An object with a change of it.
fn changed(mut object: Value, change: &Change) -> Value {
    for (pointer, value) in &change.fields {
        let (parent, last) = pointer.rsplit_once('/').expect("a pointer");
        if let Some(value) = value {
            let mut at = &mut object;
            for part in parts(parent) {
                at = match part.parse::<usize>() {
                    Ok(index) => &mut at[index],
                    Err(_) => &mut at[part],
                };
            }
            at[last] = value.clone();
        } else if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
            fields.remove(last);
        }
    }
    if let Some(finalizers) = &change.finalizers {
        object["metadata"]["finalizers"] = json!(finalizers);
    }
    object
}

/// A change as the operations of a JSON patch.
fn operations(change: &Change) -> Value {
    let one = |path: &str, value: Option<&Value>| match value {
        Some(value) => json!({"op": "add", "path": path, "value": value}),
        None => json!({"op": "remove", "path": path}),
    };
    let fields = change.fields.iter().map(|(pointer, value)| one(pointer, value.as_ref()));
    let finalizers = change.finalizers.as_ref().map(|names| {
        let names = json!(names);
        one("/metadata/finalizers", Some(&names).filter(|names| **names != json!([])))
    });
    fields.chain(finalizers).collect()
}

/// A change as a merge patch, plain or strategic.
fn merge_patch(change: &Change, metadata: Value) -> Value {
    let mut patch = json!({"metadata": metadata});
    for (pointer, value) in &change.fields {
        let value = value.clone().unwrap_or_default();
        if let Some(field) = pointer.strip_prefix("/spec/containers/0/") {
            patch["spec"]["containers"] = json!([{"name": "main", field: value}]);
            continue;
        }
        let mut at = &mut patch;
        for part in parts(pointer) {
            at = &mut at[part];
        }
        *at = value;
    }
    if let Some(finalizers) = &change.finalizers {
        patch["metadata"]["finalizers"] = if finalizers.is_empty() { Value::Null } else { json!(finalizers) };
    }
    patch
}

/// A merge patch whose container is the stored one with its change.
fn with_stored_container(mut patch: Value, stored: &Value) -> Value {
    let mut container = stored["spec"]["containers"][0].clone();
    for (field, value) in patch["spec"]["containers"][0].as_object().cloned().unwrap_or_default() {
        container[field] = value;
    }
    patch["spec"]["containers"] = json!([container]);
    patch
}

/// All objects of a kind by name, and the revision of the list.
pub(crate) async fn list(client: &Client, kind: Kind) -> (BTreeMap<String, Seen>, u64) {
    let list = get(client, kind.collection()).await.expect("an API that lives");
    assert_eq!(list.code, 200, "{}", list.body);
    let items = list.body["items"].as_array().cloned().unwrap_or_default();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let revision = list.body["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    (items.iter().map(|object| (name(object), Seen::of(kind, object))).collect(), revision.parse().expect("a revision"))
}

/// The first `count` events after a revision; `None` when the history does not reach back so far.
pub(crate) async fn events(client: &Client, kind: Kind, from: u64, count: usize) -> Option<Vec<SeenEvent>> {
    let uri = format!("{}?watch=true&resourceVersion={from}", kind.collection());
    let request = HttpRequest::get(uri).body(Body::empty()).expect("a request");
    let response = client.send(request).await.expect("an API that lives");
    if response.status() == 410 {
        return None;
    }
    assert!(response.status().is_success(), "a watch of {kind:?} was answered with {}", response.status());
    let mut stream = response.into_body().into_data_stream();
    let (mut text, mut events) = (Vec::new(), Vec::new());
    while events.len() < count {
        let chunk = tokio::time::timeout(WATCH_TIMEOUT, stream.next()).await;
        let chunk = chunk.unwrap_or_else(|_| panic!("{} of {count} events of {kind:?} came", events.len()));
        text.extend_from_slice(&chunk.expect("a watch that goes on").expect("an API that lives"));
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).expect("an event");
            let object = &event["object"];
            let kind_of_event = match event["type"].as_str() {
                Some("ADDED") => EventType::Added,
                Some("MODIFIED") => EventType::Modified,
                Some("DELETED") => EventType::Deleted,
                Some("ERROR") if object["code"] == 410 => return None,
                other => panic!("an event of type {other:?}: {event}"),
            };
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            events.push(SeenEvent { event: kind_of_event, name, object: Seen::of(kind, object) });
        }
    }
    Some(events)
}
