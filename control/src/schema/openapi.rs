//! The OpenAPI v3 documents that kubectl reads before it applies or explains anything.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::{
    patch::merge_key,
    registry::{ResourceType, TYPES},
};

/// The list of documents: `api/v1`, `apis/coordination.k8s.io/v1` …
#[must_use]
pub fn index(paths: &[String]) -> Value {
    // The documents change with the program only.
    let hash = env!("CARGO_PKG_VERSION");
    let all: Map<String, Value> = paths
        .iter()
        .map(|p| (p.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{p}?hash={hash}")})))
        .collect();
    json!({"paths": all})
}

/// The document of one group and version. Made on each request: it is large, and seldom asked for.
#[must_use]
pub fn document(group: &str, version: &str) -> Value {
    let types: Vec<&ResourceType> = TYPES.iter().filter(|t| t.gvk.group == group && t.gvk.version == version).collect();
    let mut generator = SchemaSettings::openapi3().into_generator();
    let mut roots = Vec::new();
    for resource in &types {
        let schema = (resource.schema)(&mut generator);
        let name = schema.as_value()["$ref"].as_str().and_then(|r| r.rsplit('/').next()).unwrap_or("").to_owned();
        roots.push((*resource, name));
    }
    let mut schemas = generator.take_definitions(true);
    for (name, schema) in &mut schemas {
        annotate(name, schema);
    }
    let mut paths = Map::new();
    for (resource, name) in &roots {
        if let Some(schema) = schemas.get_mut(name).and_then(Value::as_object_mut) {
            schema.insert("x-kubernetes-group-version-kind".to_owned(), json!([gvk(resource)]));
        }
        let base = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let all = format!("{base}{scope}/{}", resource.plural);
        paths.insert(format!("{all}/{{name}}"), item_path(resource, name));
        paths.insert(all, collection_path(resource, name));
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": super::super::api::VERSION},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn gvk(resource: &ResourceType) -> Value {
    json!({"group": resource.gvk.group, "version": resource.gvk.version, "kind": resource.gvk.kind})
}

/// Adds the merge keys, from which kubectl computes its patches.
fn annotate(type_name: &str, schema: &mut Value) {
    let short = type_name.rsplit('.').next().unwrap_or("");
    // The field that holds this type, as the table of merge keys has it.
    let holder = match short {
        "PodSpec" | "ServiceSpec" | "NodeSpec" | "ReplicationControllerSpec" => "spec",
        "PodStatus" | "NodeStatus" | "ServiceStatus" | "NamespaceStatus" | "ReplicationControllerStatus" => "status",
        "Container" => "containers",
        "EphemeralContainer" => "ephemeralContainers",
        "ObjectMeta" => "metadata",
        "ServiceAccount" => "",
        _ => "-",
    };
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (field, property) in properties {
        let Some(property) = property.as_object_mut().filter(|p| p.get("type").is_some_and(|t| t == "array")) else { continue };
        if let Some(key) = merge_key(holder, field) {
            property.insert("x-kubernetes-patch-merge-key".to_owned(), json!(key));
            let strategy = if field == "volumes" { "merge,retainKeys" } else { "merge" };
            property.insert("x-kubernetes-patch-strategy".to_owned(), json!(strategy));
            property.insert("x-kubernetes-list-type".to_owned(), json!("map"));
            property.insert("x-kubernetes-list-map-keys".to_owned(), json!([key]));
        } else if matches!((holder, field.as_str()), ("metadata", "finalizers")) {
            property.insert("x-kubernetes-patch-strategy".to_owned(), json!("merge"));
            property.insert("x-kubernetes-list-type".to_owned(), json!("set"));
        } else {
            property.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
        }
    }
}

fn query(name: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}})
}

fn body(name: &str) -> Value {
    json!({"content": {"*/*": {"schema": {"$ref": format!("#/components/schemas/{name}")}}}})
}

fn answer(name: &str) -> Value {
    json!({"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}}}})
}

fn operation(resource: &ResourceType, name: &str, action: &str) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("tags".to_owned(), json!([format!("{}_{}", resource.gvk.group.replace('.', "_"), resource.gvk.version)]));
    out.insert("operationId".to_owned(), json!(format!("{action}{}", resource.gvk.kind)));
    out.insert("x-kubernetes-action".to_owned(), json!(action));
    out.insert("x-kubernetes-group-version-kind".to_owned(), gvk(resource));
    out.insert("responses".to_owned(), answer(name));
    out
}

fn writing(resource: &ResourceType, name: &str, action: &str) -> Value {
    let mut out = operation(resource, name, action);
    out.insert("parameters".to_owned(), json!([query("dryRun"), query("fieldManager"), query("fieldValidation")]));
    out.insert("requestBody".to_owned(), body(name));
    Value::Object(out)
}

fn item_path(resource: &ResourceType, name: &str) -> Value {
    let mut patch = operation(resource, name, "patch");
    patch.insert("parameters".to_owned(), json!([query("dryRun"), query("fieldManager"), query("fieldValidation"), query("force")]));
    let content: Map<String, Value> = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ]
    .iter()
    .map(|t| ((*t).to_owned(), json!({"schema": {"type": "object"}})))
    .collect();
    patch.insert("requestBody".to_owned(), json!({"content": content}));
    json!({
        "get": operation(resource, name, "get"),
        "put": writing(resource, name, "put"),
        "patch": patch,
        "delete": operation(resource, name, "delete"),
    })
}

fn collection_path(resource: &ResourceType, name: &str) -> Value {
    json!({"get": operation(resource, name, "list"), "post": writing(resource, name, "post")})
}
