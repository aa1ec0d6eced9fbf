//! What watchers are told, however their selectors are decided.

use super::*;

/// The types and resource versions of the events that a watch of pods gets at once.
async fn events(api: &Api, query: &str) -> Vec<(String, String)> {
    let request = Request::builder()
        .uri(format!("{PODS}?watch=1&{query}"))
        .extension(User::internal("test"))
        .body(Body::empty())
        .unwrap();
    let mut stream = api.router().oneshot(request).await.unwrap().into_body().into_data_stream();
    let mut text = Vec::new();
    while let Ok(Some(piece)) = tokio::time::timeout(Duration::from_millis(200), stream.next()).await {
        text.extend_from_slice(&piece.unwrap());
    }
    let event = |line: &[u8]| {
        let event: Value = serde_json::from_slice(line).unwrap();
        let object = event["object"].to_string();
        (event["type"].as_str().unwrap().to_owned(), object)
    };
    text.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(event).collect()
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
        let by_index = events(&api, &query).await;
        // A second requirement is decided by each object.
        let by_object = events(&api, &format!("{query},metadata.namespace%3Dn")).await;
        assert_eq!(by_index, by_object, "{node}");
        assert_eq!(by_index.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>(), expected, "{node}");
    }
    // What is there already is selected in the same way.
    let mut pod = pod("d");
    pod["spec"]["nodeName"] = json!("one");
    call(&api, "POST", PODS, pod).await;
    let initial = events(&api, "fieldSelector=spec.nodeName%3Done").await;
    assert_eq!(initial, events(&api, "fieldSelector=spec.nodeName%3Done,metadata.namespace%3Dn").await);
    assert_eq!(initial.len(), 1);
}

/// After a restart a watcher comes back with what it was told last, which must still be in the history.
#[tokio::test]
async fn a_watcher_that_hears_nothing_while_others_write_much_gets_an_early_bookmark() {
    let api = with_namespace().await;
    let query = "watch=true&resourceVersion=0&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dquiet";
    let watch = |query: &str| {
        let request = Request::builder().uri(format!("{MAPS}?{query}")).extension(User::internal("t"));
        api.router().oneshot(request.body(Body::empty()).unwrap())
    };
    let mut stream = watch(query).await.unwrap().into_body().into_data_stream();
    let mut loud = map("loud");
    call(&api, "POST", MAPS, loud.clone()).await;
    for i in 0..40 {
        loud["data"] = json!({"text": i.to_string().repeat(400_000)});
        assert_eq!(call(&api, "PUT", &format!("{MAPS}/loud"), loud.clone()).await.code, 200);
    }
    let last = call(&api, "GET", &format!("{MAPS}/loud"), Value::Null).await.body;
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
        let events = events(&api, query).await;
        assert_eq!(events.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>(), expected, "{query}");
    }
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
