//! Requests and answers in protobuf, as typed clients in Go send and ask for them.

use axum::{body::Bytes, http::HeaderMap};
use windlass_apimachinery::protobuf::envelope;

use super::*;
use crate::kinds::types;

const PROTOBUF: &str = envelope::MEDIA_TYPE;

struct Answer {
    code: u16,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Answer {
    fn media_type(&self) -> &str {
        self.headers[header::CONTENT_TYPE].to_str().unwrap()
    }

    /// The object, with what Go leaves out left out.
    #[track_caller]
    fn object(&self) -> Value {
        assert_eq!(self.media_type(), PROTOBUF, "{}", self.bytes.escape_ascii());
        decoded(&self.bytes)
    }
}

#[track_caller]
fn decoded(bytes: &[u8]) -> Value {
    let schema = |of: &envelope::Envelope<'_>| {
        let of = types::named(of.api_version, of.kind).unwrap();
        Ok(std::sync::Arc::new(windlass_apimachinery::schema::Schema::named(of)))
    };
    envelope::decode_object(bytes, schema).unwrap()
}

fn encoded(object: &Value) -> Vec<u8> {
    let of = types::named(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap()).unwrap();
    envelope::encode_object(of.definition(), object).unwrap()
}

async fn ask(api: &Api, method: &str, path: &str, accept: &str, kind: &str, body: Vec<u8>) -> Answer {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
    let request = request.header(header::ACCEPT, accept).extension(User::internal("test"));
    let response = api.router().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { code: parts.status.as_u16(), headers: parts.headers, bytes }
}

async fn get(api: &Api, path: &str, accept: &str) -> Answer {
    ask(api, "GET", path, accept, PROTOBUF, Vec::new()).await
}

/// What is stored, without what Go does not write.
async fn json_of(api: &Api, path: &str) -> Value {
    call(api, "GET", path, Value::Null).await.body
}

#[tokio::test]
async fn an_object_lives_its_life_in_protobuf() {
    let api = with_namespace().await;
    let mut object = map("m");
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("ConfigMap");
    object["binaryData"] = json!({"b": "AP8="});
    let made = ask(&api, "POST", MAPS, PROTOBUF, PROTOBUF, encoded(&object)).await;
    assert_eq!(made.code, 201, "{}", made.bytes.escape_ascii());
    let path = format!("{MAPS}/m");
    assert_eq!(made.object(), json_of(&api, &path).await);
    assert_eq!(get(&api, &path, PROTOBUF).await.object(), made.object());

    let mut changed = made.object();
    changed["data"]["c"] = json!("d");
    let put = ask(&api, "PUT", &path, PROTOBUF, PROTOBUF, encoded(&changed)).await;
    assert_eq!((put.code, &put.object()["data"]), (200, &json!({"a": "b", "c": "d"})));
    let patch = br#"{"data":{"a":null}}"#.to_vec();
    let patched = ask(&api, "PATCH", &path, PROTOBUF, "application/merge-patch+json", patch).await;
    assert_eq!((patched.code, &patched.object()["data"]), (200, &json!({"c": "d"})));

    let list = get(&api, MAPS, "application/vnd.kubernetes.protobuf,application/json").await.object();
    assert_eq!(list["kind"], "ConfigMapList");
    let stored = json_of(&api, &path).await;
    assert_eq!(list["items"][0]["data"], stored["data"]);
    assert_eq!(list["items"][0]["metadata"], stored["metadata"]);

    let other = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "another"}});
    let refused = ask(&api, "DELETE", &path, PROTOBUF, PROTOBUF, encoded(&other)).await;
    assert_eq!((refused.code, &refused.object()["reason"]), (409, &json!("Conflict")));
    let gone = ask(&api, "DELETE", &path, PROTOBUF, PROTOBUF, Vec::new()).await;
    assert_eq!((gone.code, &gone.object()["status"]), (200, &json!("Success")));
    let missing = get(&api, &path, PROTOBUF).await;
    assert_eq!(
        (missing.code, &missing.object()["kind"], &missing.object()["code"]),
        (404, &json!("Status"), &json!(404))
    );
}

