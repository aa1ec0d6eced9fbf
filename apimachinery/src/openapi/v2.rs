//! The forms of version 2.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    definitions::{GVK, REFERENCE_PREFIX, gvk_value},
    operation::{Operation, Path},
    parameters::Parameter,
};

/// Parameters that many operations have stand once.
#[derive(Debug, Default)]
pub(super) struct SharedParameters {
    /// The ones of each name.
    by_name: BTreeMap<String, Vec<Parameter>>,
}

impl SharedParameters {
    /// A reference to a parameter, or itself if it belongs to one path.
    fn refer(&mut self, parameter: &Parameter) -> Value {
        if parameter.place == "path" && parameter.name == "name" {
            return parameter_value(parameter);
        }
        let known = self.by_name.entry(parameter.name.clone()).or_default();
        let place = known.iter().position(|one| one == parameter).unwrap_or_else(|| {
            known.push(parameter.clone());
            known.len() - 1
        });
        json!({"$ref": format!("#/parameters/{}", key(&parameter.name, place))})
    }

    pub(super) fn finish(self) -> Value {
        let mut all = Map::new();
        for (name, parameters) in &self.by_name {
            for (place, parameter) in parameters.iter().enumerate() {
                all.insert(key(name, place), parameter_value(parameter));
            }
        }
        Value::Object(all)
    }
}

fn key(name: &str, place: usize) -> String {
    if place == 0 { name.to_owned() } else { format!("{name}-{}", place + 1) }
}

fn parameter_value(parameter: &Parameter) -> Value {
    let mut out = json!({
        "uniqueItems": true,
        "type": parameter.kind,
        "description": parameter.description,
        "name": parameter.name,
        "in": parameter.place,
    });
    if parameter.place == "path" {
        out["required"] = true.into();
    }
    out
}

pub(super) fn path(path: &Path, tag: &str, shared: &mut SharedParameters) -> Value {
    let mut out = Map::new();
    for operation in &path.operations {
        out.insert(operation.method.to_owned(), self::operation(operation, tag, shared));
    }
    if !path.parameters.is_empty() {
        out.insert("parameters".to_owned(), path.parameters.iter().map(|one| shared.refer(one)).collect());
    }
    Value::Object(out)
}

fn operation(operation: &Operation, tag: &str, shared: &mut SharedParameters) -> Value {
    let mut responses = Map::new();
    for (code, words, schema) in &operation.responses {
        let schema = self::schema(schema.clone());
        responses.insert(code.to_string(), json!({"description": words, "schema": schema}));
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    let consumes = operation.body.as_ref().map_or(&["*/*"][..], |body| body.consumes);
    let mut out = json!({
        "description": operation.description,
        "consumes": consumes,
        "produces": operation.produces,
        "schemes": ["https"],
        "tags": [tag],
        "operationId": operation.id,
        "responses": responses,
    });
    let mut parameters = Vec::new();
    if let Some(body) = &operation.body {
        let mut value = json!({"name": "body", "in": "body", "schema": schema(body.schema.clone())});
        if body.required {
            value["required"] = true.into();
        }
        parameters.push(value);
    }
    parameters.extend(operation.parameters.iter().map(|one| shared.refer(one)));
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    set_action(&mut out, operation);
    out
}

/// The extensions of an operation, the same in both versions.
pub(super) fn set_action(out: &mut Value, operation: &Operation) {
    if let Some((action, gvk)) = &operation.action {
        out["x-kubernetes-action"] = (*action).into();
        out[GVK] = gvk_value(gvk);
    }
}

/// A schema of version 3 in the words of version 2, which knows less: no defaults that clients would apply, no
/// alternatives, no `null`, and nothing of a value whose fields are not all known.
pub(super) fn schema(schema: Value) -> Value {
    let Value::Object(mut fields) = schema else { return schema };
    // Of a type that preserves unknown fields only the kind is published: not even the fields of every object.
    if fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) && fields.contains_key(GVK) {
        fields.retain(|name, _| matches!(name.as_str(), "type" | GVK | "x-kubernetes-selectable-fields"));
        return Value::Object(fields);
    }
    // A reference with something next to it.
    if let Some(Value::Array(parts)) = fields.get_mut("allOf")
        && let [Value::Object(part)] = &mut parts[..]
        && let Some(reference) = part.remove("$ref")
    {
        fields.insert("$ref".to_owned(), reference);
    }
    if let Some(Value::String(reference)) = fields.get_mut("$ref")
        && let Some(name) = reference.strip_prefix(REFERENCE_PREFIX)
    {
        *reference = format!("#/definitions/{name}");
    }
    // A quantity, or a text or number.
    if fields.contains_key("oneOf") && !fields.contains_key("type") {
        fields.insert("type".to_owned(), "string".into());
    }
    let is_set = |fields: &Map<String, Value>, name: &str| fields.get(name) == Some(&Value::Bool(true));
    let open = is_set(&fields, "x-kubernetes-preserve-unknown-fields");
    let int_or_string = is_set(&fields, "x-kubernetes-int-or-string");
    if open || int_or_string || is_set(&fields, "nullable") {
        for name in ["type", "properties", "items", "additionalProperties", "required"] {
            fields.remove(name);
        }
    }
    for name in ["allOf", "anyOf", "oneOf", "not", "default", "nullable"] {
        fields.remove(name);
    }
    for name in ["properties", "items", "additionalProperties"] {
        let Some(inner) = fields.get_mut(name) else { continue };
        match (name, inner) {
            ("properties", Value::Object(fields)) => {
                for field in fields.values_mut() {
                    *field = self::schema(field.take());
                }
            }
            (_, inner) => *inner = self::schema(inner.take()),
        }
    }
    Value::Object(fields)
}
