//! Conversion webhooks, with a server of their own.

use futures::FutureExt as _;
use serde_json::{Value, json};

use super::{DEFINITIONS, establish, serve};
use crate::{
    apiserver::tests::{Reply, Watching, call, send, text, with_namespace},
    control_plane::instance::Instance,
    plugin::admission::webhook::tests::{Act, WebhookServer},
};

const FIRST: &str = "/apis/test.example/v1/namespaces/n/bolts";
const SECOND: &str = "/apis/test.example/v2/namespaces/n/bolts";

/// Two versions: the length is a number in v1, which is stored, and a text in v2.
fn bolts(server: &WebhookServer) -> Value {
    let version = |name: &str, field: &str, kind: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
        "selectableFields": [{"jsonPath": format!(".spec.{field}")}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {field: {"type": kind}, "head": {"type": "string", "default": name}}},
        }}}})
    };
    let webhook = json!({"clientConfig": server.client_config("/convert"), "conversionReviewVersions": ["v2", "v1"]});
    json!({
        "metadata": {"name": "bolts.test.example"},
        "spec": {"group": "test.example", "scope": "Namespaced", "names": {"plural": "bolts", "kind": "Bolt"},
            "versions": [version("v1", "size", "integer", true), version("v2", "length", "string", false)],
            "conversion": {"strategy": "Webhook", "webhook": webhook}},
    })
}

fn bolt(version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("test.example/{version}"), "kind": "Bolt", "metadata": {"name": name}, "spec": spec})
}

/// The object in the version that a review asks for.
fn converted(object: &Value, to: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = to.clone();
    if let Some(spec) = object["spec"].as_object_mut() {
        if let Some(size) = spec.remove("size") {
            spec.insert("length".to_owned(), json!(size.to_string()));
        } else if let Some(length) = spec.remove("length") {
            spec.insert("size".to_owned(), json!(length.as_str().unwrap().parse::<u64>().unwrap()));
        }
    }
    object
}

fn convert(review: &Value) -> Vec<Value> {
    let request = &review["request"];
    let objects = request["objects"].as_array().into_iter().flatten();
    objects.map(|object| converted(object, &request["desiredAPIVersion"])).collect()
}