/// The bytes of client-go, which sends the options of a deletion in the version of what it deletes.
#[tokio::test]
async fn options_of_a_deletion_are_read_in_every_version_and_media_type() {
    let api = with_namespace().await;
    let go = |api_version: &str| {
        let length = u8::try_from(api_version.len()).unwrap();
        [b"k8s\x00\n", &[length + 17][..], b"\n", &[length], api_version.as_bytes(), b"\x12\rDeleteOptions"].concat()
    };
    let options = b"\x12\x19\x08\x00\x12\x09\n\x07another\"\nBackground\x1a\x00\"\x00";
    let deployments = "/apis/apps/v1/namespaces/n/deployments";
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(call(&api, "POST", deployments, deployment).await.code, 201);
    let path = format!("{deployments}/d");
    for api_version in ["v1", "apps/v1", "autoscaling/v2", "example.com/v1", "meta.k8s.io/v1", "v2"] {
        let body = [&go(api_version)[..], options].concat();
        for path in [&path, deployments] {
            let refused = ask(&api, "DELETE", path, PROTOBUF, PROTOBUF, body.clone()).await;
            assert_eq!(refused.code, 409, "{api_version}: {}", refused.bytes.escape_ascii());
        }
    }
    let yaml = "# options\npreconditions: {uid: another}\n---\n";
    let refused = send(&api, &User::internal("t"), "DELETE", &path, "application/yaml", "*/*", yaml).await;
    assert_eq!(refused.code, 409, "{}", refused.body);
    let unknown = send(&api, &User::internal("t"), "DELETE", &path, "text/plain", "*/*", "{}").await;
    assert_eq!(unknown.code, 415, "{}", unknown.body);
    let body = [&go("apps/v1")[..], b"\x12\x0c\"\nBackground\x1a\x00\"\x00"].concat();
    let gone = ask(&api, "DELETE", &path, PROTOBUF, PROTOBUF, body).await;
    assert_eq!(gone.code, 200, "{}", gone.bytes.escape_ascii());
}

#[tokio::test]
async fn every_kind_is_written_in_protobuf_and_read_back() {
    let api = with_namespace().await;
    for (number, resource) in stored_versions(&api).into_iter().enumerate() {
        // Events are stored once for both of their groups.
        let mut object = templates::object(&resource, &format!("x{number}"));
        object["apiVersion"] = json!(resource.gvk.api_version());
        object["kind"] = json!(resource.gvk.kind.to_string());
        let collection = templates::collection(&resource);
        let made = ask(&api, "POST", &collection, PROTOBUF, PROTOBUF, encoded(&object)).await;
        assert_eq!(made.code, 201, "{}: {}", resource.gvk.kind, made.bytes.escape_ascii());
        // The name of a CustomResourceDefinition is longer.
        let name = made.object()["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{collection}/{name}");
        let stored = json_of(&api, &path).await;
        // The claims of a StatefulSet have a kind, which is no field in protobuf.
        let untyped = |object: &Value| {
            let mut object = object.clone();
            let claims = object.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
            for claim in claims.into_iter().flatten().filter_map(Value::as_object_mut) {
                claim.retain(|field, _| !matches!(field.as_str(), "kind" | "apiVersion"));
            }
            object
        };
        let node = resource.spec.schema.node();
        let same = |other: &Value| windlass_apimachinery::schema::same(node, &untyped(other), &untyped(&stored));
        assert!(same(&made.object()), "{}: {} {stored}", resource.gvk.kind, made.object());
        let again = ask(&api, "PUT", &path, "application/json", PROTOBUF, encoded(&stored)).await;
        let again: Value = serde_json::from_slice(&again.bytes).unwrap();
        assert!(same(&again), "{}: nothing was changed: {again} {stored}", resource.gvk.kind);
        let list = get(&api, &collection, PROTOBUF).await.object();
        let mut items = list["items"].as_array().unwrap().iter();
        assert!(items.any(|item| item["metadata"]["name"] == *name), "{}", resource.gvk.kind);
    }
}

