//! Requests against the router, over a store in memory.

mod admission;
mod apply;
mod audit;
mod certificates;
mod deletion;
mod evictions;
mod field_validation;
mod go_client;
mod impersonation;
mod limits;
mod lists;
pub(crate) mod long_work;
mod metrics;
mod metrics_page;
mod panics;
mod protobuf;
mod proxy;
mod quotas;
pub(crate) mod rbac;
mod replay;
mod representations;
mod requests;
mod rights;
mod scopes;
mod services;
mod stored_types;
pub(crate) mod templates;
mod tokens;
mod updates;
mod warnings;
mod watches;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api as KubeApi, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;
use windlass_identity::service_account_tokens::TokenIssuer;

use super::{types::Version, *};
use crate::apiserver::{
    filters::limits::{MAX_MUTATING_REQUESTS_IN_FLIGHT, MAX_REVIEWS_OF_USER},
    request::{
        request_info::{self, RequestInfo, RequestOptions},
        user::NODES_GROUP,
    },
};
use crate::{
    control_plane::instance::{ApiConfig, Instance as Api},
    kinds,
    store::Memory,
};

pub(crate) use requests::{Reply, Watching, call, send, send_with, text};

pub(crate) fn api() -> Api {
    api_with(None, None)
}

/// An API over a disk in memory, which survives it.
pub(crate) fn api_over(memory: &Memory) -> Api {
    Api::new(&kinds::open_store(Box::new(memory.clone())).unwrap(), &config(), None, None)
}

pub(crate) fn api_with(tokens: Option<TokenIssuer>, max_token_seconds: Option<i64>) -> Api {
    let store = kinds::open_store(Box::new(Memory::default())).unwrap();
    Api::new(&store, &ApiConfig { max_token_seconds, ..config() }, None, tokens)
}

pub(crate) fn config() -> ApiConfig {
    ApiConfig::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30009)
}

/// The versions whose objects are stored.
pub(crate) fn stored_versions(api: &Api) -> Vec<Arc<Version>> {
    api.catalogs().current().all().filter(|version| version.id().is_some()).cloned().collect()
}

/// A built-in version by its kind.
pub(crate) fn version(kind: &str) -> Arc<Version> {
    let catalog = api().catalogs().current();
    let found = catalog.all().find(|version| version.gvk.kind == kind);
    Arc::clone(found.unwrap_or_else(|| panic!("{kind} is not served")))
}

/// The target of a path.
pub(crate) fn target(path: &str) -> Target {
    let uri = path.parse().unwrap();
    let segments = request_info::segments(path).unwrap();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let options = RequestOptions::parse(&uri).unwrap();
    let info = RequestInfo::parse(&segments, &axum::http::Method::GET, &options);
    Target::resolve(&api().catalogs().current(), &info).unwrap()
}

pub(crate) async fn with_namespace() -> Api {
    let api = api();
    let made = call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    api
}

const MAPS: &str = "/api/v1/namespaces/n/configmaps";
pub(crate) const PODS: &str = "/api/v1/namespaces/n/pods";
const SERVICES: &str = "/api/v1/namespaces/n/services";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

pub(crate) fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

