//! Several versions of a custom resource: how each represents an object stored in any of them.

use serde_json::{Value, json};

use super::{DEFINITIONS, condition, establish, serve};
use crate::apiserver::tests::{call, with_namespace};

const FIRST: &str = "/apis/test.example/v1/namespaces/n/gears";
const SECOND: &str = "/apis/test.example/v2/namespaces/n/gears";
const DEFINITION: &str = "gears.test.example";

/// Two versions that share `size` and have a field of their own, with a default.
fn gears() -> Value {
    let version = |name: &str, own: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer"}, own: {"type": "string", "default": own}}},
        }}}})
    };
    json!({
        "metadata": {"name": DEFINITION},
        "spec": {"group": "test.example", "scope": "Namespaced", "names": {"plural": "gears", "kind": "Gear"},
            "versions": [version("v1", "old", true), version("v2", "new", false)]},
    })
}

fn gear(version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("test.example/{version}"), "kind": "Gear", "metadata": {"name": name}, "spec": spec})
}

/// The definition with another storage version.
fn stored_as_second(mut definition: Value) -> Value {
    definition["spec"]["versions"][0]["storage"] = json!(false);
    definition["spec"]["versions"][1]["storage"] = json!(true);
    definition
}

#[tokio::test]
async fn an_object_has_in_each_version_what_both_have() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, gears()).await;
    let made = call(&api, "POST", FIRST, gear("v1", "a", json!({"size": 1, "old": "x"}))).await;
    assert_eq!((made.code, &made.body["spec"]), (201, &json!({"size": 1, "old": "x"})), "{}", made.body);
    let made = call(&api, "POST", SECOND, gear("v2", "b", json!({"size": 2, "new": "y"}))).await;
    // What the storage version does not have is gone; defaults are those of the stored version.
    assert_eq!((made.code, &made.body["spec"]), (201, &json!({"size": 2})), "{}", made.body);
    let dry = call(&api, "POST", &format!("{SECOND}?dryRun=All"), gear("v2", "c", json!({"new": "y"}))).await;
    assert_eq!((dry.code, &dry.body["spec"]), (201, &json!({})), "{}", dry.body);
    for (path, spec) in
        [(format!("{SECOND}/a"), json!({"size": 1})), (format!("{FIRST}/b"), json!({"size": 2, "old": "old"}))]
    {
        assert_eq!(call(&api, "GET", &path, Value::Null).await.body["spec"], spec, "{path}");
    }
    let list = call(&api, "GET", SECOND, Value::Null).await.body;
    let items: Vec<(&Value, &Value)> =
        list["items"].as_array().unwrap().iter().map(|item| (&item["apiVersion"], &item["spec"])).collect();
    let version = json!("test.example/v2");
    assert_eq!(items, [(&version, &json!({"size": 1})), (&version, &json!({"size": 2}))]);
}

#[tokio::test]
async fn objects_keep_their_stored_version_until_written() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    establish(&api, gears()).await;
    let path = format!("{DEFINITIONS}/{DEFINITION}");
    call(&api, "POST", FIRST, gear("v1", "a", json!({"size": 1}))).await;
    let definition = call(&api, "GET", &path, Value::Null).await.body;
    let changed = call(&api, "PUT", &path, stored_as_second(definition)).await;
    assert_eq!((changed.code, &changed.body["status"]["storedVersions"]), (200, &json!(["v1", "v2"])));
    super::until(&api, &format!("{SECOND}/a"), |reply| reply.code == 200).await;
    let both = async |first: Value, second: Value| {
        assert_eq!(call(&api, "GET", &format!("{FIRST}/a"), Value::Null).await.body["spec"], first);
        assert_eq!(call(&api, "GET", &format!("{SECOND}/a"), Value::Null).await.body["spec"], second);
    };
    both(json!({"size": 1, "old": "old"}), json!({"size": 1})).await;
    // A write that changes nothing brings it to the storage version; the task follows the definition meanwhile.
    for _ in 0..200 {
        call(&api, "PATCH", &format!("{SECOND}/a"), json!({})).await;
        if call(&api, "GET", &format!("{SECOND}/a"), Value::Null).await.body["spec"]["new"] == "new" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    both(json!({"size": 1}), json!({"size": 1, "new": "new"})).await;

    let status = async |stored: Value| {
        let patch = json!({"status": {"storedVersions": stored}});
        call(&api, "PATCH", &format!("{path}/status"), patch).await.body["status"]["storedVersions"].clone()
    };
    let mut last = call(&api, "GET", &path, Value::Null).await.body;
    last["spec"]["versions"].as_array_mut().unwrap().remove(0);
    let refused = call(&api, "PUT", &path, last.clone()).await;
    let why = "missing from spec.versions; v1 was previously a storage version";
    assert!(refused.code == 422 && refused.body["message"].as_str().unwrap().contains(why), "{}", refused.body);
    assert_eq!(status(json!([])).await, json!(["v2"]), "the storage version is there always");
    assert_eq!(status(json!(["v1", "v2"])).await, json!(["v1", "v2"]));
    assert_eq!(status(json!(["v2"])).await, json!(["v2"]));
    last["metadata"] = call(&api, "GET", &path, Value::Null).await.body["metadata"].clone();
    let accepted = call(&api, "PUT", &path, last).await;
    assert_eq!(accepted.code, 200, "{}", accepted.body);
}

