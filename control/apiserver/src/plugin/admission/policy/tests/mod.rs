//! Policies through the whole API.

mod audit;
mod mutating;
mod types;
mod validating;

use serde_json::{Value, json};

use crate::{
    apiserver::tests::{Reply, call, with_namespace},
    control_plane::instance::Instance,
};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/n/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/n/deployments";

/// A rule for all operations with a resource.
fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({"operations": ["CREATE", "UPDATE"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]})
}

fn merged(one: &Value, other: &Value) -> Value {
    let mut merged = one.clone();
    json_patch::merge(&mut merged, other);
    merged
}

async fn made(api: &Instance, path: &str, object: Value) -> Value {
    let reply = call(api, "POST", path, object).await;
    assert_eq!(reply.code, 201, "{}", reply.body);
    reply.body
}

/// Stores a policy that validates ConfigMaps, with a binding that denies; both have changes.
async fn validates(api: &Instance, name: &str, spec: &Value, binding: &Value) {
    let usual = json!({"matchConstraints": {"resourceRules": [rule("", "v1", "configmaps")]}});
    let policy = json!({"metadata": {"name": name}, "spec": merged(&usual, spec)});
    made(api, &format!("{POLICIES}/validatingadmissionpolicies"), policy).await;
    let usual = json!({"policyName": name, "validationActions": ["Deny"]});
    let binding = json!({"metadata": {"name": format!("{name}-b")}, "spec": merged(&usual, binding)});
    made(api, &format!("{POLICIES}/validatingadmissionpolicybindings"), binding).await;
}

/// Stores a policy that mutates ConfigMaps, with a binding; the policy has changes.
async fn mutates(api: &Instance, name: &str, spec: &Value) {
    let usual = json!({
        "matchConstraints": {"resourceRules": [rule("", "v1", "configmaps")]},
        "reinvocationPolicy": "Never",
    });
    let policy = json!({"metadata": {"name": name}, "spec": merged(&usual, spec)});
    made(api, &format!("{POLICIES}/mutatingadmissionpolicies"), policy).await;
    let binding = json!({"metadata": {"name": format!("{name}-b")}, "spec": {"policyName": name}});
    made(api, &format!("{POLICIES}/mutatingadmissionpolicybindings"), binding).await;
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

fn message(reply: &Reply) -> &str {
    reply.body["message"].as_str().unwrap_or("")
}
