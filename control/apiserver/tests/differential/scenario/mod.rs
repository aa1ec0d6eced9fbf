//! A fixed scenario: requests of kubelets, controllers and users about pods, nodes and related objects.

mod applies;
mod deletions;
mod nodes;
mod others;
mod patches;
mod pods;
mod refusals;
mod reviews;
mod statuses;
mod subresources;

use serde_json::{Value, json};

use crate::{
    api_server::{JSON, Step},
    kinds,
};

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const PATCH: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// The namespace of all that has one.
pub(crate) const NAMESPACE: &str = "diff";
/// The node whose credentials are used too.
pub(crate) const NODE: &str = "n0";

pub(crate) fn step(
    name: &str,
    who: &'static str,
    method: &'static str,
    path: &str,
    kind: &'static str,
    body: Value,
) -> Step {
    Step { name: name.to_owned(), who, method, path: path.to_owned(), kind, body, accept: JSON }
}

fn get(name: &str, path: &str) -> Step {
    step(name, "admin", "GET", path, JSON, Value::Null)
}

fn post(name: &str, path: &str, body: Value) -> Step {
    step(name, "admin", "POST", path, JSON, body)
}

/// A path of the namespace.
pub(crate) fn within(rest: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{rest}")
}

/// What is there before anything is asked.
pub(crate) fn fixtures() -> Vec<Step> {
    vec![
        post("namespace", "/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})),
        post("account", &within("serviceaccounts"), json!({"metadata": {"name": "default"}})),
        post("namespace of kinds", "/api/v1/namespaces", json!({"metadata": {"name": kinds::NAMESPACE}})),
        post(
            "account of kinds",
            &format!("/api/v1/namespaces/{}/serviceaccounts", kinds::NAMESPACE),
            json!({"metadata": {"name": "default"}}),
        ),
    ]
}

/// A pod that is bound.
pub(crate) fn pod(name: &str, mut spec: Value) -> Value {
    let fields = spec.as_object_mut().expect("a spec is an object");
    fields.entry("containers").or_insert_with(|| json!([{"name": "main", "image": "image:1"}]));
    fields.entry("nodeName").or_insert_with(|| json!(NODE));
    fields.entry("automountServiceAccountToken").or_insert_with(|| json!(false));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}

/// All steps, in order.
pub(crate) fn steps() -> Vec<Step> {
    [
        nodes::steps(),
        pods::steps(),
        statuses::steps(),
        patches::steps(),
        applies::steps(),
        refusals::steps(),
        subresources::steps(),
        deletions::steps(),
        others::steps(),
        reviews::steps(),
    ]
    .concat()
}
