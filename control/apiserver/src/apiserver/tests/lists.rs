//! What lists can be asked for, and that their pages are of one revision.

use super::*;

fn names(body: &Value) -> Vec<&str> {
    body["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn all_pages_are_of_the_first_ones_revision() {
    let api = with_namespace().await;
    for name in ["b", "c", "d", "e"] {
        call(&api, "POST", MAPS, map(name)).await;
    }
    let first = call(&api, "GET", &format!("{MAPS}?limit=2"), Value::Null).await.body;
    assert_eq!(names(&first), ["b", "c"]);
    // One is removed, one added, one changed: the list that was begun does not show it.
    call(&api, "DELETE", &format!("{MAPS}/d"), Value::Null).await;
    call(&api, "POST", MAPS, map("cc")).await;
    call(&api, "PATCH", &format!("{MAPS}/e"), json!({"data": {"a": "changed"}})).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = call(&api, "GET", &format!("{MAPS}?limit=2&continue={token}"), Value::Null).await.body;
    assert_eq!(names(&second), ["d", "e"]);
    assert_eq!(second["items"][1]["data"]["a"], "b");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = format!("{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
    assert_eq!(names(&call(&api, "GET", &exact, Value::Null).await.body), ["b", "c", "d", "e"]);
    let newer = format!("{MAPS}?resourceVersion={revision}&resourceVersionMatch=NotOlderThan");
    assert_eq!(names(&call(&api, "GET", &newer, Value::Null).await.body), ["b", "c", "cc", "e"]);
}

#[tokio::test]
async fn a_page_that_comes_too_late_may_go_on_in_the_present() {
    let memory = Memory::default();
    let settings = || ApiConfig::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30009);
    let open = || Api::new(&kinds::open_store(Box::new(memory.clone())).unwrap(), &settings(), None, None);
    let api = open();
    call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    for name in ["b", "c", "d"] {
        call(&api, "POST", MAPS, map(name)).await;
    }
    let first = call(&api, "GET", &format!("{MAPS}?limit=1"), Value::Null).await.body;
    let token = first["metadata"]["continue"].as_str().unwrap();
    call(&api, "DELETE", &format!("{MAPS}/c"), Value::Null).await;
    memory.compact();
    let api = open();
    let late = call(&api, "GET", &format!("{MAPS}?limit=1&continue={token}"), Value::Null).await;
    assert_eq!((late.code, late.body["reason"].as_str()), (410, Some("Expired")), "{}", late.body);
    let fresh = late.body["metadata"]["continue"].as_str().unwrap();
    let rest = call(&api, "GET", &format!("{MAPS}?continue={fresh}"), Value::Null).await;
    assert_eq!(names(&rest.body), ["d"]);
    let exact = format!("{MAPS}?resourceVersion=2&resourceVersionMatch=Exact");
    assert_eq!(call(&api, "GET", &exact, Value::Null).await.code, 410);
}

#[tokio::test]
async fn options_that_cannot_be_are_refused() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    for (query, code) in [
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422),
        ("resourceVersionMatch=Bad&resourceVersion=1", 422),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=1", 200),
        ("sendInitialEvents=true", 422),
        ("watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1", 422),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("continue=abc&resourceVersionMatch=Exact&resourceVersion=1", 422),
        ("continue=abc", 400),
        ("resourceVersionMatch=Exact&resourceVersion=99999", 504),
        ("resourceVersion=abc", 400),
    ] {
        let reply = call(&api, "GET", &format!("{MAPS}?{query}"), Value::Null).await;
        assert_eq!(reply.code, code, "{query}: {}", reply.body);
    }
}

#[tokio::test]
async fn a_timeout_that_is_no_duration_is_refused() {
    let api = with_namespace().await;
    for (path, code) in [
        (format!("{MAPS}?timeout=invalid"), 400),
        (format!("{MAPS}?timeout=10"), 400),
        (format!("{MAPS}?timeout=32s"), 200),
        (format!("{MAPS}?timeout=0s"), 200),
        (format!("{MAPS}?timeout="), 200),
        ("/version?timeout=1x".to_owned(), 400),
    ] {
        let reply = call(&api, "GET", &path, Value::Null).await;
        assert_eq!(reply.code, code, "{path}: {}", reply.body);
    }
    let refused = call(&api, "DELETE", &format!("{MAPS}/m?timeout=1x"), Value::Null).await;
    let why = "invalid timeout specified in the request URL - time: unknown unit \"x\" in duration \"1x\"";
    assert_eq!((refused.body["reason"].as_str(), refused.body["message"].as_str()), (Some("BadRequest"), Some(why)));
    // What may take as long as it likes has no deadline, and nobody reads it.
    let uri = format!("{MAPS}?watch=1&timeoutSeconds=1&timeout=invalid");
    let request = Request::builder().uri(uri).extension(User::internal("t")).body(Body::empty()).unwrap();
    assert_eq!(api.router().oneshot(request).await.unwrap().status().as_u16(), 200);
}