#[tokio::test]
async fn created_objects_have_system_metadata() {
    let api = with_namespace().await;
    let made = call(&api, "POST", PODS, pod("p")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let metadata = &made.body["metadata"];
    assert_eq!((&metadata["namespace"], &metadata["generation"]), (&json!("n"), &json!(1)));
    assert!(metadata["uid"].as_str().unwrap().len() == 36 && !metadata["creationTimestamp"].is_null());
    assert_eq!(made.body["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(made.body["spec"]["serviceAccountName"], "default");
    assert_eq!(made.body["spec"]["tolerations"].as_array().unwrap().len(), 2);
    let got = call(&api, "GET", &format!("{PODS}/p"), Value::Null).await;
    assert_eq!(got.body, made.body);
    let generated = call(&api, "POST", MAPS, json!({"metadata": {"generateName": "g-"}})).await;
    let name = generated.body["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("g-") && name.len() == 7, "{name}");
}

/// The group in a refusal is that of the stored type, as upstream's internal one.
#[tokio::test]
async fn a_refused_event_is_of_the_core_group() {
    let api = with_namespace().await;
    let refused =
        call(&api, "POST", "/apis/events.k8s.io/v1/namespaces/n/events", json!({"metadata": {"name": "e"}})).await;
    let message = refused.body["message"].as_str().unwrap();
    assert!(refused.code == 422 && message.starts_with("Event \"e\" is invalid: "), "{message}");
    let details = &refused.body["details"];
    assert_eq!((details.get("group").is_none_or(|group| group == ""), &details["kind"]), (true, &json!("Event")));
}

#[tokio::test]
async fn a_pod_without_a_node_has_nothing_to_connect_to() {
    let api = with_namespace().await;
    call(&api, "POST", PODS, pod("p")).await;
    for connect in ["attach", "exec", "portforward"] {
        let refused = call(&api, "GET", &format!("{PODS}/p/{connect}"), Value::Null).await;
        assert_eq!((refused.code, &refused.body["message"]), (400, &json!("pod p does not have a host assigned")));
    }
}

#[tokio::test]
async fn refusals_are_statuses_with_the_right_code() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    for (method, path, body, code, reason, words) in [
        ("POST", MAPS, map("m"), 409, "AlreadyExists", "configmaps \"m\" already exists"),
        ("GET", "/api/v1/namespaces/n/configmaps/x", Value::Null, 404, "NotFound", "configmaps \"x\" not found"),
        ("GET", "/api/v1/nonsense", Value::Null, 404, "NotFound", "could not find the requested resource"),
        ("POST", "/api/v1/namespaces/x/configmaps", map("m"), 404, "NotFound", "namespaces \"x\" not found"),
        ("POST", MAPS, json!([]), 400, "BadRequest", "no JSON object"),
        (
            "POST",
            MAPS,
            json!({"kind": "Pod", "metadata": {"name": "x"}}),
            400,
            "BadRequest",
            "does not match the expected kind",
        ),
        (
            "POST",
            MAPS,
            json!({"metadata": {"name": "x", "namespace": "y"}}),
            400,
            "BadRequest",
            "does not match the namespace",
        ),
        (
            "PUT",
            "/api/v1/namespaces/n/configmaps/m",
            map("other"),
            400,
            "BadRequest",
            "does not match the name on the URL",
        ),
        ("DELETE", "/api/v1/namespaces/default", Value::Null, 403, "Forbidden", "this namespace may not be deleted"),
        ("PUT", MAPS, map("m"), 405, "MethodNotAllowed", "does not allow this method"),
        ("POST", MAPS, json!({"metadata": {}}), 422, "Invalid", "metadata.name: Required value"),
        (
            "GET",
            "/api/v1/namespaces/n/pods?fieldSelector=spec.x%3D1",
            Value::Null,
            400,
            "BadRequest",
            "field label not supported: spec.x",
        ),
        (
            "GET",
            "/api/v1/configmaps?fieldSelector=data.x%3D1",
            Value::Null,
            400,
            "BadRequest",
            "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        ("GET", "/api/v1/pods?resourceVersion=999999", Value::Null, 504, "Timeout", "Too large resource version"),
    ] {
        let reply = call(&api, method, path, body).await;
        assert_eq!(
            (reply.code, reply.body["reason"].as_str()),
            (code, Some(reason)),
            "{method} {path}: {}",
            reply.body
        );
        assert!(reply.body["message"].as_str().unwrap().contains(words), "{method} {path}: {}", reply.body);
        assert_eq!(reply.body["kind"], "Status");
    }
}

#[tokio::test]
async fn updates_need_the_latest_version_and_a_change() {
    let api = with_namespace().await;
    let made = call(&api, "POST", MAPS, map("m")).await.body;
    let path = format!("{MAPS}/m");
    let same = call(&api, "PUT", &path, made.clone()).await;
    assert_eq!(same.body["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"], "nothing changed");
    let mut changed = made.clone();
    changed["data"]["a"] = json!("c");
    let updated = call(&api, "PUT", &path, changed.clone()).await;
    assert_ne!(updated.body["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let stale = call(&api, "PUT", &path, changed).await;
    assert_eq!(stale.code, 409);
    assert!(stale.body["message"].as_str().unwrap().contains("the object has been modified"));
    let pinned = call(&api, "PATCH", &path, json!({"metadata": {"uid": "other"}, "data": {"a": "d"}})).await;
    assert_eq!(pinned.code, 422, "a patch for another object of the name");
    let patched = call(&api, "PATCH", &path, json!({"data": {"a": null, "z": "1"}})).await;
    assert_eq!(patched.body["data"], json!({"z": "1"}));
}

#[tokio::test]
async fn a_status_is_written_at_its_own_door() {
    let api = with_namespace().await;
    call(&api, "POST", PODS, pod("p")).await;
    let (path, status_path) = (format!("{PODS}/p"), format!("{PODS}/p/status"));
    let there = call(&api, "PATCH", &path, json!({"status": {"phase": "Running"}})).await;
    assert_eq!(there.body["status"]["phase"], "Pending");
    let own =
        call(&api, "PATCH", &status_path, json!({"status": {"phase": "Running"}, "spec": {"nodeName": "x"}})).await;
    assert_eq!((&own.body["status"]["phase"], &own.body["spec"]["nodeName"]), (&json!("Running"), &Value::Null));
    assert_eq!(own.body["metadata"]["generation"], 1);
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let api = with_namespace().await;
    call(&api, "POST", PODS, pod("p")).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "a"}});
    assert_eq!(call(&api, "POST", &format!("{PODS}/p/binding"), binding.clone()).await.code, 201);
    let again = call(&api, "POST", &format!("{PODS}/p/binding"), binding).await;
    assert_eq!(again.code, 409);
    assert!(again.body["message"].as_str().unwrap().contains("already assigned to node \"a\""));
    let bound = call(&api, "GET", &format!("{PODS}/p"), Value::Null).await.body;
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["status"]["conditions"][0]["type"]),
        (&json!("a"), &json!("PodScheduled"))
    );
}

#[tokio::test]
async fn deletion_waits_for_grace_and_finalizers() {
    let api = with_namespace().await;
    let path = format!("{PODS}/p");
    call(&api, "POST", PODS, pod("p")).await;
    call(&api, "POST", &format!("{path}/binding"), json!({"metadata": {"name": "p"}, "target": {"name": "a"}})).await;
    let lingering = call(&api, "DELETE", &path, json!({"gracePeriodSeconds": 20})).await.body;
    assert_eq!(lingering["metadata"]["deletionGracePeriodSeconds"], 20);
    let longer = call(&api, "DELETE", &path, json!({"gracePeriodSeconds": 60})).await.body;
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 20, "grace may only be shortened");
    let wrong = call(&api, "DELETE", &path, json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "x"}})).await;
    assert_eq!(wrong.code, 409);
    let gone = call(&api, "DELETE", &path, json!({"gracePeriodSeconds": 0})).await;
    assert_eq!((gone.code, &gone.body["metadata"]["name"]), (200, &json!("p")), "a pod's end is answered with the pod");
    assert_eq!(call(&api, "GET", &path, Value::Null).await.code, 404);

    let held = json!({"metadata": {"name": "h", "finalizers": ["x/y"]}});
    call(&api, "POST", MAPS, held).await;
    let lingering = call(&api, "DELETE", &format!("{MAPS}/h"), Value::Null).await.body;
    assert!(!lingering["metadata"]["deletionTimestamp"].is_null());
    let more = call(&api, "PATCH", &format!("{MAPS}/h"), json!({"metadata": {"finalizers": ["x/y", "z/z"]}})).await;
    assert_eq!(more.code, 422);
    call(&api, "PATCH", &format!("{MAPS}/h"), json!({"metadata": {"finalizers": []}})).await;
    assert_eq!(call(&api, "GET", &format!("{MAPS}/h"), Value::Null).await.code, 404);

    let orphaned = call(&api, "DELETE", "/api/v1/namespaces/n", Value::Null).await.body;
    assert_eq!(orphaned["status"]["phase"], "Terminating");
    assert_eq!(call(&api, "POST", MAPS, map("late")).await.code, 403);
    call(&api, "PUT", "/api/v1/namespaces/n/finalize", json!({"metadata": {"name": "n"}, "spec": {"finalizers": []}}))
        .await;
    assert_eq!(call(&api, "GET", "/api/v1/namespaces/n", Value::Null).await.code, 404);
}

