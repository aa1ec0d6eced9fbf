//! Webhooks through the whole API, with a server of their own.

#[path = "../../../../../tests/webhook_server/mod.rs"]
mod webhook_server;

mod exchanges;
mod failures;
mod operators;
mod requests;

use serde_json::{Value, json};
pub(crate) use webhook_server::{Act, WebhookServer};

use crate::{
    apiserver::tests::{Reply, call, with_namespace},
    control_plane::instance::Instance,
};

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/n/configmaps";
const PODS: &str = "/api/v1/namespaces/n/pods";

/// An API with a namespace, and a webhook that nobody calls yet.
async fn api_and_webhook() -> (Instance, WebhookServer) {
    (with_namespace().await, WebhookServer::start("127.0.0.1", &["hook.n.svc"]).await)
}

/// A webhook at a path of the server, for everything unless `changes` say otherwise.
fn hook(server: &WebhookServer, path: &str, changes: &Value) -> Value {
    let mut hook = json!({
        "name": format!("{}.hook.example", path.trim_matches('/')),
        "clientConfig": server.client_config(path),
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    json_patch::merge(&mut hook, changes);
    hook
}

/// Stores a configuration: `mutating` or `validating`.
async fn configure(api: &Instance, kind: &str, name: &str, hooks: &[Value]) -> Reply {
    let path = format!("{CONFIGURATIONS}/{kind}webhookconfigurations");
    let made = call(api, "POST", &path, json!({"metadata": {"name": name}, "webhooks": hooks})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    made
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

/// A patch that adds a key to the data of a map.
fn adds(key: &str, value: &str) -> Act {
    Act::patch(&json!([{"op": "add", "path": format!("/data/{key}"), "value": value}]))
}
