//! The events that watchers receive, however their selectors are evaluated.

use windlass_apimachinery::selectors::SelectableField;

use super::*;
use crate::{
    apiserver::types::{Definition, Resource, TypeSchema, VersionSpec},
    kinds::types,
};

/// A resource that does nothing of its own.
#[derive(Debug)]
struct Things;

impl Strategy for Things {}

/// The first events of a watch of pods.
async fn events(api: &Api, query: &str, awaited: usize) -> Vec<Value> {
    Watching::open(api, format!("{PODS}?watch=1&{query}")).await.first(awaited).await
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_selector_of_a_node_is_decided_by_the_index_as_by_the_objects() {
    let api = with_namespace().await;
    let made = call(&api, "POST", PODS, pod("first")).await.body;
    let from = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for (name, node) in [("a", "one"), ("b", "two"), ("c", "")] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!(node);
        assert_eq!(call(&api, "POST", PODS, pod).await.code, 201);
        let label = json!({"metadata": {"labels": {"a": name}}});
        call(&api, "PATCH", &format!("{PODS}/{name}"), label).await;
    }
    let to_one = json!({"metadata": {"name": "c"}, "target": {"name": "one"}});
    assert_eq!(call(&api, "POST", &format!("{PODS}/c/binding"), to_one).await.code, 201);
    for name in ["a", "b", "c"] {
        call(&api, "DELETE", &format!("{PODS}/{name}"), json!({"gracePeriodSeconds": 0})).await;
    }
    for (node, expected) in [
        ("one", vec!["ADDED", "MODIFIED", "ADDED", "DELETED", "DELETED"]),
        ("two", vec!["ADDED", "MODIFIED", "DELETED"]),
        ("", vec!["ADDED", "MODIFIED", "DELETED"]),
        ("three", vec![]),
    ] {
        let query = format!("resourceVersion={from}&fieldSelector=spec.nodeName%3D{node}");
        let by_index = events(&api, &query, expected.len()).await;
        // A second requirement is decided by each object.
        let by_object = events(&api, &format!("{query},metadata.namespace%3Dn"), expected.len()).await;
        assert_eq!(by_index, by_object, "{node}");
        assert_eq!(kinds(&by_index), expected, "{node}");
    }
    // Existing objects are selected in the same way.
    let mut pod = pod("d");
    pod["spec"]["nodeName"] = json!("one");
    call(&api, "POST", PODS, pod).await;
    let initial = events(&api, "fieldSelector=spec.nodeName%3Done", 1).await;
    assert_eq!(initial, events(&api, "fieldSelector=spec.nodeName%3Done,metadata.namespace%3Dn", 1).await);
    assert_eq!(initial.len(), 1);
}

/// Writes so much that the history begins later; returns the object that was written.
async fn compacted_by_writes(api: &Api) -> Value {
    let mut loud = map("loud");
    call(api, "POST", MAPS, loud.clone()).await;
    for i in 0..40 {
        loud["data"] = json!({"text": i.to_string().repeat(400_000)});
        assert_eq!(call(api, "PUT", &format!("{MAPS}/loud"), loud.clone()).await.code, 200);
    }
    call(api, "GET", &format!("{MAPS}/loud"), Value::Null).await.body
}

/// Upstream: `Cacher.Watch`. kube-rs lists again after such an event, and not after an answer with that code.
#[tokio::test]
async fn a_watch_from_before_the_history_ends_with_an_event() {
    let api = with_namespace().await;
    let made = call(&api, "POST", MAPS, map("early")).await.body;
    let from = made["metadata"]["resourceVersion"].as_str().unwrap();
    compacted_by_writes(&api).await;
    let request = Request::builder().uri(format!("{MAPS}?watch=true&resourceVersion={from}"));
    let request = request.extension(User::internal("t")).body(Body::empty()).unwrap();
    let answer = api.router().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let all = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let event: Value = serde_json::from_slice(&all).unwrap();
    let status = &event["object"];
    assert_eq!((&event["type"], &status["code"], &status["reason"]), (&json!("ERROR"), &json!(410), &json!("Expired")));
}