fn success(objects: &[Value]) -> Act {
    Act::Answer(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

/// How many objects each call since the last question was about, and the version that it asked for.
fn asked(server: &WebhookServer) -> Vec<(usize, String)> {
    let calls = server.calls();
    assert!(calls.iter().all(|(path, _)| path == "/convert?timeout=30s"), "{calls:?}");
    let request = |review: &Value| {
        let version = review["request"]["desiredAPIVersion"].as_str().unwrap().to_owned();
        (review["request"]["objects"].as_array().unwrap().len(), version)
    };
    calls.iter().map(|(_, review)| request(review)).collect()
}

async fn api_and_bolts() -> (Instance, WebhookServer, tokio_util::sync::DropGuard) {
    let (api, server) = (with_namespace().await, WebhookServer::start("127.0.0.1", &[]).await);
    let stop = serve(&api).drop_guard();
    establish(&api, bolts(&server)).await;
    server.decide(|_, review| success(&convert(review)));
    (api, server, stop)
}

async fn apply(api: &Instance, path: &str, manager: &str, object: Value) -> Reply {
    let path = format!("{path}?fieldManager={manager}");
    let user = crate::apiserver::User::internal("test");
    send(api, &user, "PATCH", &path, "application/apply-patch+yaml", "application/json", &object.to_string()).await
}

#[tokio::test]
async fn objects_are_had_in_every_version() {
    let (api, server, _stop) = api_and_bolts().await;
    let made = call(&api, "POST", SECOND, bolt("v2", "a", json!({"length": "3"}))).await;
    // The default is that of the version in which it was written.
    assert_eq!((made.code, &made.body["spec"]), (201, &json!({"length": "3", "head": "v2"})), "{}", made.body);
    let (v1, v2) = ("test.example/v1".to_owned(), "test.example/v2".to_owned());
    assert_eq!(asked(&server), [(1, v1.clone()), (1, v2.clone())]);
    assert_eq!(call(&api, "POST", FIRST, bolt("v1", "b", json!({"size": 4, "head": "x"}))).await.code, 201);
    assert_eq!(asked(&server), [], "it is stored as it came");

    let first = call(&api, "GET", &format!("{FIRST}/a"), Value::Null).await.body;
    assert_eq!((&first["apiVersion"], &first["spec"]), (&json!(v1), &json!({"size": 3, "head": "v2"})));
    let second = call(&api, "GET", &format!("{SECOND}/b"), Value::Null).await.body;
    assert_eq!((&second["apiVersion"], &second["spec"]), (&json!(v2), &json!({"length": "4", "head": "x"})));
    assert_eq!(asked(&server), [(1, v2.clone())]);

    // A list is one call, and only for what is not known yet.
    call(&api, "POST", FIRST, bolt("v1", "c", json!({"size": 5}))).await;
    call(&api, "POST", FIRST, bolt("v1", "d", json!({"size": 6}))).await;
    for query in ["", "?limit=10", "?fieldSelector=spec.length%3D6"] {
        let list = call(&api, "GET", &format!("{SECOND}{query}"), Value::Null).await;
        let lengths: Vec<&Value> =
            list.body["items"].as_array().unwrap().iter().map(|i| &i["spec"]["length"]).collect();
        let all = [json!("3"), json!("4"), json!("5"), json!("6")];
        let wanted: Vec<&Value> = if query.contains("Selector") { vec![&all[3]] } else { all.iter().collect() };
        assert_eq!(lengths, wanted, "{query}: {}", list.body);
    }
    assert_eq!(asked(&server), [(2, v2.clone())]);
    let initial = Watching::open(&api, format!("{SECOND}?watch=true")).await.first(4).await;
    assert_eq!(initial.len(), 4, "{initial:?}");
    let text = json!(initial).to_string();
    assert!(text.contains(r#""length":"6""#) && !text.contains(r#""size":"#), "{text}");

    let changed = call(&api, "PATCH", &format!("{SECOND}/b"), json!({"spec": {"length": "7"}})).await;
    assert_eq!((changed.code, &changed.body["spec"]["length"]), (200, &json!("7")), "{}", changed.body);
    assert_eq!(call(&api, "GET", &format!("{FIRST}/b"), Value::Null).await.body["spec"]["size"], 7);
    let dry = call(&api, "PATCH", &format!("{SECOND}/b?dryRun=All"), json!({"spec": {"length": "8"}})).await;
    assert_eq!((dry.code, &dry.body["spec"]["length"]), (200, &json!("8")), "{}", dry.body);
    server.calls();
    let deleted = call(&api, "DELETE", SECOND, Value::Null).await;
    assert_eq!((deleted.code, deleted.body["items"].as_array().unwrap().len()), (200, 4), "{}", deleted.body);
}

#[tokio::test]
async fn an_event_is_converted_once_for_all_who_watch() {
    let (api, server, _stop) = api_and_bolts().await;
    let revision = call(&api, "GET", FIRST, Value::Null).await.body["metadata"]["resourceVersion"].clone();
    let revision = revision.as_str().unwrap();
    let path = format!("{SECOND}?watch=true&resourceVersion={revision}");
    let selects = format!("{path}&fieldSelector=spec.length%3D1");
    let writer = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        call(&api, "POST", FIRST, bolt("v1", "a", json!({"size": 1}))).await;
        call(&api, "PATCH", &format!("{FIRST}/a"), json!({"spec": {"size": 2}})).await
    };
    let watch = |path: &str| Watching::open(&api, path.to_owned()).then(|watch| watch.first(2));
    let (_, one, two, three) = tokio::join!(writer, watch(&path), watch(&path), watch(&selects));
    for (seen, kinds) in [(one, ["ADDED", "MODIFIED"]), (two, ["ADDED", "MODIFIED"]), (three, ["ADDED", "DELETED"])] {
        let events: Vec<&str> = seen.iter().map(|event| event["type"].as_str().unwrap()).collect();
        let text = json!(seen).to_string();
        assert!(events == kinds && text.contains(r#""f:size""#) && !text.contains(r#"{"head":"v1","size""#), "{text}");
    }
    let calls = asked(&server);
    assert_eq!(calls.iter().map(|(objects, _)| objects).sum::<usize>(), 2, "{calls:?}");
}

#[tokio::test]
async fn fields_are_owned_in_the_version_of_who_wrote_them() {
    let (api, server, _stop) = api_and_bolts().await;
    let one = format!("{FIRST}/a");
    let made = apply(&api, &one, "first", bolt("v1", "a", json!({"size": 1}))).await;
    assert_eq!(made.code, 201, "{}", made.body);
    // The other version's name of the field is the same field.
    let other = format!("{SECOND}/a");
    let refused = apply(&api, &other, "second", bolt("v2", "a", json!({"length": "2"}))).await;
    let why = "Apply failed with 1 conflict: conflict with \"first\": .spec.size";
    assert_eq!((refused.code, &refused.body["message"]), (409, &json!(why)), "{}", refused.body);
    let agrees = apply(&api, &other, "second", bolt("v2", "a", json!({"length": "1", "head": "h"}))).await;
    assert_eq!(agrees.code, 200, "{}", agrees.body);
    let owners = agrees.body["metadata"]["managedFields"].as_array().unwrap();
    let owned = |manager: &str| {
        owners.iter().find(|owner| owner["manager"] == manager).map(|owner| &owner["fieldsV1"]["f:spec"])
    };
    assert_eq!(owned("first"), Some(&json!({"f:size": {}})), "{owners:?}");
    assert_eq!(owned("second"), Some(&json!({"f:length": {}, "f:head": {}})), "{owners:?}");
    // An update in one version takes the field from its owner in the other.
    let changed = call(&api, "PATCH", &format!("{one}?fieldManager=third"), json!({"spec": {"size": 9}})).await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    let owners = changed.body["metadata"]["managedFields"].to_string();
    assert!(owners.contains("third") && !owners.contains("f:length"), "{owners}");
    server.calls();
}

#[tokio::test]
async fn metadata_is_the_originals_but_for_labels_and_annotations() {
    let (api, server, _stop) = api_and_bolts().await;
    let mut object = bolt("v1", "a", json!({"size": 1}));
    object["metadata"]["labels"] = json!({"a": "b"});
    object["metadata"]["annotations"] = json!({"kept": "no"});
    object["metadata"]["finalizers"] = json!(["test.example/f"]);
    assert_eq!(call(&api, "POST", FIRST, object).await.code, 201);
    server.decide(|_, review| {
        let mut objects = convert(review);
        objects[0]["metadata"]["labels"] = json!({"a": "c"});
        let metadata = objects[0]["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| matches!(field.as_str(), "name" | "namespace" | "uid" | "labels"));
        success(&objects)
    });
    let metadata = call(&api, "GET", &format!("{SECOND}/a"), Value::Null).await.body["metadata"].clone();
    assert_eq!((&metadata["labels"], &metadata["annotations"]), (&json!({"a": "c"}), &Value::Null));
    assert_eq!((&metadata["finalizers"], &metadata["generation"]), (&json!(["test.example/f"]), &json!(1)));
    assert!(metadata["managedFields"].is_array() && metadata["resourceVersion"].is_string(), "{metadata}");
}

#[tokio::test]
async fn answers_that_convert_nothing_fail_in_upstreams_words() {
    let (api, server, _stop) = api_and_bolts().await;
    assert_eq!(call(&api, "POST", FIRST, bolt("v1", "a", json!({"size": 1}))).await.code, 201);
    let uid = call(&api, "GET", &format!("{FIRST}/a"), Value::Null).await.body["metadata"]["uid"].clone();
    let uid = uid.as_str().unwrap();
    let changed = |field: &'static str, value: Value| {
        move |review: &Value| {
            let mut objects = convert(review);
            *objects[0].pointer_mut(field).unwrap() = value.clone();
            success(&objects)
        }
    };
    type Answer = Box<dyn Fn(&Value) -> Act + Send + Sync>;
    let cases: Vec<(Answer, String)> = vec![
        (Box::new(|_| Act::Raw(200, "{}".to_owned())), "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /, Kind=".to_owned()),
        (Box::new(|review| Act::Raw(200, json!({"kind": review["kind"], "apiVersion": review["apiVersion"]}).to_string())), "failed: no response provided".to_owned()),
        (Box::new(|_| Act::Answer(json!({"result": {"status": "Failure", "message": "not today"}}))), "failed: not today".to_owned()),
        (Box::new(|_| Act::Answer(json!({}))), "failed: response.result.status was '', not 'Success'".to_owned()),
        (Box::new(|_| success(&[])), "returned 0 objects, expected 1".to_owned()),
        (Box::new(changed("/kind", json!("Nut"))), "returned invalid object at index 0: invalid kind (expected Bolt, received Nut)".to_owned()),
        (Box::new(changed("/apiVersion", json!("test.example/v3"))), "returned invalid object at index 0: invalid groupVersion (expected test.example/v2, received test.example/v3)".to_owned()),
        (Box::new(changed("/metadata/uid", json!("x"))), format!("returned invalid object: must have the same UID: {uid} != x")),
        (Box::new(changed("/metadata/name", json!("x"))), "returned invalid object: must have the same name: a != x".to_owned()),
        (Box::new(changed("/metadata/namespace", json!("x"))), "returned invalid object: must have the same namespace: n != x".to_owned()),
        (
            Box::new(|review| {
                let mut objects = convert(review);
                objects[0]["metadata"]["labels"] = json!({"a": 1});
                success(&objects)
            }),
            "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object".to_owned(),
        ),
        (
            Box::new(|review| {
                let mut objects = convert(review);
                objects[0]["metadata"]["annotations"] = json!([]);
                success(&objects)
            }),
            "returned invalid metadata: invalid metadata.annotations of type []interface {} in converted object".to_owned(),
        ),
        (Box::new(|_| Act::Raw(500, "broken".to_owned())), "failed: an error on the server (\"broken\") has prevented the request from succeeding".to_owned()),
        (Box::new(|_| Act::Raw(200, "x".repeat(8 << 20))), "failed: Post \"https://".to_owned()),
    ];
    for (answer, why) in cases {
        server.decide(move |_, review| answer(review));
        let failed = call(&api, "GET", &format!("{SECOND}/a"), Value::Null).await;
        let message = failed.body["message"].as_str().unwrap_or("");
        let wanted = format!("conversion webhook for test.example/v1, Kind=Bolt {why}");
        assert!(failed.code == 500 && message.starts_with(&wanted), "{wanted}\n{}", failed.body);
    }
    // What has failed is not kept.
    server.decide(|_, review| success(&convert(review)));
    assert_eq!(call(&api, "GET", &format!("{SECOND}/a"), Value::Null).await.code, 200);
    let page = text(&api, "/metrics").await;
    for line in [
        r#"apiserver_conversion_webhook_request_total{result="success",failure_type=""} 1"#,
        r#"apiserver_conversion_webhook_request_total{result="failure",failure_type="conversion_webhook_partial_response_failure"} 1"#,
        r#"apiserver_crd_conversion_webhook_duration_seconds_count{crd_name="bolts.test.example",from_version="v1",to_version="v2",succeeded="true"} 1"#,
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[tokio::test]
async fn a_webhook_of_other_reviews_is_not_called() {
    let (api, server) = (with_namespace().await, WebhookServer::start("127.0.0.1", &[]).await);
    let _stop = serve(&api).drop_guard();
    let mut definition = bolts(&server);
    definition["spec"]["conversion"]["webhook"]["conversionReviewVersions"] = json!(["v1beta1"]);
    establish(&api, definition).await;
    // The older review needs neither its kind nor the uid in the answer.
    server.decide(|_, review| {
        let objects = convert(review);
        let response = json!({"result": {"status": "Success"}, "convertedObjects": objects});
        Act::Raw(200, json!({"response": response}).to_string())
    });
    assert_eq!(call(&api, "POST", SECOND, bolt("v2", "a", json!({"length": "1"}))).await.code, 201);
    let asked = server.calls();
    assert_eq!(asked[0].1["apiVersion"], "apiextensions.k8s.io/v1beta1", "{asked:?}");
    let path = format!("{DEFINITIONS}/bolts.test.example");
    assert_eq!(call(&api, "DELETE", &path, Value::Null).await.code, 200);
}
