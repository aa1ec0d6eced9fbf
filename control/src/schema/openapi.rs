//! The OpenAPI v3 documents that kubectl reads before it applies or explains anything.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use windlass_apimachinery::schema::{ListType, MapType, Schema};

use crate::{
    apiserver::types::{Catalog, Version},
    kinds::types,
};

/// The list of documents: `api/v1`, `apis/coordination.k8s.io/v1` …, each with a hash of what it says.
#[must_use]
pub fn index(catalog: &Catalog) -> Value {
    let versions = catalog.groups.iter().flat_map(|g| g.versions.iter().map(|v| path_of(&g.name, &v.version)));
    let entry = |path: String| {
        let url = format!("/openapi/v3/{path}?hash={}", hash_of(catalog, &path));
        (path, json!({"serverRelativeURL": url}))
    };
    json!({"paths": versions.map(entry).collect::<Map<String, Value>>()})
}

fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The path of a group and version in the list of documents, and the hash of what its document says.
#[must_use]
pub fn hash(catalog: &Catalog, group: &str, version: &str) -> (String, String) {
    let path = path_of(group, version);
    let hash = hash_of(catalog, &path);
    (path, hash)
}

/// A document's hash: kubectl keeps what it has read until the hash changes. The document itself is not kept.
fn hash_of(catalog: &Catalog, path: &str) -> String {
    static HASHES: Mutex<(u64, BTreeMap<String, String>)> = Mutex::new((0, BTreeMap::new()));
    let mut hashes = HASHES.lock().unwrap_or_else(PoisonError::into_inner);
    if hashes.0 != catalog.generation {
        *hashes = (catalog.generation, BTreeMap::new());
    }
    if let Some(hash) = hashes.1.get(path) {
        return hash.clone();
    }
    let group_version = path.strip_prefix("apis/").or_else(|| path.strip_prefix("api/")).unwrap_or(path);
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let mut hasher = DefaultHasher::new();
    document(catalog, group, version).to_string().hash(&mut hasher);
    let hash = format!("{:016X}", hasher.finish());
    hashes.1.insert(path.to_owned(), hash.clone());
    hash
}

/// The document of one group and version. Made on each request: it is large, and seldom asked for.
#[must_use]
pub fn document(catalog: &Catalog, group: &str, version: &str) -> Value {
    let types = catalog.group_version(group, version).map_or(&[][..], |v| v.resources.as_slice());
    let mut generator = SchemaSettings::openapi3().into_generator();
    let mut roots = Vec::new();
    for resource in types {
        let Some(built_in) = resource.spec.schema.as_built_in() else { continue };
        let schema = (built_in.schema)(&mut generator);
        let name = schema.as_value()["$ref"].as_str().and_then(|r| r.rsplit('/').next()).unwrap_or("").to_owned();
        roots.push((resource, name));
    }
    // Metadata of custom resources.
    let _ = generator.subschema_for::<ObjectMeta>();
    let mut schemas = generator.take_definitions(true);
    for (name, schema) in &mut schemas {
        annotate(name, schema);
    }
    for resource in types {
        if let Some(source) = resource.spec.schema.as_custom() {
            let name = custom_name(resource);
            schemas.insert(name.clone(), custom_schema(source));
            roots.push((resource, name));
        }
    }
    let mut paths = Map::new();
    for (resource, name) in &roots {
        if let Some(schema) = schemas.get_mut(name).and_then(Value::as_object_mut) {
            schema.insert("x-kubernetes-group-version-kind".to_owned(), json!([gvk(resource)]));
        }
        let base = format!("/{}", path_of(group, version));
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
        "info": {"title": "Kubernetes", "version": crate::apiserver::VERSION},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// The name of a custom type: the group backwards, version and kind.
fn custom_name(resource: &Version) -> String {
    let group: Vec<&str> = resource.gvk.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), resource.gvk.version, resource.gvk.kind)
}

/// The schema of a definition with what every object has.
fn custom_schema(source: &Value) -> Value {
    let mut schema = source.clone();
    let Some(fields) = schema.as_object_mut() else { return json!({"type": "object"}) };
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    let metadata = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    for (name, property) in [
        ("apiVersion", json!({"type": "string", "description": "The group and version of this form of the object."})),
        ("kind", json!({"type": "string", "description": "The kind of the object."})),
        ("metadata", json!({"allOf": [{"$ref": metadata}], "default": {}, "description": "Standard object metadata."})),
    ] {
        properties[name] = property;
    }
    schema
}

fn gvk(resource: &Version) -> Value {
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

fn operation(resource: &Version, name: &str, action: &str, suffix: &str) -> Map<String, Value> {
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

fn writing(resource: &Version, name: &str, action: &str, suffix: &str) -> Value {
    let mut out = operation(resource, name, action, suffix);
    out.insert("parameters".to_owned(), parameters(&["dryRun", "fieldManager", "fieldValidation"]));
    out.insert("requestBody".to_owned(), json!({"content": {"*/*": reference(name)}}));
    Value::Object(out)
}

fn patching(resource: &Version, name: &str, suffix: &str) -> Value {
    let mut out = operation(resource, name, "patch", suffix);
    out.insert("parameters".to_owned(), parameters(&["dryRun", "fieldManager", "fieldValidation", "force"]));
    // Custom resources have no strategic merge: kubectl merges them by JSON merge patch when it is not listed here.
    let strategic = resource.spec.schema.as_built_in().map(|_| "application/strategic-merge-patch+json");
    let content: Map<String, Value> =
        ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"]
            .iter()
            .chain(&strategic)
            .map(|t| ((*t).to_owned(), json!({"schema": {"type": "object"}})))
            .collect();
    out.insert("requestBody".to_owned(), json!({"content": content}));
    Value::Object(out)
}

/// What stands in the path itself.
fn place(resource: &Version, named: bool) -> Value {
    let names = [("name", named), ("namespace", resource.namespaced)];
    names.iter().filter(|(_, there)| *there).map(|(name, _)| parameter(name, "path")).collect()
}

fn item_path(resource: &Version, name: &str) -> Value {
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

fn status_path(resource: &Version, name: &str) -> Value {
    json!({
        "parameters": place(resource, true),
        "get": operation(resource, name, "get", "Status"),
        "put": writing(resource, name, "put", "Status"),
        "patch": patching(resource, name, "Status"),
    })
}

fn collection_path(resource: &Version, name: &str) -> Value {
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
