//! The OpenAPI v3 documents that kubectl reads before it applies or explains anything.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, PoisonError},
};

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use windlass_apimachinery::schema::{ListType, MapType, Schema};

use crate::{
    kinds::types,
    registry::{self, ResourceType},
};

/// The list of documents: `api/v1`, `apis/coordination.k8s.io/v1` …, each with a hash of what it says.
#[must_use]
pub fn index(paths: &[String]) -> Value {
    let all: Map<String, Value> = paths
        .iter()
        .map(|path| (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", hash_of(path))})))
        .collect();
    json!({"paths": all})
}

/// The path of a group and version in the list of documents, and the hash of what its document says.
#[must_use]
pub fn hash(group: &str, version: &str) -> (String, String) {
    let path = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
    let hash = hash_of(&path);
    (path, hash)
}

/// A document's hash: kubectl keeps what it has read until the hash changes. The document itself is not kept.
fn hash_of(path: &str) -> String {
    static HASHES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let mut hashes = HASHES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hash) = hashes.get(path) {
        return hash.clone();
    }
    let group_version = path.strip_prefix("apis/").or_else(|| path.strip_prefix("api/")).unwrap_or(path);
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let mut hasher = DefaultHasher::new();
    document(group, version).to_string().hash(&mut hasher);
    let hash = format!("{:016X}", hasher.finish());
    hashes.insert(path.to_owned(), hash.clone());
    hash
}

/// The document of one group and version. Made on each request: it is large, and seldom asked for.
#[must_use]
pub fn document(group: &str, version: &str) -> Value {
    let types: Vec<&ResourceType> =
        registry::all().filter(|t| t.gvk.group == group && t.gvk.version == version).collect();
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
        if resource.namespaced {
            paths.insert(
                format!("{base}/{}", resource.plural),
                json!({"get": operation(resource, name, "list", "Everywhere")}),
            );
        }
        if resource.has_status() {
            paths.insert(format!("{all}/{{name}}/status"), status_path(resource, name));
        }
        paths.insert(format!("{all}/{{name}}"), item_path(resource, name));
        paths.insert(all, collection_path(resource, name));
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": crate::api::VERSION},
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
    if let Some(schema) = schema.as_object_mut() {
        // In the published description of version 3 these two are told by alternatives.
        let alternatives = match short {
            "IntOrString" => Some(json!([{"type": "integer"}, {"type": "string"}])),
            "Quantity" => Some(json!([{"type": "string"}, {"type": "number"}])),
            _ => None,
        };
        if let Some(alternatives) = alternatives {
            schema.remove("x-kubernetes-int-or-string");
            schema.remove("type");
            schema.insert("oneOf".to_owned(), alternatives);
            if short == "IntOrString" {
                schema.insert("format".to_owned(), json!("int-or-string"));
            }
        }
    }
    // `io.k8s.api.core.v1.Pod` is `core/v1.Pod` in the tables.
    let mut parts = type_name.rsplit('.').skip(1);
    let (version, package) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(of) = types::TYPES.named(&format!("{package}/{version}.{short}")) else { return };
    if let Some(schema) = schema.as_object_mut() {
        annotate_map(of.definition(), schema);
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (field, property) in properties.iter_mut().filter_map(|(f, p)| Some((f, p.as_object_mut()?))) {
        if let Some(schema) = of.definition().field(field) {
            annotate_map(schema, property);
            annotate_list(schema, property);
        }
    }
}

fn annotate_map(schema: &Schema, property: &mut Map<String, Value>) {
    let map_type = match schema.map_type {
        Some(MapType::Atomic) => "atomic",
        Some(MapType::Granular) => "granular",
        None => return,
    };
    property.insert("x-kubernetes-map-type".to_owned(), json!(map_type));
}

fn annotate_list(schema: &Schema, property: &mut Map<String, Value>) {
    let mut set = |key: &str, value: Value| drop(property.insert(format!("x-kubernetes-{key}"), value));
    match &schema.list_type {
        Some(ListType::Atomic) => set("list-type", json!("atomic")),
        Some(ListType::Set) => set("list-type", json!("set")),
        Some(ListType::Map(keys)) => {
            set("list-type", json!("map"));
            set("list-map-keys", keys.iter().map(|key| Value::from(&**key)).collect());
        }
        None => {}
    }
    if let Some(key) = &schema.merge_key {
        set("patch-merge-key", json!(**key));
    }
    let strategy = schema.patch_strategy;
    let words = [("merge", strategy.merge), ("retainKeys", strategy.retain_keys), ("replace", strategy.replace)];
    let words: Vec<&str> = words.iter().filter(|(_, set)| *set).map(|(word, _)| *word).collect();
    if !words.is_empty() {
        set("patch-strategy", json!(words.join(",")));
    }
}

fn parameter(name: &str, place: &str) -> Value {
    json!({"name": name, "in": place, "required": place == "path", "schema": {"type": "string", "uniqueItems": true}})
}

fn parameters(names: &[&str]) -> Value {
    names.iter().map(|name| parameter(name, "query")).collect()
}

fn reference(name: &str) -> Value {
    json!({"schema": {"$ref": format!("#/components/schemas/{name}")}})
}

fn operation(resource: &ResourceType, name: &str, action: &str, suffix: &str) -> Map<String, Value> {
    let group = if resource.gvk.group.is_empty() { "core".to_owned() } else { resource.gvk.group.replace('.', "_") };
    let mut out = Map::new();
    out.insert("tags".to_owned(), json!([format!("{group}_{}", resource.gvk.version)]));
    out.insert("operationId".to_owned(), json!(format!("{action}{}{suffix}", resource.gvk.kind)));
    out.insert("x-kubernetes-action".to_owned(), json!(action));
    out.insert("x-kubernetes-group-version-kind".to_owned(), gvk(resource));
    out.insert(
        "responses".to_owned(),
        json!({"200": {"description": "OK", "content": {"application/json": reference(name)}}}),
    );
    out
}

fn writing(resource: &ResourceType, name: &str, action: &str, suffix: &str) -> Value {
    let mut out = operation(resource, name, action, suffix);
    out.insert("parameters".to_owned(), parameters(&["dryRun", "fieldManager", "fieldValidation"]));
    out.insert("requestBody".to_owned(), json!({"content": {"*/*": reference(name)}}));
    Value::Object(out)
}

fn patching(resource: &ResourceType, name: &str, suffix: &str) -> Value {
    let mut out = operation(resource, name, "patch", suffix);
    out.insert("parameters".to_owned(), parameters(&["dryRun", "fieldManager", "fieldValidation", "force"]));
    let content: Map<String, Value> = [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ]
    .iter()
    .map(|t| ((*t).to_owned(), json!({"schema": {"type": "object"}})))
    .collect();
    out.insert("requestBody".to_owned(), json!({"content": content}));
    Value::Object(out)
}

/// What stands in the path itself.
fn place(resource: &ResourceType, named: bool) -> Value {
    let names = [("name", named), ("namespace", resource.namespaced)];
    names.iter().filter(|(_, there)| *there).map(|(name, _)| parameter(name, "path")).collect()
}

fn item_path(resource: &ResourceType, name: &str) -> Value {
    if !resource.verbs.contains(&"create") {
        return json!({"parameters": place(resource, true), "get": operation(resource, name, "get", "")});
    }
    json!({
        "parameters": place(resource, true),
        "get": operation(resource, name, "get", ""),
        "put": writing(resource, name, "put", ""),
        "patch": patching(resource, name, ""),
        "delete": operation(resource, name, "delete", ""),
    })
}

fn status_path(resource: &ResourceType, name: &str) -> Value {
    json!({
        "parameters": place(resource, true),
        "get": operation(resource, name, "get", "Status"),
        "put": writing(resource, name, "put", "Status"),
        "patch": patching(resource, name, "Status"),
    })
}

fn collection_path(resource: &ResourceType, name: &str) -> Value {
    if !resource.verbs.contains(&"create") {
        return json!({"parameters": place(resource, false), "get": operation(resource, name, "list", "")});
    }
    json!({
        "parameters": place(resource, false),
        "get": operation(resource, name, "list", ""),
        "post": writing(resource, name, "post", ""),
        "delete": operation(resource, name, "deletecollection", ""),
    })
}