#[tokio::test]
async fn addresses_and_ports_are_given_once() {
    let api = with_namespace().await;
    let service = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let fixed = json!({"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [{"port": 80, "nodePort": 30005}]});
    assert_eq!(call(&api, "POST", SERVICES, service("a", fixed.clone())).await.code, 201);
    let taken = call(&api, "POST", SERVICES, service("b", fixed)).await;
    assert_eq!(taken.code, 422);
    assert!(taken.body["message"].as_str().unwrap().contains("provided IP is already allocated"), "{}", taken.body);
    let port = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30005}]});
    assert!(
        call(&api, "POST", SERVICES, service("b", port)).await.body["message"]
            .as_str()
            .unwrap()
            .contains("provided port is already allocated")
    );
    let outside = json!({"clusterIP": "10.97.0.1", "ports": [{"port": 80}]});
    assert!(
        call(&api, "POST", SERVICES, service("b", outside)).await.body["message"]
            .as_str()
            .unwrap()
            .contains("the provided network does not match the current range")
    );
    let free =
        call(&api, "POST", SERVICES, service("b", json!({"type": "NodePort", "ports": [{"port": 80}]}))).await.body;
    assert!(free["spec"]["clusterIP"].as_str().unwrap().starts_with("10.96.0."));
    assert!((30000..=30009).contains(&free["spec"]["ports"][0]["nodePort"].as_i64().unwrap()));
    // A refused or deleted service keeps nothing.
    call(&api, "DELETE", &format!("{SERVICES}/a"), Value::Null).await;
    let again = json!({"clusterIP": "10.96.0.9", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30005}]});
    assert_eq!(call(&api, "POST", SERVICES, service("c", again)).await.code, 201);
    let headless =
        call(&api, "POST", SERVICES, service("d", json!({"clusterIP": "None", "selector": {"a": "b"}}))).await.body;
    assert_eq!(headless["spec"]["clusterIP"], "None");
}

