//! Definitions and objects that take long, that end while they are used, and whose end others want to prevent.

use std::collections::BTreeSet;

use super::*;
use crate::{
    apiextensions::definition::resource_of,
    apiserver::{
        tests::{
            Watching,
            long_work::{hold, until_waiting},
        },
        types::Version,
    },
    store::{Expected, Key, Write},
};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";
const CHAIN: &str = "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))";

/// A definition of widgets whose `spec` has these properties.
fn with_spec(properties: &Value) -> Value {
    let mut definition = definition("widgets", "Widget");
    for version in definition["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}});
        version.as_object_mut().unwrap().remove("selectableFields");
        version["subresources"].as_object_mut().unwrap().remove("scale");
    }
    definition
}

fn served(api: &Instance) -> std::sync::Arc<Version> {
    let catalog = api.api.catalogs().current();
    catalog.find("test.example", "v1", "widgets").cloned().unwrap()
}

/// Every worker of the runtime has something to do if the only one is busy: an answer to somebody else comes before the end of
/// the long work, and not after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn schemas_that_take_long_hold_up_nobody() {
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    let numbers = json!({"type": "array", "maxItems": 60, "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": CHAIN, "message": "no number may be negative"}]});
    let text = json!({"type": "string", "pattern": "^(a?b?c?d?){500}x$"});
    establish(&api, with_spec(&json!({"numbers": numbers, "text": text}))).await;
    assert_eq!(call(&api, "POST", WIDGETS, widget("first", json!({"numbers": [1], "text": "ax"}))).await.code, 201);
    // Of -1 three in a row alone are negative, which come last.
    let many = |last: i64| json!({"numbers": (2..41).chain([last]).collect::<Vec<i64>>()});
    let long = |end: &str| json!({"text": "abcd".repeat(400) + end});
    for (name, spec, refused) in [
        ("a", many(1), ""),
        ("b", many(-1), "no number may be negative"),
        ("c", long("x"), ""),
        ("d", long("y"), "should match"),
    ] {
        let held = hold().await;
        let write = {
            let (api, spec) = (api.clone(), spec);
            tokio::spawn(async move { call(&api, "POST", WIDGETS, widget(name, spec)).await })
        };
        until_waiting(&write).await;
        let other = api.clone();
        let read = tokio::spawn(async move { call(&other, "GET", &format!("{WIDGETS}/first"), Value::Null).await });
        assert_eq!(read.await.unwrap().code, 200);
        assert!(!write.is_finished(), "{name} is validated on the thread that has answered the read");
        drop(held);
        let written = write.await.unwrap();
        assert_eq!(written.code, if refused.is_empty() { 201 } else { 422 }, "{}", written.body);
        assert!(written.body["message"].as_str().unwrap_or("").contains(refused), "{}", written.body);
    }
}

/// Upstream goes on for minutes; the object is refused before anything is matched.
#[tokio::test]
async fn a_pattern_that_would_take_minutes_refuses() {
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    establish(&api, with_spec(&json!({"text": {"type": "string", "pattern": "^(abcdefghij){1000}$"}}))).await;
    let refused = call(&api, "POST", WIDGETS, widget("w", json!({"text": "abcdefghij".repeat(250_000)}))).await;
    let message = refused.body["message"].as_str().unwrap_or("");
    assert!(refused.code == 422 && message.contains("regular expressions of the schema take too long"), "{message}");
    let fine = call(&api, "POST", WIDGETS, widget("w", json!({"text": "abcdefghij".repeat(1000)}))).await;
    assert_eq!(fine.code, 201, "{}", fine.body);
}

/// Definitions of operators have up to a megabyte and more.
#[tokio::test]
async fn a_definition_of_over_a_megabyte_is_published_and_compiled_when_it_is_used() {
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    let property = |at: usize| {
        let mut field = json!({"type": "string", "maxLength": 50, "description": "What it is for. ".repeat(32)});
        if at.is_multiple_of(10) {
            field["x-kubernetes-validations"] = json!([{"rule": "self != 'bad'"}]);
        }
        (format!("field{at}"), field)
    };
    let properties = Value::Object((0..2400).map(property).collect());
    let mut definition = with_spec(&properties);
    definition["spec"]["versions"].as_array_mut().unwrap().truncate(1);
    let size = definition.to_string().len();
    assert!(size > 1_300_000 && size < 1_600_000, "{size}");
    establish(&api, definition).await;
    let document = call(&api, "GET", "/openapi/v3/apis/test.example/v1", Value::Null).await.body;
    let schema = &document["components"]["schemas"]["example.test.v1.Widget"]["properties"]["spec"]["properties"];
    assert_eq!(schema.as_object().map(serde_json::Map::len), Some(2400));
    assert!(!served(&api).spec.schema.is_compiled());
    for (value, code) in [("good", 201), ("bad", 422)] {
        let reply = call(&api, "POST", WIDGETS, widget("w", json!({"field70": value}))).await;
        assert_eq!(reply.code, code, "{}", reply.body);
        assert!(served(&api).spec.schema.is_compiled());
    }
}

const MANY: usize = 10_000;

