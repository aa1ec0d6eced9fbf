//! Custom resources over the router, with the task that serves them.

mod conversion;
mod faults;
mod metadata;
mod rules;
mod versions;

use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::CustomResources;
use crate::{
    apiserver::{
        User,
        tests::{Reply, api, api_over, call, send, with_namespace},
    },
    control_plane::instance::Instance,
    store::Memory,
};

pub(super) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/test.example/v1/namespaces/n/widgets";

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "replicas": {"type": "integer"},
        }},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
    }})
}

pub(super) fn definition(plural: &str, kind: &str) -> Value {
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema()},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            "selectableFields": [{"jsonPath": ".spec.colour"}],
        })
    };
    json!({
        "metadata": {"name": format!("{plural}.test.example")},
        "spec": {"group": "test.example", "scope": "Namespaced", "names": {"plural": plural, "kind": kind, "shortNames": [&kind[..1].to_lowercase()]},
            "versions": [version("v1", true), version("v1beta1", false)]},
    })
}

/// Starts the task that serves custom resources.
fn serve(api: &Instance) -> CancellationToken {
    let stop = CancellationToken::new();
    let client = kube::Client::new(api.router().layer(axum::Extension(User::api_server())), "default");
    let (custom_resources, token) = (CustomResources::load(api, &api.conversion_webhooks), stop.clone());
    let (aggregator, own) = (api.aggregator.clone(), client.clone());
    tokio::spawn(async move { tokio::join!(custom_resources.run(client, token.clone()), aggregator.run(own, token)) });
    stop
}

/// The reply to a GET once `done` holds.
async fn until(api: &Instance, path: &str, done: impl Fn(&Reply) -> bool) -> Reply {
    for _ in 0..500 {
        let reply = call(api, "GET", path, Value::Null).await;
        if done(&reply) {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{path} did not become what it should: {}", call(api, "GET", path, Value::Null).await.body);
}

fn condition<'a>(object: &'a Value, kind: &str) -> (&'a str, &'a str) {
    let found = object["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == kind);
    found.map_or(("", ""), |c| (c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()))
}

async fn establish(api: &Instance, definition: Value) -> Value {
    let made = call(api, "POST", DEFINITIONS, definition).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let path = format!("{DEFINITIONS}/{}", made.body["metadata"]["name"].as_str().unwrap());
    until(api, &path, |reply| condition(&reply.body, "Established").0 == "True").await.body
}

/// Serves the definitions of these paths until the guard is dropped.
pub(crate) async fn establish_all(api: &Instance, definitions: &[String]) -> Option<DropGuard> {
    let stop = (!definitions.is_empty()).then(|| serve(api).drop_guard());
    for path in definitions {
        until(api, path, |reply| condition(&reply.body, "Established").0 == "True").await;
    }
    stop
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "test.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn a_definition_is_established_and_served() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    assert_eq!(call(&api, "GET", WIDGETS, Value::Null).await.code, 404);
    let established = establish(&api, definition("widgets", "Widget")).await;
    assert_eq!(condition(&established, "NamesAccepted"), ("True", "NoConflicts"));
    assert_eq!(established["status"]["acceptedNames"]["listKind"], "WidgetList");
    assert_eq!(established["status"]["storedVersions"], json!(["v1"]));

    let group = call(&api, "GET", "/apis/test.example", Value::Null).await.body;
    assert_eq!(group["preferredVersion"]["version"], "v1");
    assert_eq!(group["versions"].as_array().unwrap().len(), 2);
    let list = call(&api, "GET", "/apis/test.example/v1", Value::Null).await.body;
    let names: Vec<&str> = list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    let document = call(&api, "GET", "/openapi/v3/apis/test.example/v1", Value::Null).await.body;
    let size = &document["components"]["schemas"]["example.test.v1.Widget"]["properties"]["spec"]["properties"]["size"];
    assert_eq!(size["type"], "integer", "{document}");
    let both = call(&api, "GET", "/openapi/v2", Value::Null).await.body;
    for (schemas, kind) in [
        (&document["components"]["schemas"], "Widget"),
        (&document["components"]["schemas"], "WidgetList"),
        (&both["definitions"], "Widget"),
        (&both["definitions"], "WidgetList"),
    ] {
        let selectable = &schemas[format!("example.test.v1.{kind}")]["x-kubernetes-selectable-fields"];
        assert_eq!(*selectable, json!([{"fieldPath": "spec.colour"}]), "{kind}");
    }

    let made = call(&api, "POST", WIDGETS, widget("a", json!({"size": 2}))).await;
    assert_eq!((made.code, &made.body["spec"]), (201, &json!({"size": 2, "colour": "red"})), "{}", made.body);
    assert_eq!(made.body["metadata"]["generation"], 1);
    let other = call(&api, "GET", "/apis/test.example/v1beta1/namespaces/n/widgets/a", Value::Null).await.body;
    assert_eq!((&other["apiVersion"], &other["spec"]), (&json!("test.example/v1beta1"), &made.body["spec"]));
    let list = call(&api, "GET", &format!("{WIDGETS}?fieldSelector=spec.colour%3Dred"), Value::Null).await.body;
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("WidgetList"), 1));
    // Lists of custom resources are not typed.
    assert_eq!(list["items"][0]["kind"], "Widget");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = send(&api, &User::internal("t"), "GET", WIDGETS, "", table, "").await.body;
    assert_eq!(table["rows"][0]["cells"], json!(["a", 2]), "{table}");
}