#[tokio::test]
async fn lists_are_paged_and_selected() {
    let api = with_namespace().await;
    for i in 0..5 {
        let mut object = map(&format!("m{i}"));
        object["metadata"]["labels"] = json!({"odd": (i % 2 == 1).to_string()});
        call(&api, "POST", MAPS, object).await;
    }
    let names = |reply: &Reply| -> Vec<String> {
        reply.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let odd = call(&api, "GET", &format!("{MAPS}?labelSelector=odd%3Dtrue"), Value::Null).await;
    assert_eq!(names(&odd), ["m1", "m3"]);
    let first = call(&api, "GET", &format!("{MAPS}?limit=2"), Value::Null).await;
    assert_eq!(
        (names(&first), &first.body["metadata"]["remainingItemCount"]),
        (vec!["m0".to_owned(), "m1".to_owned()], &json!(3))
    );
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = call(&api, "GET", &format!("{MAPS}?limit=9&continue={token}"), Value::Null).await;
    assert_eq!(names(&second), ["m2", "m3", "m4"]);
    let table = send(
        &api,
        &User::internal("t"),
        "GET",
        MAPS,
        "",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        "",
    )
    .await;
    assert_eq!((&table.body["kind"], table.body["rows"].as_array().unwrap().len()), (&json!("Table"), 5));
    assert_eq!(table.body["rows"][0]["cells"][1], 1);
    let deleted = call(&api, "DELETE", &format!("{MAPS}?labelSelector=odd%3Dtrue"), Value::Null).await;
    assert_eq!(names(&deleted), ["m1", "m3"]);
}

#[tokio::test]
async fn strangers_get_nothing() {
    let api = with_namespace().await;
    rbac::add_default_roles(&api).await;
    let nobody = User::anonymous();
    let to = |user: User, path: &'static str| {
        let api = api.clone();
        async move { send(&api, &user, "GET", path, "", "*/*", "").await.code }
    };
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(to(nobody.clone(), path).await, 200, "{path}");
    }
    for path in ["/api/v1/pods", "/apis", "/openapi/v3"] {
        assert_eq!(to(nobody.clone(), path).await, 401, "{path}");
    }
    let eve = User { name: "eve".into(), ..User::default() };
    let refused = send(&api, &eve, "GET", MAPS, "", "*/*", "").await;
    assert_eq!(refused.code, 403);
    assert!(
        refused.body["message"]
            .as_str()
            .unwrap()
            .contains("User \"eve\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"n\""),
        "{}",
        refused.body
    );
    let large = "x".repeat((3 << 20) + 1);
    let too_large = send(&api, &User::internal("t"), "POST", MAPS, "application/json", "*/*", &large).await;
    assert_eq!(StatusCode::from_u16(too_large.code).unwrap(), StatusCode::PAYLOAD_TOO_LARGE);
    let protobuf = send(&api, &User::internal("t"), "POST", MAPS, "text/plain", "*/*", "x").await;
    assert_eq!(protobuf.code, 415);
}