/// As upstream's typed lists; an object itself, and a watch, say it.
#[tokio::test]
async fn items_of_lists_do_not_say_what_they_are() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("a")).await;
    call(&api, "POST", MAPS, map("b")).await;
    let one = call(&api, "GET", &format!("{MAPS}/a"), Value::Null).await.body;
    assert_eq!((&one["kind"], &one["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let mut bare = one.clone();
    bare.as_object_mut().unwrap().retain(|field, _| !matches!(field.as_str(), "kind" | "apiVersion"));
    for query in ["", "?limit=1", "?labelSelector=none!%3Dx", "?limit=1&fieldSelector=metadata.name%3Da"] {
        let list = call(&api, "GET", &format!("{MAPS}{query}"), Value::Null).await.body;
        assert_eq!((&list["kind"], &list["items"][0]), (&json!("ConfigMapList"), &bare), "{query}");
    }
    // What is computed, and what is stored in another version.
    for path in ["/api/v1/componentstatuses", "/apis/autoscaling/v1/horizontalpodautoscalers"] {
        let list = call(&api, "GET", path, Value::Null).await.body;
        let all = list["items"].as_array().unwrap();
        assert!(all.iter().all(|item| item.get("kind").is_none() && item["metadata"].is_object()), "{list}");
    }
}

#[tokio::test]
async fn tables_have_the_version_that_is_asked_for() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("a")).await;
    for version in ["v1", "v1beta1"] {
        let wanted = json!(format!("meta.k8s.io/{version}"));
        for path in [MAPS.to_owned(), format!("{MAPS}/a"), format!("{MAPS}?limit=1")] {
            let accept = format!("application/json;as=Table;v={version};g=meta.k8s.io");
            let table = send(&api, &User::internal("t"), "GET", &path, "", &accept, "").await.body;
            assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &wanted), "{path}");
            assert_eq!(table["rows"][0]["object"]["apiVersion"], wanted, "{path}");
        }
        let accept = format!("application/json;as=PartialObjectMetadataList;v={version};g=meta.k8s.io");
        let list = send(&api, &User::internal("t"), "GET", MAPS, "", &accept, "").await.body;
        assert_eq!((&list["apiVersion"], &list["items"][0]["apiVersion"]), (&wanted, &wanted));
    }
}

/// What does not come in the time that the client gives it is not waited for; what lasts has no such time.
#[tokio::test]
async fn a_request_ends_with_its_timeout() {
    let api = with_namespace().await;
    let send = async |method: &str, uri: &str, body: Body| {
        let request = Request::builder().method(method).uri(uri).extension(User::internal("t")).body(body).unwrap();
        api.router().oneshot(request).await.unwrap()
    };
    let endless = || Body::from_stream(futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>());
    for timeout in ["20ms", "0.02s"] {
        let answer = send("POST", &format!("{MAPS}?timeout={timeout}"), endless()).await;
        assert_eq!(answer.status().as_u16(), 504);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&body).unwrap();
        let why = "Timeout: request did not complete within the allotted timeout";
        assert_eq!((&status["reason"], &status["message"]), (&json!("Timeout"), &json!(why)), "{status}");
    }
    let watch = send("GET", &format!("{MAPS}?watch=1&timeoutSeconds=1&timeout=1ns"), Body::empty()).await;
    assert_eq!(watch.status().as_u16(), 200);
}

#[tokio::test]
async fn paths_are_read_as_upstream_does() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    for path in ["/api/v1/namespaces/n/configmaps/%6d", "/api/v1/namespaces/%6E/configmaps%2fm"] {
        let got = call(&api, "GET", path, Value::Null).await;
        assert_eq!((got.code, &got.body["metadata"]["name"]), (200, &json!("m")), "{path}");
    }
    assert_eq!(call(&api, "GET", "/api/v1/namespaces/n/configmaps/%ff", Value::Null).await.code, 400);
    for (path, events) in [
        ("/api/v1/watch/namespaces/n/configmaps", 1),
        ("/api/v1/watch/configmaps", 1),
        ("/api/v1/watch/namespaces/n/configmaps/m", 1),
        ("/api/v1/watch/namespaces/n/configmaps/other", 0),
    ] {
        let uri = format!("{path}?timeoutSeconds=1");
        let request = Request::builder().uri(uri).extension(User::internal("t")).body(Body::empty()).unwrap();
        let bytes = api.router().oneshot(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        assert_eq!(String::from_utf8_lossy(&bytes).lines().count(), events, "{path}");
    }
}