/// While clients watch: they see each deletion, and their watches end with the definition.
#[tokio::test]
async fn a_definition_ends_with_ten_thousand_objects() {
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    establish(&api, definition("widgets", "Widget")).await;
    let resource = api.store().resource("widgets.test.example");
    for at in 0..MANY {
        let name = format!("w{at}");
        let value = json!({"apiVersion": "test.example/v1", "kind": "Widget", "spec": {"size": 1, "colour": "red"},
            "metadata": {"name": name, "namespace": "n", "uid": name, "creationTimestamp": "2020-01-01T00:00:00Z"}});
        let key = Key { namespace: "n".to_owned(), name };
        let (expected, value) = (Expected::Absent, Some(value));
        let write = Write { resource, key, expected, value, guards: Vec::new(), companions: Vec::new() };
        api.store().write(write).await.unwrap();
    }
    let from = api.store().revision();
    let mut watches = Vec::new();
    for version in ["v1", "v1beta1"] {
        let path = format!("/apis/test.example/{version}/widgets?watch=1&resourceVersion={from}");
        watches.push(tokio::spawn(Watching::open(&api, path).await.until_end()));
    }
    let path = format!("{DEFINITIONS}/widgets.test.example");
    assert_eq!(call(&api, "DELETE", &path, Value::Null).await.code, 200);
    // As long as it takes.
    while call(&api, "GET", &path, Value::Null).await.code != 404 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for watch in watches {
        let seen = watch.await.unwrap();
        let other = seen.iter().find(|event| event["type"] != "DELETED");
        assert!(other.is_none(), "{other:?}");
        let names: BTreeSet<_> = seen.iter().map(|event| event["object"]["metadata"]["name"].as_str()).collect();
        assert_eq!(names.len(), MANY);
    }
    assert_eq!(api.store().list(resource, None).0.len(), 0);
    // Another one of the name begins with nothing.
    establish(&api, definition("widgets", "Widget")).await;
    let list = call(&api, "GET", WIDGETS, Value::Null).await.body;
    assert_eq!(list["items"], json!([]));
    assert_eq!(call(&api, "GET", &format!("{WIDGETS}/w1"), Value::Null).await.code, 404);
}

/// A watch of what a name meant before does not go on with what it means now.
#[tokio::test]
async fn a_watch_ends_with_its_definition_also_if_another_one_has_the_name() {
    let api = with_namespace().await;
    let stop = serve(&api).drop_guard();
    establish(&api, definition("widgets", "Widget")).await;
    let watch = tokio::spawn(Watching::open(&api, format!("{WIDGETS}?watch=1")).await.until_end());
    let path = format!("{DEFINITIONS}/widgets.test.example");
    let mut other = call(&api, "GET", &path, Value::Null).await.body;
    drop(stop);
    // What serves definitions has not seen one without the other.
    other["metadata"]["uid"] = json!("other");
    api.api.catalogs().put("widgets.test.example", resource_of(&other, &api.conversion_webhooks));
    let seen = watch.await.unwrap();
    assert!(seen.is_empty(), "{seen:?}");
}

fn policy(rules: &Value, expression: &str) -> [(String, Value); 2] {
    let spec = json!({"matchConstraints": {"resourceRules": [rules]}, "validations": [{"expression": expression}]});
    let binding = json!({"policyName": "p", "validationActions": ["Deny"]});
    [("validatingadmissionpolicies", spec), ("validatingadmissionpolicybindings", binding)]
        .map(|(kind, spec)| (format!("{POLICIES}/{kind}"), json!({"metadata": {"name": "p"}, "spec": spec})))
}

/// Upstream's finalizer of definitions deletes objects below admission.
#[tokio::test]
async fn nobody_keeps_the_objects_of_a_definition_that_ends() {
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    establish(&api, definition("widgets", "Widget")).await;
    assert_eq!(call(&api, "POST", WIDGETS, widget("w", json!({"size": 1}))).await.code, 201);
    let rules =
        json!({"operations": ["DELETE"], "apiGroups": ["test.example"], "apiVersions": ["*"], "resources": ["*"]});
    for (path, object) in policy(&rules, "false") {
        assert_eq!(call(&api, "POST", &path, object).await.code, 201);
    }
    assert_eq!(call(&api, "DELETE", &format!("{WIDGETS}/w"), Value::Null).await.code, 422);
    let path = format!("{DEFINITIONS}/widgets.test.example");
    assert_eq!(call(&api, "DELETE", &path, Value::Null).await.code, 200);
    until(&api, &path, |reply| reply.code == 404).await;
}

/// A policy may deny what the API's own controllers write; they go on once it is gone, and it can always be deleted.
#[tokio::test]
async fn controllers_recover_from_a_policy_that_denies_their_writes() {
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    let rules = json!({"operations": ["UPDATE"], "apiGroups": ["apiextensions.k8s.io"], "apiVersions": ["*"],
        "resources": ["customresourcedefinitions/status"]});
    for (path, object) in policy(&rules, "request.userInfo.username != 'system:apiserver'") {
        assert_eq!(call(&api, "POST", &path, object).await.code, 201);
    }
    let path = format!("{DEFINITIONS}/widgets.test.example");
    assert_eq!(call(&api, "POST", DEFINITIONS, definition("widgets", "Widget")).await.code, 201);
    // It was tried once at least: the tries of others are none of the policy's business.
    let denied = || api.metrics().page(windlass_kit::prometheus::Format::Plain).contains("enforcement_action=\"deny\"");
    while !denied() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let waiting = call(&api, "GET", &path, Value::Null).await.body;
    assert_eq!(condition(&waiting, "Established"), ("", ""), "{waiting}");
    assert_eq!(call(&api, "DELETE", &format!("{POLICIES}/validatingadmissionpolicies/p"), Value::Null).await.code, 200);
    until(&api, &path, |reply| condition(&reply.body, "Established").0 == "True").await;
    assert_eq!(call(&api, "POST", WIDGETS, widget("w", json!({"size": 1}))).await.code, 201);
}
