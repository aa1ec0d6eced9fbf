use serde_json::json;

use super::*;
use crate::kinds::types::schema;

#[test]
fn apply_merges_the_configuration_into_the_object() {
    let current = json!({"metadata": {"uid": "u", "labels": {"a": "1"}}, "spec": {"selector": {"old": "x"}, "clusterIP": "10.96.0.9",
        "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053, "targetPort": 53}]}});
    let applied = json!({"metadata": {"labels": {"b": "2"}}, "spec": {"selector": {"new": "y"}, "type": null,
        "ports": [{"port": 53, "protocol": "UDP", "targetPort": 5353}, {"port": 53}]}});
    let merged = apply(PatchKind::Apply, &schema("core/v1.Service"), &current, &applied).unwrap();
    assert_eq!(
        merged,
        json!({"metadata": {"uid": "u", "labels": {"a": "1", "b": "2"}}, "spec": {"selector": {"new": "y"}, "clusterIP": "10.96.0.9",
        "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053, "targetPort": 5353}, {"port": 53}]}})
    );
    assert_eq!(
        apply(PatchKind::Apply, &schema("core/v1.Service"), &merged, &applied).unwrap(),
        merged,
        "once more changes nothing"
    );
    let pod = json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}], "containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}});
    let other = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "a", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]}});
    assert_eq!(apply(PatchKind::Apply, &schema("core/v1.Pod"), &pod, &other).unwrap(), other, "one source only");
}

#[test]
fn an_item_without_its_key_is_refused() {
    let pod = json!({"spec": {"containers": [{"name": "a"}]}});
    let nameless = json!({"spec": {"containers": [{"image": "no name"}]}});
    let error = apply(PatchKind::Apply, &schema("core/v1.Pod"), &pod, &nameless).unwrap_err();
    assert!(error.code() == 400 && error.to_string().contains("\"name\""), "{error}");
}

#[test]
fn a_new_list_keeps_ports_that_differ_by_protocol() {
    let ports = json!([{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]);
    let made =
        apply(PatchKind::Apply, &schema("core/v1.Service"), &json!({"spec": {}}), &json!({"spec": {"ports": ports}}));
    assert_eq!(made.unwrap()["spec"]["ports"], ports);
}