/// After a restart a watcher reconnects with its last revision, which must still be in the history.
#[tokio::test]
async fn a_silent_watcher_gets_an_early_bookmark() {
    let api = with_namespace().await;
    let query = "watch=true&resourceVersion=0&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dquiet";
    let watch = |query: &str| {
        let request = Request::builder().uri(format!("{MAPS}?{query}")).extension(User::internal("t"));
        api.router().oneshot(request.body(Body::empty()).unwrap())
    };
    let mut stream = watch(query).await.unwrap().into_body().into_data_stream();
    let last = compacted_by_writes(&api).await;
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let bookmark: Value = serde_json::from_slice(&stream.next().await.unwrap().unwrap()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], last["metadata"]["resourceVersion"]);
    // The next one has its usual time.
    let next = stream.next().await.unwrap().unwrap();
    assert!(next.starts_with(b"{\"type\":\"BOOKMARK\""));
    assert!(begun.elapsed() > Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn what_a_watch_begins_with_is_what_it_asks_for() {
    let api = with_namespace().await;
    call(&api, "POST", PODS, pod("a")).await;
    for (query, expected) in [
        ("", vec!["ADDED"]),
        ("allowWatchBookmarks=true", vec!["ADDED", "BOOKMARK"]),
        ("resourceVersion=0&allowWatchBookmarks=true", vec!["ADDED"]),
        (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            vec!["ADDED", "BOOKMARK"],
        ),
        ("sendInitialEvents=false&resourceVersionMatch=NotOlderThan", vec![]),
    ] {
        let events = events(&api, query, expected.len()).await;
        assert_eq!(kinds(&events), expected, "{query}");
    }
}

#[tokio::test]
async fn only_the_first_table_of_a_watch_defines_its_columns() {
    let api = with_namespace().await;
    for name in ["a", "b"] {
        call(&api, "POST", PODS, pod(name)).await;
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let watch = Watching::open_as(&api, format!("{PODS}?watch=1&allowWatchBookmarks=true"), table).await;
    let events = watch.first(3).await;
    let tables: Vec<&Value> = events.iter().map(|event| &event["object"]).collect();
    let columns: Vec<Value> = tables
        .iter()
        .map(|table| {
            table["columnDefinitions"]
                .get(0)
                .map_or(table["columnDefinitions"].clone(), |column| column["name"].clone())
        })
        .collect();
    assert_eq!(columns, [json!("Name"), Value::Null, Value::Null], "{events:?}");
    assert!(tables.iter().all(|table| table.get("columnDefinitions").is_some()), "{events:?}");
}

#[tokio::test]
async fn a_page_is_at_the_revision_of_its_token() {
    let api = with_namespace().await;
    for name in ["a", "b"] {
        call(&api, "POST", PODS, pod(name)).await;
    }
    let page = call(&api, "GET", &format!("{PODS}?limit=1"), json!(null)).await.body;
    let (token, at) = (&page["metadata"]["continue"], &page["metadata"]["resourceVersion"]);
    let next = format!("{PODS}?limit=1&continue={}", token.as_str().unwrap());
    assert_eq!(call(&api, "GET", &next, json!(null)).await.code, 200);
    let refused = call(&api, "GET", &format!("{next}&resourceVersion={}", at.as_str().unwrap()), json!(null)).await;
    let why = "specifying resource version is not allowed when using continue";
    assert_eq!((refused.code, refused.body["message"].as_str()), (400, Some(why)));
}

/// What watchers with selectors share is what each would have found for itself, of custom objects as of others.
#[tokio::test]
async fn all_forms_of_an_event_are_what_their_watchers_ask_for() {
    let api = with_namespace().await;
    let color = json!({"type": "object", "default": {}, "properties": {"color": {"type": "string", "default": "red"}}});
    let schema = json!({"type": "object", "properties": {"spec": color}});
    let schema = TypeSchema::custom("Thing".into(), &schema, &types::schema("meta/v1.ObjectMeta"));
    let mut v1 = VersionSpec::new("v1", schema);
    v1.selectable = vec![SelectableField::path("spec.color")];
    let resource = Resource::new("example.com", "things", "Thing", Things);
    api.catalogs().put("things.example.com", Definition::single(resource, v1));
    const THINGS: &str = "/apis/example.com/v1/namespaces/n/things";
    let from = call(&api, "GET", THINGS, Value::Null).await.body["metadata"]["resourceVersion"].clone();
    let from = from.as_str().unwrap().to_owned();
    let thing =
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a", "labels": {"a": "b"}}});
    assert_eq!(call(&api, "POST", THINGS, thing).await.code, 201);
    for patch in [
        json!({"spec": {"color": "blue"}}),
        json!({"metadata": {"labels": {"a": "c"}}}),
        json!({"spec": {"color": "red"}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
    ] {
        assert_eq!(call(&api, "PATCH", &format!("{THINGS}/a"), patch).await.code, 200);
    }
    call(&api, "DELETE", &format!("{THINGS}/a"), Value::Null).await;
    let events = async |query: &str, accept: &str, awaited: usize| {
        let path = format!("{THINGS}?watch=1&resourceVersion={from}&{query}");
        Watching::open_as(&api, path, accept).await.first(awaited).await
    };
    let summary = |events: &[Value]| -> Vec<String> {
        let one = |event: &Value| {
            let object = &event["object"];
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            format!(
                "{} {} {}",
                text(&event["type"]),
                text(&object["metadata"]["labels"]["a"]),
                text(&object["spec"]["color"])
            )
        };
        events.iter().map(one).collect()
    };
    const JSON: &str = "application/json";
    const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    for (query, expected) in [
        (
            "",
            vec![
                "ADDED b red",
                "MODIFIED b blue",
                "MODIFIED c blue",
                "MODIFIED c red",
                "MODIFIED b red",
                "DELETED b red",
            ],
        ),
        (
            "labelSelector=a%3Db",
            vec!["ADDED b red", "MODIFIED b blue", "DELETED b blue", "ADDED b red", "DELETED b red"],
        ),
        (
            "fieldSelector=spec.color%3Dred",
            vec!["ADDED b red", "DELETED b red", "ADDED c red", "MODIFIED b red", "DELETED b red"],
        ),
        (
            "labelSelector=a%3Db&fieldSelector=spec.color%3Dred",
            vec!["ADDED b red", "DELETED b red", "ADDED b red", "DELETED b red"],
        ),
        ("labelSelector=a%3Dnone", vec![]),
    ] {
        // The second of each finds the forms that the first has made.
        for _ in 0..2 {
            let found = events(query, JSON, expected.len()).await;
            assert_eq!(summary(&found), expected, "{query}");
            let metadata = events(query, METADATA, expected.len()).await;
            let revisions = |events: &[Value]| -> Vec<Value> {
                events.iter().map(|event| event["object"]["metadata"]["resourceVersion"].clone()).collect()
            };
            assert_eq!(revisions(&metadata), revisions(&found), "{query}");
            assert!(metadata.iter().all(|event| event["object"]["kind"] == "PartialObjectMetadata"));
        }
    }
}
