//! Server-side apply and the owners of fields, through the API.

use super::*;

const APPLY: &str = "application/apply-patch+yaml";

/// Applies an object by a manager; `manager` may have further parameters.
async fn apply(api: &Api, path: &str, manager: &str, object: Value) -> Reply {
    let path = format!("{path}?fieldManager={manager}");
    send(api, &User::internal("test"), "PATCH", &path, APPLY, "application/json", &object.to_string()).await
}

fn applied_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

/// The fields that a manager owns, by its operation and subresource.
fn owned(object: &Value, manager: &str) -> Vec<(String, String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or("").to_owned();
    let of_manager = entries.filter(|entry| entry["manager"] == manager);
    of_manager.map(|e| (text(e, "operation"), text(e, "subresource"), e["fieldsV1"].clone())).collect()
}

fn data(fields: Value) -> Vec<(String, String, Value)> {
    vec![("Apply".to_owned(), String::new(), json!({"f:data": fields}))]
}

#[tokio::test]
async fn appliers_conflict_share_and_take_by_force() {
    let api = with_namespace().await;
    let path = format!("{MAPS}/m");
    let made = apply(&api, &path, "a", applied_map(json!({"k": "1", "l": "1"}))).await;
    assert_eq!((made.code, owned(&made.body, "a")), (201, data(json!({"f:k": {}, "f:l": {}}))));
    let conflict = apply(&api, &path, "b", applied_map(json!({"k": "2", "l": "1"}))).await;
    assert_eq!(conflict.code, 409);
    assert_eq!(
        conflict.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Conflict", "code": 409,
               "message": "Apply failed with 1 conflict: conflict with \"a\": .data.k",
               "details": {"causes": [{"reason": "FieldManagerConflict", "message": "conflict with \"a\"", "field": ".data.k"}]}})
    );
    let shared = apply(&api, &path, "b", applied_map(json!({"l": "1", "m": "3"}))).await;
    assert_eq!((shared.code, owned(&shared.body, "b")), (200, data(json!({"f:l": {}, "f:m": {}}))));
    let forced = apply(&api, &path, "b&force=true", applied_map(json!({"k": "2", "l": "1"}))).await;
    assert_eq!((forced.code, &forced.body["data"]), (200, &json!({"k": "2", "l": "1"})));
    assert_eq!(owned(&forced.body, "a"), data(json!({"f:l": {}})));
    // Fields that the other owns too stay; those without an owner are removed.
    let nothing = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let less = apply(&api, &path, "b", nothing).await;
    assert_eq!((&less.body["data"], owned(&less.body, "b")), (&json!({"l": "1"}), Vec::new()));
}

#[tokio::test]
async fn an_identical_apply_writes_nothing() {
    let api = with_namespace().await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1000m"}}}]}});
    let path = format!("{PODS}/p");
    let made = apply(&api, &path, "a", pod.clone()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let again = apply(&api, &path, "a", pod.clone()).await;
    assert_eq!((again.code, &again.body), (200, &made.body));
    // Neither does an update that brings the object as it is.
    let put = call(&api, "PUT", &path, made.body.clone()).await;
    assert_eq!((put.code, &put.body), (200, &made.body));
}

#[tokio::test]
async fn every_verb_records_its_manager() {
    let api = with_namespace().await;
    let user = User::internal("system:kube-controller-manager");
    let made =
        send(&api, &user, "POST", PODS, "application/json", "application/json", &pod("p").to_string()).await.body;
    let (operation, subresource, fields) = owned(&made, "kube-controller-manager").remove(0);
    assert_eq!((operation.as_str(), subresource.as_str()), ("Update", ""));
    let container = &fields["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"];
    assert_eq!(
        (&container["."], &container["f:image"], &container["f:resources"]),
        (&json!({}), &json!({}), &json!({}))
    );
    // Neither the status nor what admission and the system set is the client's.
    assert_eq!((fields.get("f:status"), fields["f:spec"].get("f:priority")), (None, None));
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, "spec": {"nodeName": "x"}});
    let path = format!("{PODS}/p/status?fieldManager=kubelet");
    let running = call(&api, "PATCH", &path, status).await;
    assert_eq!(
        owned(&running.body, "kubelet"),
        [(
            "Update".to_owned(),
            "status".to_owned(),
            json!({"f:status": {"f:phase": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {".": {}, "f:type": {}, "f:status": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}}}}})
        )]
    );
    let labelled = call(&api, "PATCH", &format!("{PODS}/p"), json!({"metadata": {"labels": {"l": "1"}}})).await.body;
    assert_eq!(
        owned(&labelled, "test"),
        [("Update".to_owned(), String::new(), json!({"f:metadata": {"f:labels": {".": {}, "f:l": {}}}}))]
    );
    let reset = json!({"metadata": {"managedFields": []}});
    let reset = call(&api, "PATCH", &format!("{PODS}/p"), reset).await.body;
    assert_eq!(reset["metadata"].get("managedFields"), None);
    // Until the next apply.
    let before = apply(
        &api,
        &format!("{PODS}/p"),
        "a",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"l": "2"}}}),
    )
    .await;
    assert_eq!(
        before.body["message"],
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .metadata.labels.l"
    );
}

