//! Policies through the whole API.

mod audit;
mod long;
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

/// Custom resources are parameters and what policies are about, as any other.
#[tokio::test]
async fn custom_resources_are_parameters_and_are_changed() {
    let api = with_namespace().await;
    let size = json!({"type": "object", "properties": {
        "size": {"type": "integer"},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "value": {"type": "string", "default": "usual"},
            },
        }},
    }});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": size},
    }}});
    let definition = json!({
        "metadata": {"name": "boxes.rules.example"},
        "spec": {"group": "rules.example", "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box"}, "versions": [version]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    made(&api, definitions, definition).await;
    let path = format!("{definitions}/boxes.rules.example");
    let _serving = crate::apiextensions::tests::establish_all(&api, &[path]).await;
    let boxes = "/apis/rules.example/v1/namespaces/n/boxes";
    let sized = |name: &str, size: i64| json!({"apiVersion": "rules.example/v1", "kind": "Box", "metadata": {"name": name}, "spec": {"size": size, "items": [{"name": "a"}]}});
    made(&api, boxes, sized("limit", 5)).await;
    let of_boxes = json!({"matchConstraints": {"resourceRules": [rule("rules.example", "v1", "boxes")]}});
    let spec = json!({
        "paramKind": {"apiVersion": "rules.example/v1", "kind": "Box"},
        "validations": [{
            "expression": "object.spec.size <= params.spec.size",
            "messageExpression": "'at most ' + string(params.spec.size) + ' as ' + params.metadata.name + ' says'",
        }],
    });
    let binding = json!({"paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"}});
    validates(&api, "v", &merged(&of_boxes, &spec), &binding).await;
    let refused = call(&api, "POST", boxes, sized("large", 6)).await;
    assert!(message(&refused).ends_with("denied request: at most 5 as limit says"), "{}", refused.body);
    let expression = "Object{spec: Object.spec{items: [Object.spec.items{name: 'b'}]}}";
    let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    mutates(&api, "m", &merged(&of_boxes, &json!({"mutations": [mutation]}))).await;
    let stored = made(&api, boxes, sized("small", 1)).await;
    // What was added has defaults.
    assert_eq!(stored["spec"]["items"], json!([{"name": "a", "value": "usual"}, {"name": "b", "value": "usual"}]));
}
