//! Metadata of custom objects is of a type that all clients decode: what they could not decode is refused on every way in,
//! and is left out where it was stored before.

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject, ListParams},
};

use super::*;
use crate::store::{Expected, Key, Write};

const ONE: &str = "/apis/test.example/v1/namespaces/n/widgets/p";

/// What kube-apiserver 1.36.2 says of the metadata.
const REFUSED: [(&str, &str); 7] = [
    (r#"{"labels": {"x": 5}}"#, "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"),
    (
        r#"{"annotations": {"x": true}}"#,
        "json: cannot unmarshal bool into Go struct field ObjectMeta.annotations of type string",
    ),
    (
        r#"{"finalizers": "x"}"#,
        "json: cannot unmarshal string into Go struct field ObjectMeta.finalizers of type []string",
    ),
    (
        r#"{"labels": [1]}"#,
        "json: cannot unmarshal array into Go struct field ObjectMeta.labels of type map[string]string",
    ),
    (
        r#"{"ownerReferences": [{"apiVersion": "v1", "kind": "P", "name": "a", "uid": "u", "controller": "yes"}]}"#,
        "json: cannot unmarshal string into Go struct field OwnerReference.ownerReferences.controller of type bool",
    ),
    (
        r#"{"generateName": 5}"#,
        "json: cannot unmarshal number into Go struct field ObjectMeta.generateName of type string",
    ),
    (
        r#"{"deletionGracePeriodSeconds": "x"}"#,
        "json: cannot unmarshal string into Go struct field ObjectMeta.deletionGracePeriodSeconds of type int64",
    ),
];

#[tokio::test]
async fn metadata_that_clients_cannot_decode_is_refused_on_every_way_in() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, definition("widgets", "Widget")).await;
    let user = User::internal("t");
    assert_eq!(call(&api, "POST", WIDGETS, widget("p", json!({"size": 1}))).await.code, 201);
    for (metadata, why) in REFUSED {
        let metadata: Value = serde_json::from_str(metadata).unwrap();
        let mut whole = widget("w", json!({"size": 1}));
        whole["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let made = call(&api, "POST", WIDGETS, whole.clone()).await;
        let told = format!("Widget in version \"v1\" cannot be handled as a Widget: {why}");
        assert_eq!((made.code, &made.body["message"]), (400, &json!(told)), "{metadata}");
        whole["metadata"]["name"] = json!("p");
        assert_eq!(call(&api, "PUT", ONE, whole.clone()).await.code, 400, "{metadata}");
        assert_eq!(call(&api, "PUT", &format!("{ONE}/status"), whole).await.code, 400, "{metadata}");
        let of =
            |(key, value): (&String, &Value)| json!({"op": "add", "path": format!("/metadata/{key}"), "value": value});
        let operations: Vec<Value> = metadata.as_object().unwrap().iter().map(of).collect();
        let merge = json!({"metadata": metadata}).to_string();
        for (path, kind, body) in [
            (ONE.to_owned(), "application/merge-patch+json", merge.clone()),
            (format!("{ONE}/status"), "application/merge-patch+json", merge),
            (ONE.to_owned(), "application/json-patch+json", Value::from(operations).to_string()),
        ] {
            let patched = send(&api, &user, "PATCH", &path, kind, "*/*", &body).await;
            let told = patched.body["message"].as_str().unwrap();
            assert!(patched.code == 422 && told.ends_with(why), "{path} {kind} {metadata}: {} {told}", patched.code);
        }
    }
    let mut fine = widget("w", json!({"size": 1}));
    fine["metadata"]["labels"] = json!({"x": null});
    assert_eq!(call(&api, "POST", WIDGETS, fine).await.body["metadata"]["labels"], json!({"x": ""}));
}

/// What an earlier version stored so.
async fn store_broken(api: &Instance, name: &str, api_version: &str) {
    let value = json!({"apiVersion": api_version, "kind": "Widget", "spec": {"size": 1, "colour": "red"},
        "metadata": {"name": name, "namespace": "n", "uid": name, "labels": {"good": "1", "bad": 5}, "annotations": [1],
            "creationTimestamp": "2020-01-01T00:00:00Z"}});
    let key = Key { namespace: "n".to_owned(), name: name.to_owned() };
    let resource = api.store().resource("widgets.test.example");
    let (expected, value) = (Expected::Absent, Some(value));
    let write = Write { resource, key, expected, value, guards: Vec::new(), companions: Vec::new() };
    api.store().write(write).await.unwrap();
}

#[tokio::test]
async fn metadata_that_was_stored_so_is_left_out_and_repaired() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, definition("widgets", "Widget")).await;
    store_broken(&api, "old", "test.example/v1beta1").await;
    store_broken(&api, "new", "test.example/v1").await;
    let client = Client::new(api.router().layer(axum::Extension(User::internal("t"))), "n");
    let resource = ApiResource {
        group: "test.example".to_owned(),
        version: "v1".to_owned(),
        api_version: "test.example/v1".to_owned(),
        kind: "Widget".to_owned(),
        plural: "widgets".to_owned(),
    };
    let widgets: KubeApi<DynamicObject> = KubeApi::namespaced_with(client, "n", &resource);
    let check = async || {
        let all = widgets.list(&ListParams::default()).await.unwrap().items;
        let labels: Vec<_> = all.iter().map(|one| one.metadata.labels.clone().unwrap_or_default()).collect();
        assert!(labels.len() == 2 && labels.iter().all(|l| l.len() == 1 && l["good"] == "1"), "{labels:?}");
        assert_eq!(widgets.list_metadata(&ListParams::default()).await.unwrap().items.len(), 2);
    };
    check().await;
    assert!(api.repair().await);
    check().await;
    let stored = || api.store().list(api.store().resource("widgets.test.example"), None).0;
    for object in stored() {
        let value = object.value();
        assert_eq!(value["metadata"]["labels"], json!({"good": "1"}), "{value}");
        assert_eq!(
            (&value["metadata"]["annotations"], &value["apiVersion"]),
            (&Value::Null, &json!("test.example/v1"))
        );
    }
    // The definition has a controller, which may write at any time.
    let revisions = || stored().iter().map(|object| object.revision).collect::<Vec<u64>>();
    let before = revisions();
    assert!(api.repair().await);
    assert_eq!(before, revisions(), "what can be read stays as it is");
}