#[tokio::test]
async fn each_version_of_a_group_has_its_api_service_while_it_is_served() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, definition("widgets", "Widget")).await;
    establish(&api, definition("gadgets", "Gadget")).await;
    let path = |version: &str| format!("/apis/apiregistration.k8s.io/v1/apiservices/{version}.test.example");
    for version in ["v1", "v1beta1"] {
        let service = until(&api, &path(version), |reply| reply.code == 200).await.body;
        assert_eq!(condition(&service, "Available"), ("True", "Local"));
        assert_eq!(service["spec"]["groupPriorityMinimum"], 1000, "{service}");
    }
    call(&api, "DELETE", &format!("{DEFINITIONS}/widgets.test.example"), Value::Null).await;
    until(&api, WIDGETS, |reply| reply.code == 404).await;
    assert_eq!(call(&api, "GET", &path("v1"), Value::Null).await.code, 200, "the other kind is there");
    call(&api, "DELETE", &format!("{DEFINITIONS}/gadgets.test.example"), Value::Null).await;
    until(&api, &path("v1"), |reply| reply.code == 404).await;
}

#[tokio::test]
async fn custom_objects_are_pruned_defaulted_and_validated() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, definition("widgets", "Widget")).await;
    let unknown = call(&api, "POST", WIDGETS, widget("a", json!({"size": 1, "weight": 5}))).await;
    assert_eq!((unknown.code, &unknown.body["spec"]["weight"]), (201, &Value::Null), "{}", unknown.body);
    assert!(unknown.warnings.iter().any(|w| w.contains("spec.weight")), "{:?}", unknown.warnings);
    for (spec, words) in [
        (json!({}), "spec.size: Required value"),
        (json!({"size": 0}), "spec.size: Invalid value: 0"),
        (json!({"size": 1, "colour": "green"}), "spec.colour: Unsupported value: \"green\""),
        (json!({"size": "big"}), "spec.size: Invalid value: \"string\""),
    ] {
        let refused = call(&api, "POST", WIDGETS, widget("b", spec.clone())).await;
        assert_eq!(refused.code, 422, "{spec}: {}", refused.body);
        assert!(refused.body["message"].as_str().unwrap().contains(words), "{spec}: {}", refused.body);
    }
    let path = format!("{WIDGETS}/a");
    let status =
        call(&api, "PATCH", &format!("{path}/status"), json!({"spec": {"size": 9}, "status": {"phase": "On"}})).await;
    assert_eq!((&status.body["spec"]["size"], &status.body["status"]["phase"]), (&json!(1), &json!("On")));
    assert_eq!(status.body["metadata"]["generation"], 1);
    let scaled = call(&api, "PATCH", &format!("{path}/scale"), json!({"spec": {"replicas": 3}})).await;
    assert_eq!((scaled.code, &scaled.body["spec"]["replicas"]), (200, &json!(3)), "{}", scaled.body);
    let got = call(&api, "GET", &path, Value::Null).await.body;
    assert_eq!((&got["spec"]["replicas"], &got["metadata"]["generation"]), (&json!(3), &json!(2)));
    let patch = "application/strategic-merge-patch+json";
    assert_eq!(send(&api, &User::internal("t"), "PATCH", &path, patch, "*/*", "{}").await.code, 415);
    let plain = call(&api, "PUT", &path, widget("a", json!({"size": 1}))).await;
    assert!(plain.body["message"].as_str().unwrap().contains("Invalid value: 0x0: must be specified for an update"));
}

/// Names do not make a kind: what the server does to pods and services it does to those of the core group.
#[tokio::test]
async fn a_custom_service_gets_no_address_and_a_custom_pod_no_grace() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    for (plural, kind) in [("services", "Service"), ("pods", "Pod")] {
        let mut defined = definition(plural, kind);
        for version in defined["spec"]["versions"].as_array_mut().unwrap() {
            version["schema"]["openAPIV3Schema"] = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
            version.as_object_mut().unwrap().remove("selectableFields");
        }
        defined["spec"]["names"]["shortNames"] = json!([]);
        establish(&api, defined).await;
        let path = format!("/apis/test.example/v1/namespaces/n/{plural}");
        let object = json!({"apiVersion": "test.example/v1", "kind": kind, "metadata": {"name": "x"},
            "spec": {"ports": [{"port": 80}], "nodeName": "a", "terminationGracePeriodSeconds": 30}});
        let made = call(&api, "POST", &path, object.clone()).await;
        assert_eq!((made.code, &made.body["spec"]), (201, &object["spec"]), "{}", made.body);
        let gone = call(&api, "DELETE", &format!("{path}/x"), Value::Null).await;
        assert_eq!((gone.code, &gone.body["kind"]), (200, &json!("Status")), "{}", gone.body);
    }
}