#[tokio::test]
async fn a_scale_takes_the_replicas_alone() {
    let api = with_namespace().await;
    let base = "/api/v1/namespaces/n/replicationcontrollers";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let object = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"},
        "spec": {"replicas": 1, "selector": {"a": "b"}, "template": template}});
    let path = format!("{base}/r");
    assert_eq!(apply(&api, &path, "a", object.clone()).await.code, 201);
    let scale = call(&api, "PATCH", &format!("{path}/scale?fieldManager=s"), json!({"spec": {"replicas": 3}})).await;
    assert_eq!((scale.code, &scale.body["spec"]["replicas"]), (200, &json!(3)));
    let now = call(&api, "GET", &path, Value::Null).await.body;
    let replicas = json!({"f:spec": {"f:replicas": {}}});
    assert_eq!(owned(&now, "s"), [("Update".to_owned(), "scale".to_owned(), replicas)]);
    assert_eq!(owned(&now, "a")[0].2["f:spec"].get("f:replicas"), None);
    let conflict = apply(&api, &path, "a", object).await;
    assert_eq!(
        conflict.body["message"],
        "Apply failed with 1 conflict: conflict with \"s\" with subresource \"scale\" using v1: .spec.replicas"
    );
}

#[tokio::test]
async fn what_cannot_be_applied_is_refused() {
    let api = with_namespace().await;
    let path = format!("{MAPS}/m");
    let long = "x".repeat(129);
    let invalid = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: ";
    for (manager, object, code, message) in [
        ("", applied_map(json!({})), 422, format!("{invalid}Required value: is required for apply patch")),
        (long.as_str(), applied_map(json!({})), 422, format!("{invalid}Too long: may not be more than 128 bytes")),
        ("%09", applied_map(json!({})), 422, format!("{invalid}Invalid value: \"\\t\": invalid character U+0009 (at position 0)")),
        ("a", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "managedFields": [{}]}}), 400, "metadata.managedFields must be nil".to_owned()),
        ("a", applied_map(json!({"k": 1})), 500, "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .data.k: expected string, got &value.valueUnstructured{Value:1}".to_owned()),
    ] {
        let reply = apply(&api, &path, manager, object).await;
        assert_eq!((reply.code, reply.body["message"].as_str()), (code, Some(message.as_str())), "{manager}");
    }
    assert_eq!(call(&api, "GET", &path, Value::Null).await.code, 404);
    let force = call(&api, "PATCH", &format!("{path}?force=true"), json!({})).await;
    assert_eq!(
        force.body["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
    );
}

/// Controllers apply a status without a name, as kube-rs's examples do: the path has it. What is created needs one.
#[tokio::test]
async fn what_is_there_is_applied_without_a_name() {
    let api = with_namespace().await;
    let path = format!("{MAPS}/m");
    let nameless =
        |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "1"}});
    let undeterminable = "the name of the object (m based on URL) was undeterminable: name must be provided";
    let refused = apply(&api, &path, "a", nameless(json!({}))).await;
    assert_eq!((refused.code, refused.body["message"].as_str()), (400, Some(undeterminable)));
    call(&api, "POST", MAPS, json!({"metadata": {"name": "m"}})).await;
    for metadata in [json!({}), json!({"labels": {"l": "1"}})] {
        let applied = apply(&api, &path, "a", nameless(metadata.clone())).await;
        assert_eq!(
            (applied.code, &applied.body["data"], &applied.body["metadata"]["labels"]),
            (200, &json!({"k": "1"}), &metadata["labels"])
        );
    }
    let other = apply(&api, &path, "a", nameless(json!({"name": "other"}))).await;
    let words = "the name of the object (other) does not match the name on the URL (m)";
    assert_eq!((other.code, other.body["message"].as_str()), (400, Some(words)));
}