#[tokio::test]
async fn an_ordinary_client_works_in_process() {
    let api = with_namespace().await;
    let client = Client::new(api.router().layer(axum::Extension(User::internal("test"))), "n");
    let maps: KubeApi<ConfigMap> = KubeApi::namespaced(client.clone(), "n");
    let object: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "m", "labels": {"a": "b"}}})).unwrap();
    let made = maps.create(&PostParams::default(), &object).await.unwrap();
    let revision = made.metadata.resource_version.clone().unwrap();
    assert_eq!(maps.list(&ListParams::default().labels("a=b")).await.unwrap().items.len(), 1);

    let mut events = maps.watch(&WatchParams::default().labels("a=b"), &revision).await.unwrap().boxed();
    // An object that ceases to match is deleted for this watcher, and one that begins to match is added.
    maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"a": "c"}}}))).await.unwrap();
    maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}))).await.unwrap();
    maps.delete("m", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let event = tokio::time::timeout(Duration::from_secs(5), events.try_next()).await.unwrap().unwrap().unwrap();
        seen.push(match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Deleted(_) => "deleted",
            WatchEvent::Modified(_) => "modified",
            _ => "other",
        });
    }
    assert_eq!(seen, ["deleted", "added", "deleted"]);
    let pods: KubeApi<Pod> = KubeApi::all(client);
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn send_initial_events_lists_and_sends_a_bookmark() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    let path = format!(
        "{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    let request = Request::builder().uri(path).extension(User::internal("t")).body(Body::empty()).unwrap();
    let response = api.router().oneshot(request).await.unwrap();
    // It ends by itself after its second.
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let events: Vec<Value> =
        String::from_utf8_lossy(&bytes).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(events[0]["type"], "ADDED");
    assert_eq!(events[1]["type"], "BOOKMARK");
    assert_eq!(events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let forbidden = call(&api, "GET", &format!("{MAPS}?watch=true&sendInitialEvents=true"), Value::Null).await;
    assert_eq!(forbidden.code, 422);
}