#[tokio::test]
async fn a_watch_is_a_stream_of_frames() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    let path = format!(
        "{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    let watch = get(&api, &path, "application/vnd.kubernetes.protobuf;stream=watch").await;
    assert_eq!((watch.code, watch.media_type()), (200, envelope::WATCH_MEDIA_TYPE));
    let mut events = Vec::new();
    let mut rest = &watch.bytes[..];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        // `type`, then the object's envelope inside a raw extension.
        let magic = frame.windows(4).position(|bytes| bytes == envelope::MAGIC).unwrap();
        let kind = String::from_utf8_lossy(&frame[2..2 + usize::from(frame[1])]).into_owned();
        events.push((kind, decoded(&frame[magic..])));
        rest = after;
    }
    // Another bookmark may come at the end.
    assert!(events.len() >= 2, "{events:?}");
    assert_eq!(events[0], ("ADDED".to_owned(), json_of(&api, &format!("{MAPS}/m")).await));
    assert_eq!(events[1].0, "BOOKMARK");
    assert_eq!(events[1].1["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let refused = get(&api, &format!("{MAPS}?watch=true"), "application/yaml").await;
    assert_eq!(refused.code, 406);
}

#[tokio::test]
async fn what_is_no_object_of_its_own_is_answered_in_protobuf_too() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let one = get(&api, &format!("{MAPS}/m"), metadata).await.object();
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("PartialObjectMetadata"), &json!("m")));
    let list = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = get(&api, MAPS, list).await.object();
    assert_eq!(
        (&list["kind"], &list["items"][0]["metadata"]["name"]),
        (&json!("PartialObjectMetadataList"), &json!("m"))
    );
    let resources = get(&api, "/api/v1", PROTOBUF).await.object();
    assert!(
        resources["resources"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "pods" && one["verbs"][0] == "create")
    );
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let reviewed = ask(&api, "POST", path, PROTOBUF, PROTOBUF, encoded(&review)).await;
    assert_eq!((reviewed.code, &reviewed.object()["status"]["allowed"]), (201, &json!(true)));
    // The version is no object.
    assert_eq!(get(&api, "/version", PROTOBUF).await.code, 406);
    let version = get(&api, "/version", "application/vnd.kubernetes.protobuf,application/json").await;
    assert_eq!((version.code, version.media_type()), (200, "application/json"));
}

#[tokio::test]
async fn the_preferred_of_the_accepted_forms_is_answered() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    let path = format!("{MAPS}/m");
    for (accept, answered) in [
        ("application/vnd.kubernetes.protobuf, */*", PROTOBUF),
        ("application/json;q=0.5, application/vnd.kubernetes.protobuf", PROTOBUF),
        ("application/json, application/vnd.kubernetes.protobuf", "application/json"),
        ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io, application/json", "application/json"),
        ("text/html, application/yaml;q=0.9", "application/yaml"),
    ] {
        let answer = get(&api, &path, accept).await;
        assert_eq!((answer.code, answer.media_type()), (200, answered), "{accept}");
    }
    let yaml = get(&api, &path, "application/yaml").await;
    let read: Value = serde_saphyr::from_str(std::str::from_utf8(&yaml.bytes).unwrap()).unwrap();
    assert_eq!(read, json_of(&api, &path).await);
}

#[tokio::test]
async fn a_faulty_body_is_refused_and_changes_nothing() {
    let api = with_namespace().await;
    let whole =
        encoded(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}}));
    for (body, code) in [
        (whole[..whole.len() - 6].to_vec(), 400),
        (b"{}".to_vec(), 400),
        (encoded(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m"}})), 400),
    ] {
        let answer = ask(&api, "POST", MAPS, PROTOBUF, PROTOBUF, body).await;
        assert_eq!(
            (answer.code, &answer.object()["kind"]),
            (code, &json!("Status")),
            "{}",
            answer.bytes.escape_ascii()
        );
    }
    assert_eq!(json_of(&api, MAPS).await["items"], json!([]));
}
