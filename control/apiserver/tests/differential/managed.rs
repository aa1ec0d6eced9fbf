//! Entries of `metadata.managedFields` that clients send: read, ignored or refused.

use serde_json::{Value, json};

use crate::{
    api_server::{JSON, Step},
    scenario::{MERGE, step},
};

const ALL: &str = "/api/v1/namespaces/default/configmaps";

/// A list of entries for each case; `null` fields of an entry are left out.
fn cases() -> Vec<(&'static str, Value)> {
    let entry = |more: Value| {
        let mut entry = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}}});
        for (name, field) in more.as_object().into_iter().flatten() {
            entry[name] = field.clone();
        }
        entry.as_object_mut().expect("an entry").retain(|_, field| !field.is_null());
        entry
    };
    let one = |more: Value| json!([entry(more)]);
    vec![
        ("one", one(json!({}))),
        ("operation", one(json!({"operation": "Oops"}))),
        ("no operation", one(json!({"operation": null}))),
        ("operation in small letters", one(json!({"operation": "apply"}))),
        ("no version", one(json!({"apiVersion": null}))),
        ("no such version", one(json!({"apiVersion": "v9"}))),
        ("another group", one(json!({"apiVersion": "apps/v1"}))),
        ("a version of three parts", one(json!({"apiVersion": "a/b/c"}))),
        ("type of fields", one(json!({"fieldsType": "FieldsV2"}))),
        ("no type of fields", one(json!({"fieldsType": null}))),
        ("no fields", one(json!({"fieldsV1": null}))),
        ("empty fields", one(json!({"fieldsV1": {}}))),
        ("fields as a text", one(json!({"fieldsV1": "x"}))),
        ("fields as a list", one(json!({"fieldsV1": []}))),
        ("fields without a kind", one(json!({"fieldsV1": {"data": {}}}))),
        ("fields of another kind", one(json!({"fieldsV1": {"x:data": {}}}))),
        ("fields that are numbers", one(json!({"fieldsV1": {"f:data": 1}}))),
        ("fields that are null", one(json!({"fieldsV1": {"f:data": null}}))),
        ("a key that is none", one(json!({"fieldsV1": {"k:{": {}}}))),
        ("fields that there are not", one(json!({"fieldsV1": {"f:nonsense": {}}}))),
        ("subresource", one(json!({"subresource": "x"}))),
        ("long subresource", one(json!({"subresource": "s".repeat(257)}))),
        ("longest subresource", one(json!({"subresource": "s".repeat(256)}))),
        ("long manager", one(json!({"manager": "m".repeat(129)}))),
        ("longest manager", one(json!({"manager": "m".repeat(128)}))),
        ("manager with a tab", one(json!({"manager": "a\tb"}))),
        ("no manager", one(json!({"manager": null}))),
        ("the same twice", json!([entry(json!({})), entry(json!({}))])),
        ("one manager twice", json!([entry(json!({})), entry(json!({"fieldsV1": {"f:data": {"f:b": {}}}}))])),
        ("two managers", json!([entry(json!({})), entry(json!({"manager": "n"}))])),
        ("time", one(json!({"time": "2026-01-01T00:00:00Z"}))),
        ("an unknown field", one(json!({"foo": 1}))),
        ("empty and one", json!([{}, entry(json!({}))])),
        ("bad and one", json!([entry(json!({"operation": "Oops"})), entry(json!({"manager": "n"}))])),
        ("null", json!([null])),
        ("empty", json!([{}])),
        ("two empty", json!([{}, {}])),
        ("none", json!([])),
    ]
}

/// Each case by a merge patch, an update and a creation.
pub(crate) fn steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for (number, (name, entries)) in cases().into_iter().enumerate() {
        let object = |name: &str, entries: Value| json!({"metadata": {"name": name, "managedFields": entries}, "data": {"a": "1", "b": "2", "n": "1"}});
        let mut add = |verb: &str, method: &'static str, path: &str, kind: &'static str, body: Value| {
            steps.push(step(&format!("managed: {name}, {verb}"), "admin", method, path, kind, body));
        };
        for verb in ["patched", "put"] {
            let map = format!("managed-{number}-{verb}");
            let base = json!({"metadata": {"name": map}, "data": {"a": "1", "b": "2"}});
            add("before", "POST", &format!("{ALL}?fieldManager=base"), JSON, base);
            let path = format!("{ALL}/{map}?fieldManager=k");
            if verb == "put" {
                add(verb, "PUT", &path, JSON, object(&map, entries.clone()));
            } else {
                let patch = json!({"metadata": {"managedFields": entries}, "data": {"n": "1"}});
                add(verb, "PATCH", &path, MERGE, patch);
            }
        }
        add("made", "POST", &format!("{ALL}?fieldManager=k"), JSON, object(&format!("managed-{number}"), entries));
    }
    steps
}