#[tokio::test]
async fn only_what_can_be_written_is_promised() {
    let api = with_namespace().await;
    let user = User::internal("t");
    for (accept, code) in [
        ("application/json", 200),
        ("", 200),
        ("*/*", 200),
        ("application/vnd.kubernetes.protobuf,application/json", 200),
        ("application/vnd.kubernetes.protobuf", 200),
        ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", 406),
        ("application/yaml", 200),
        ("text/plain", 406),
        ("application/json;as=Foo;v=v1;g=meta.k8s.io", 406),
    ] {
        assert_eq!(send(&api, &user, "GET", MAPS, "", accept, "").await.code, code, "{accept}");
    }
    let list = send(&api, &user, "GET", "/openapi/v3", "", "*/*", "").await.body;
    let current = list["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert_eq!(send(&api, &user, "GET", &current, "", "*/*", "").await.code, 200);
    let request = Request::builder().uri("/openapi/v3/api/v1?hash=OLD").extension(user).body(Body::empty()).unwrap();
    let moved = api.router().oneshot(request).await.unwrap();
    assert_eq!((moved.status().as_u16(), moved.headers()["location"].to_str().unwrap()), (301, current.as_str()));
}

/// A GET as a client with these headers sees it, before its body is read.
async fn get(api: &Api, path: &str, accept: &str, encoding: &str) -> axum::response::Response {
    let request = Request::builder().uri(path).header(header::ACCEPT, accept);
    let request = request.header(header::ACCEPT_ENCODING, encoding).extension(User::internal("t"));
    api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_version_of_aggregated_discovery_that_is_not_served_is_passed_over() {
    let api = with_namespace().await;
    let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    for (accept, kind) in [
        (format!("{v2},{beta},application/json"), "APIGroupDiscoveryList"),
        (format!("{beta},{v2},application/json"), "APIGroupDiscoveryList"),
        (format!("application/json;q=0.9,{v2}"), "APIGroupDiscoveryList"),
        // client-go before 0.30.
        (format!("{beta},application/json"), "APIGroupList"),
        (format!("application/json,{v2}"), "APIGroupList"),
        ("application/json".to_owned(), "APIGroupList"),
    ] {
        let (parts, body) = get(&api, "/apis", &accept, "").await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(list["kind"], kind, "{accept}");
        let content_type = parts.headers[header::CONTENT_TYPE].to_str().unwrap();
        assert_eq!(content_type == v2, kind == "APIGroupDiscoveryList", "{accept}: {content_type}");
    }
}

/// Large lists come in chunks; they are those of their pages, whatever is asked for.
#[tokio::test]
async fn a_long_list_in_chunks_is_its_pages_together() {
    let api = with_namespace().await;
    for i in 0..120 {
        let (app, text) = (["a", "b"][i % 2], i.to_string().repeat(1500));
        let object = json!({"metadata": {"name": format!("m{i:03}"), "labels": {"app": app}}, "data": {"a": text}});
        assert_eq!(call(&api, "POST", MAPS, object).await.code, 201);
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    for (accept, items) in [("application/json", "items"), (metadata, "items"), (table, "rows")] {
        for query in ["?includeObject=Object", "?labelSelector=app%3Da", "?labelSelector=app%3Dnone", "?"] {
            let mut wanted: Value = Value::Null;
            let mut token = String::new();
            loop {
                let path = format!("{MAPS}{query}&limit=50&continue={token}");
                let bytes = get(&api, &path, accept, "").await.into_body().collect().await.unwrap().to_bytes();
                let mut page: Value = serde_json::from_slice(&bytes).unwrap();
                token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                if wanted.is_null() {
                    page["metadata"] = json!({"resourceVersion": page["metadata"]["resourceVersion"]});
                    wanted = page;
                } else {
                    let more = std::mem::take(page[items].as_array_mut().unwrap());
                    wanted[items].as_array_mut().unwrap().extend(more);
                }
                if token.is_empty() {
                    break;
                }
            }
            for encoding in ["", "gzip"] {
                let what = format!("{accept} {query} {encoding}");
                let (parts, body) = get(&api, &format!("{MAPS}{query}"), accept, encoding).await.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                assert_eq!(parts.headers[header::CONTENT_TYPE], "application/json", "{what}");
                let text = match parts.headers.get(header::CONTENT_ENCODING) {
                    None => body.to_vec(),
                    Some(_) => {
                        let mut text = Vec::new();
                        let mut reader = flate2::read::GzDecoder::new(&body[..]);
                        std::io::Read::read_to_end(&mut reader, &mut text).unwrap();
                        text
                    }
                };
                let is_compressed = parts.headers.contains_key(header::CONTENT_ENCODING);
                assert_eq!(is_compressed, text.len() > 128 << 10 && encoding == "gzip", "{what}");
                let list: Value = serde_json::from_slice(&text).expect(&what);
                // Tables show ages in seconds.
                if accept != table {
                    assert!(list == wanted, "{what}");
                }
                assert_eq!(list["metadata"], wanted["metadata"], "{what}");
                assert_eq!(list[items].as_array().unwrap().len(), wanted[items].as_array().unwrap().len(), "{what}");
            }
        }
    }
}

/// A list is of the revision at which it began, however slowly it is read, and its first chunk does not wait for the rest.
#[tokio::test]
async fn a_list_that_is_being_read_shows_no_later_writes() {
    let api = with_namespace().await;
    for i in 0..80 {
        let object = json!({"metadata": {"name": format!("m{i:03}")}, "data": {"a": "x".repeat(20_000)}});
        assert_eq!(call(&api, "POST", MAPS, object).await.code, 201);
    }
    let mut body = get(&api, MAPS, "application/json", "").await.into_body();
    let mut text = body.frame().await.unwrap().unwrap().into_data().unwrap().to_vec();
    assert!(text.len() < 400_000, "the first chunk has {} bytes", text.len());
    call(&api, "DELETE", &format!("{MAPS}/m079"), Value::Null).await;
    call(&api, "PATCH", &format!("{MAPS}/m078"), json!({"data": {"a": "later"}})).await;
    while let Some(frame) = body.frame().await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    let list: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(names(&list).len(), 80);
    assert_eq!(list["items"][78]["data"]["a"].as_str().unwrap().len(), 20_000);
}

/// Numbers and truths of a query are read as Go reads them, for the verbs that have them.
#[tokio::test]
async fn options_are_read_as_upstream_reads_them() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    let syntax = |text: &str| format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
    let stage = |stages: &str| format!("dryRun: Unsupported value: {stages}: supported values: \"All\"");
    for (method, query, body, code, words) in [
        ("GET", "?limit=x", Value::Null, 400, syntax("x")),
        ("GET", "?limit=", Value::Null, 400, syntax("")),
        ("GET", "?limit=99999999999999999999", Value::Null, 400, "value out of range".to_owned()),
        ("GET", "?timeoutSeconds=", Value::Null, 400, syntax("")),
        ("GET", "?limit=-1&watch=FALSE", Value::Null, 200, String::new()),
        ("GET", "/m?limit=x", Value::Null, 200, String::new()),
        ("POST", "?dryRun=", map("x"), 422, stage("[\"\"]")),
        ("POST", "?dryRun=All&dryRun=Foo", map("x"), 422, stage("[\"All\",\"Foo\"]")),
        ("POST", "?dryRun=All&dryRun=All", map("x"), 201, String::new()),
        ("PATCH", "/m?force=0", json!({}), 422, "may not be specified for non-apply patch".to_owned()),
        ("DELETE", "/m?dryRun=", Value::Null, 422, stage("[\"\"]")),
        ("DELETE", "/m?gracePeriodSeconds=", Value::Null, 400, syntax("")),
        ("DELETE", "/m", json!({"dryRun": ["a", "b"]}), 422, stage("[\"a\",\"b\"]")),
    ] {
        let reply = call(&api, method, &format!("{MAPS}{query}"), body).await;
        let told = reply.body["message"].as_str().unwrap_or("");
        assert!(reply.code == code && told.contains(&words), "{method} {query}: {} {told}", reply.code);
    }
    let user = User::internal("test");
    for watch in ["watch=yes&timeoutSeconds=1", "watch=&timeoutSeconds=1"] {
        let reply = send(&api, &user, "GET", &format!("{MAPS}?{watch}"), "", "application/json", "").await;
        assert!(reply.body["items"].is_null(), "{watch}");
    }
}
