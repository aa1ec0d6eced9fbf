//! The measured objects and definitions.

use serde_json::{Map, Value, json};

pub(crate) const NAMESPACE: &str = "bench";
pub(crate) const GROUP: &str = "bench.example";
/// The fields of an object of some 4 KB.
const FIELDS: usize = 40;

fn text_of(length: usize) -> Value {
    json!("x".repeat(length))
}

/// A ConfigMap of some 4 KB.
pub(crate) fn config_map(name: &str, label: &str) -> Value {
    let data: Map<String, Value> = (0..FIELDS).map(|at| (format!("field{at:02}"), text_of(90))).collect();
    json!({"metadata": {"name": name, "labels": {"hooked": label}}, "data": data})
}

/// A custom object with the same fields.
pub(crate) fn thing(name: &str) -> Value {
    let spec: Map<String, Value> = (0..FIELDS).map(|at| (format!("field{at:02}"), text_of(90))).collect();
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Thing", "metadata": {"name": name, "labels": {"hooked": "no"}}, "spec": spec})
}

/// A definition of namespaced objects.
pub(crate) fn definition(plural: &str, kind: &str, schema: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]},
    })
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

/// The schema of [`thing`], with a status as most have one.
pub(crate) fn schema_of_things() -> Value {
    let field = json!({"type": "string", "maxLength": 250, "description": "What a field of this name is for."});
    let spec: Map<String, Value> = (0..FIELDS).map(|at| (format!("field{at:02}"), field.clone())).collect();
    let condition = object(json!({"type": {"type": "string"}, "status": {"type": "string"}}));
    let status = object(json!({"conditions": {"type": "array", "items": condition}}));
    object(json!({"spec": object(Value::Object(spec)), "status": status}))
}

/// Rules of the kind that Gateway API has, on lists of rules, backends and filters of a route.
pub(crate) const RULES: [&str; 8] = [
    "self.rules.all(r, !has(r.backends) || r.backends.size() <= 16)",
    "self.rules.all(r, !has(r.filters) || !(r.filters.exists(f, f.type == 'Redirect') && has(r.backends) && r.backends.size() > 0))",
    "self.rules.all(r, r.filters.filter(f, f.type == 'Rewrite').size() <= 1)",
    "self.rules.all(r, !has(r.name) || self.rules.exists_one(other, has(other.name) && other.name == r.name))",
    "self.hostnames.all(h, h == '' || h.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?\\\\.)*[a-z]+$'))",
    "self.parents.all(p, has(p.port) ? p.port > 0 && p.port < 65536 : true)",
    "self.rules.all(r, r.backends.all(b, has(b.port) || b.kind != 'Service'))",
    "self.rules.map(r, size(r.backends)).sum() <= 128",
];

/// The schema of routes, with or without rules.
pub(crate) fn schema_of_routes(rules: &[&str]) -> Value {
    let text = json!({"type": "string", "maxLength": 253});
    let list = |items: Value, most: u32| json!({"type": "array", "maxItems": most, "items": items});
    let port = json!({"type": "integer", "format": "int32"});
    let backend = object(json!({"name": text, "kind": text, "port": port, "weight": {"type": "integer"}}));
    let filter = object(json!({"type": text, "value": text}));
    let rule = object(json!({"name": text, "backends": list(backend, 16), "filters": list(filter, 16)}));
    let parent = object(json!({"name": text, "port": port}));
    let mut spec = object(json!({"rules": list(rule, 16), "hostnames": list(text, 16), "parents": list(parent, 32)}));
    let rules: Vec<Value> = rules.iter().map(|rule| json!({"rule": rule})).collect();
    if !rules.is_empty() {
        spec["x-kubernetes-validations"] = json!(rules);
    }
    object(json!({"spec": spec}))
}

/// A route that all rules hold for.
pub(crate) fn route(kind: &str, name: &str) -> Value {
    let backend = |at: u32| json!({"name": format!("b{at}"), "kind": "Service", "port": 80 + at, "weight": 1});
    let filters = json!([{"type": "Rewrite", "value": "/"}, {"type": "Header", "value": "x"}]);
    let rule = |at: u32| json!({"name": format!("rule-{at}"), "backends": (0..4).map(backend).collect::<Vec<_>>(), "filters": filters});
    let spec = json!({"rules": (0..8).map(rule).collect::<Vec<_>>(), "hostnames": ["a.example.com", "b.example.com"],
        "parents": [{"name": "g", "port": 443}]});
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A schema of about so many bytes: nested objects with descriptions, as operators have them.
pub(crate) fn schema_of_size(bytes: usize) -> Value {
    let description = "A sentence that says what the field is for and what values it takes. ".repeat(4);
    let field = json!({"type": "string", "maxLength": 250, "description": description});
    let group: Map<String, Value> = (0..20).map(|at| (format!("field{at:02}"), field.clone())).collect();
    let group = object(Value::Object(group));
    let count = (bytes / group.to_string().len()).max(1);
    object(
        json!({"spec": object((0..count).map(|at| (format!("group{at:03}"), group.clone())).collect::<Map<_, _>>().into())}),
    )
}
