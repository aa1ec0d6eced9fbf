//! What the operator's webhooks answer: pure functions of the review.

use serde_json::{Value, json};

use crate::webhook_server::Act;

/// The annotation by which a cache cannot be deleted.
pub(super) const PROTECTED: &str = "operators.example.com/protected";

pub(super) fn decide(path: &str, review: &Value) -> Act {
    let request = &review["request"];
    let is_cache = request["resource"]["resource"] == "caches" && request["subResource"].is_null();
    match path {
        "/label" if is_cache => label(&request["object"]),
        "/default" if is_cache => default(&request["object"]),
        "/check" => check(request, is_cache),
        "/guard" => Act::deny("objects of a cache are changed by its operator alone"),
        "/convert" => convert(request),
        _ => Act::allow(),
    }
}

/// A label with the tier, which another webhook may set after this one was called.
fn label(cache: &Value) -> Act {
    let (tier, labels) = (&cache["spec"]["tier"], &cache["metadata"]["labels"]);
    if tier.is_null() || labels["tier"] == *tier {
        return Act::allow();
    }
    let mut labels = labels.as_object().cloned().unwrap_or_default();
    labels.insert("tier".to_owned(), tier.clone());
    Act::patch(&json!([{"op": "add", "path": "/metadata/labels", "value": labels}]))
}

fn default(cache: &Value) -> Act {
    let mut operations = Vec::new();
    if cache["spec"]["tier"].is_null() {
        operations.push(json!({"op": "add", "path": "/spec/tier", "value": "standard"}));
    }
    if cache["spec"]["memory"].is_null() {
        operations.push(json!({"op": "add", "path": "/spec/memory", "value": {"limit": "64Mi"}}));
    }
    if operations.is_empty() { Act::allow() } else { Act::patch(&json!(operations)) }
}

fn check(request: &Value, is_cache: bool) -> Act {
    if request["operation"] == "DELETE" {
        let is_protected = !request["oldObject"]["metadata"]["annotations"][PROTECTED].is_null();
        return if is_protected { Act::deny("the cache is protected from deletion") } else { Act::allow() };
    }
    let object = &request["object"];
    if request["subResource"] == "scale" && object["spec"]["replicas"].as_u64() > Some(6) {
        return Act::deny("a cache has at most 6 replicas");
    }
    let limit = object["spec"]["memory"]["limit"].as_str().unwrap_or("");
    let is_amount = limit.strip_suffix("Mi").is_some_and(|amount| amount.parse::<u32>().is_ok());
    if is_cache && !is_amount {
        return Act::deny(&format!("memory {limit:?} is no amount that a cache can have"));
    }
    Act::allow()
}

/// v1alpha1 has `size` and a plain `memory`; v1 has `replicas` and a `memory` with its `limit`.
fn convert(request: &Value) -> Act {
    let desired = &request["desiredAPIVersion"];
    let mut objects = request["objects"].as_array().cloned().unwrap_or_default();
    for object in &mut objects {
        object["apiVersion"] = desired.clone();
        let Some(spec) = object["spec"].as_object_mut() else { continue };
        if *desired == "operators.example.com/v1" {
            spec.remove("size").map(|size| spec.insert("replicas".to_owned(), size));
            spec.remove("memory").map(|memory| spec.insert("memory".to_owned(), json!({"limit": memory})));
        } else {
            spec.remove("replicas").map(|replicas| spec.insert("size".to_owned(), replicas));
            spec.remove("memory").map(|mut memory| spec.insert("memory".to_owned(), memory["limit"].take()));
        }
    }
    Act::Answer(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}