#[tokio::test]
async fn of_two_definitions_the_first_has_the_name() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, definition("widgets", "Widget")).await;
    let second = definition("windows", "Window");
    call(&api, "POST", DEFINITIONS, second).await;
    let path = format!("{DEFINITIONS}/windows.test.example");
    let refused = until(&api, &path, |reply| condition(&reply.body, "NamesAccepted").0 == "False").await.body;
    assert_eq!(condition(&refused, "NamesAccepted").1, "ShortNamesConflict");
    assert_eq!(condition(&refused, "Established"), ("False", "NotAccepted"));
    assert_eq!(call(&api, "GET", "/apis/test.example/v1/windows", Value::Null).await.code, 404);
    call(&api, "DELETE", &format!("{DEFINITIONS}/widgets.test.example"), Value::Null).await;
    until(&api, &path, |reply| condition(&reply.body, "Established").0 == "True").await;
}

#[tokio::test]
async fn a_definition_ends_with_its_objects() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, definition("widgets", "Widget")).await;
    let mut held = widget("held", json!({"size": 1}));
    held["metadata"]["finalizers"] = json!(["x/y"]);
    for object in [widget("a", json!({"size": 1})), held] {
        assert_eq!(call(&api, "POST", WIDGETS, object).await.code, 201);
    }
    let path = format!("{DEFINITIONS}/widgets.test.example");
    let begun = call(&api, "DELETE", &path, Value::Null).await.body;
    assert_eq!(condition(&begun, "Terminating"), ("True", "InstanceDeletionPending"));
    until(&api, &format!("{WIDGETS}/a"), |reply| reply.code == 404).await;
    let refused = call(&api, "POST", WIDGETS, widget("b", json!({"size": 1}))).await;
    assert!(
        refused.body["message"]
            .as_str()
            .unwrap()
            .contains("not allowed while custom resource definition is terminating"),
        "{}",
        refused.body
    );
    assert_eq!(call(&api, "GET", &path, Value::Null).await.code, 200, "an object is held by its finalizer");
    call(&api, "PATCH", &format!("{WIDGETS}/held"), json!({"metadata": {"finalizers": []}})).await;
    until(&api, &path, |reply| reply.code == 404).await;
    until(&api, "/apis/test.example", |reply| reply.code == 404).await;
}

#[tokio::test]
async fn custom_resources_are_there_again_after_a_restart() {
    let memory = Memory::default();
    let api = api_over(&memory);
    let stop = serve(&api);
    call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    establish(&api, definition("widgets", "Widget")).await;
    let made = call(&api, "POST", WIDGETS, widget("a", json!({"size": 2}))).await.body;
    stop.cancel();
    api.store().close().await.unwrap();
    let api = api_over(&memory);
    CustomResources::load(&api, &api.conversion_webhooks);
    assert_eq!(call(&api, "GET", &format!("{WIDGETS}/a"), Value::Null).await.body, made);
}

#[tokio::test]
async fn definitions_are_refused_in_upstreams_words() {
    let api = api();
    for (pointer, value, words) in [
        ("/metadata/name", json!("x.test.example"), "must be spec.names.plural+\".\"+spec.group"),
        ("/spec/group", json!("example"), "should be a domain with at least one dot"),
        ("/spec/scope", json!("Galaxy"), "spec.scope: Unsupported value: \"Galaxy\""),
        ("/spec/versions/1/storage", json!(true), "must have exactly one version marked as storage version"),
        ("/spec/versions/1/name", json!("v1"), "must contain unique version names"),
        ("/spec/versions/0/schema", json!({}), "spec.versions[0].schema.openAPIV3Schema: Required value"),
        ("/spec/versions/0/schema/openAPIV3Schema/type", json!("string"), "must be object"),
        ("/spec/preserveUnknownFields", json!(true), "cannot set to true"),
        ("/spec/names/listKind", json!("Widget"), "kind and listKind may not be the same"),
        (
            "/spec/versions/0/subresources/scale/specReplicasPath",
            json!(".status.x"),
            "should be a json path under .spec",
        ),
        (
            "/spec/versions/0/selectableFields/0/jsonPath",
            json!(".metadata.name"),
            "spec.versions[0].selectableFields: Invalid value: \"\": may only be set when",
        ),
    ] {
        let mut wrong = definition("widgets", "Widget");
        let (holder, field) = pointer.rsplit_once('/').unwrap();
        wrong.pointer_mut(holder).unwrap()[field] = value;
        let refused = call(&api, "POST", DEFINITIONS, wrong).await;
        assert_eq!(refused.code, 422, "{pointer}: {}", refused.body);
        assert!(refused.body["message"].as_str().unwrap().contains(words), "{pointer}: {}", refused.body);
    }
}