#[tokio::test]
async fn a_webhook_that_is_down_costs_the_versions_that_it_converts() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    let mut hooked = gears();
    hooked["spec"]["conversion"] = json!({"strategy": "Webhook",
        "webhook": {"clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"]}});
    establish(&api, hooked).await;
    let empty = call(&api, "GET", SECOND, Value::Null).await;
    assert_eq!((empty.code, &empty.body["items"]), (200, &json!([])));
    assert_eq!(call(&api, "POST", FIRST, gear("v1", "a", json!({"size": 1}))).await.code, 201);
    let one = format!("{SECOND}/a");
    for (method, path, body, from) in [
        ("GET", one.clone(), Value::Null, "v1"),
        ("GET", SECOND.to_owned(), Value::Null, "v1"),
        ("GET", format!("{SECOND}?limit=1"), Value::Null, "v1"),
        ("PATCH", one.clone(), json!({"spec": {"size": 2}}), "v1"),
        ("DELETE", one.clone(), Value::Null, "v1"),
        ("DELETE", SECOND.to_owned(), Value::Null, "v1"),
        ("POST", SECOND.to_owned(), gear("v2", "b", json!({})), "v2"),
        ("POST", format!("{SECOND}?dryRun=All"), gear("v2", "b", json!({})), "v2"),
    ] {
        let refused = call(&api, method, &path, body).await;
        let why = format!("conversion webhook for test.example/{from}, Kind=Gear failed: ");
        let message = refused.body["message"].as_str().unwrap_or("");
        assert!(refused.code == 500 && message.starts_with(&why), "{method} {path}: {}", refused.body);
    }
    assert_eq!(call(&api, "GET", &format!("{SECOND}/none"), Value::Null).await.code, 404);
    let changed = call(&api, "PATCH", &format!("{FIRST}/a"), json!({"spec": {"size": 3}})).await;
    assert_eq!((changed.code, &changed.body["spec"]["size"]), (200, &json!(3)));
    assert_eq!(call(&api, "GET", FIRST, Value::Null).await.body["items"].as_array().unwrap().len(), 1);
    let watch = call(&api, "GET", &format!("{SECOND}?watch=true&timeoutSeconds=1"), Value::Null).await;
    assert_eq!((&watch.body["type"], &watch.body["object"]["code"]), (&json!("ERROR"), &json!(500)), "{}", watch.body);
    assert_eq!(call(&api, "DELETE", &format!("{FIRST}/a"), Value::Null).await.code, 200);
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_delays_a_definition() {
    let api = with_namespace().await;
    let _stop = serve(&api);
    let mut hooked = gears();
    let webhook = json!({"clientConfig": {"url": "https://hook.example", "caBundle": "bm9wZQ=="}, "conversionReviewVersions": ["v1"]});
    hooked["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
    assert_eq!(call(&api, "POST", DEFINITIONS, hooked.clone()).await.code, 201);
    let path = format!("{DEFINITIONS}/{DEFINITION}");
    let delayed = super::until(&api, &path, |reply| condition(&reply.body, "Established").1 == "InvalidCABundle").await;
    assert_eq!(condition(&delayed.body, "Established").0, "False");
    let mended =
        call(&api, "PATCH", &path, json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}})).await;
    assert_eq!(mended.code, 200, "{}", mended.body);
    super::until(&api, &path, |reply| condition(&reply.body, "Established").0 == "True").await;
    let refused = call(&api, "PATCH", &path, json!({"spec": {"conversion": hooked["spec"]["conversion"]}})).await;
    let why =
        "caBundle: Invalid value: \"bm9wZQ==\": unable to load root certificates: unable to parse bytes as PEM block";
    assert!(refused.body["message"].as_str().unwrap_or("").contains(why), "{}", refused.body);
}

#[tokio::test]
async fn who_follows_all_types_is_not_woken_by_a_category() {
    let api = with_namespace().await;
    let _stop = serve(&api).drop_guard();
    let mut types = api.catalogs().served_types();
    establish(&api, gears()).await;
    assert!(types.has_changed().unwrap());
    types.mark_unchanged();
    let path = format!("{DEFINITIONS}/{DEFINITION}");
    let changed = call(&api, "PATCH", &path, json!({"spec": {"names": {"categories": ["machinery"]}}})).await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    super::until(&api, "/apis/test.example/v1", |reply| reply.body.to_string().contains("machinery")).await;
    assert!(!types.has_changed().unwrap(), "for a category");
    assert_eq!(call(&api, "DELETE", &path, Value::Null).await.code, 200);
    super::until(&api, "/apis/test.example/v1", |reply| reply.code == 404).await;
    assert!(types.has_changed().unwrap(), "for the end of a type");
}
