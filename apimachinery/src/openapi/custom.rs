//! Definitions of custom resources: the schema of the CustomResourceDefinition as it is, with what every object has.

use serde_json::{Map, Value, json};

use super::{
    Gvk, LIST,
    definitions::{Definitions, GVK, gvk_value, reference},
    names,
};

/// A version of a custom resource.
pub(super) struct Custom<'a> {
    pub(super) gvk: &'a Gvk,
    pub(super) plural: &'a str,
    pub(super) list_kind: &'a str,
    pub(super) schema: &'a Value,
    pub(super) selectable: &'a [String],
}

/// How deep schemas may be nested inside one another; JSON that was read is not deeper.
const MAX_DEPTH: usize = 128;

impl Custom<'_> {
    /// Defines the type and that of its lists; returns references to both.
    pub(super) fn define(&self, definitions: &mut Definitions<'_>) -> (Value, Value) {
        let Gvk { group, version, kind } = self.gvk;
        let mut object = match self.schema {
            Value::Object(schema) if !schema.is_empty() => schema.clone(),
            // Without a schema, nothing is known.
            _ => as_object(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})),
        };
        embed(&mut object, definitions, MAX_DEPTH);
        add_object_fields(&mut object, definitions);
        object.insert(GVK.to_owned(), json!([gvk_value(self.gvk)]));
        let object_reference =
            definitions.add(names::custom_definition(group, version, kind), self.with_selectable(object));

        let item = reference(&names::custom_definition(group, version, kind));
        let list_gvk = Gvk { kind: self.list_kind.to_owned(), ..self.gvk.clone() };
        let list_meta = definitions.refer_name("meta/v1.ListMeta");
        let mut list = as_object(json!({
            "description": format!("{} is a list of {kind}", self.list_kind),
            "type": "object",
            "required": ["items"],
            "properties": {
                "items": {"description": format!("List of {}.", self.plural), "type": "array", "items": item},
                "metadata": described(definitions.describe(LIST, "metadata"), json!({"allOf": [list_meta]})),
            },
        }));
        add_type_meta(&mut list, definitions);
        list.insert(GVK.to_owned(), json!([gvk_value(&list_gvk)]));
        let list_name = names::custom_definition(group, version, self.list_kind);
        (object_reference, definitions.add(list_name, self.with_selectable(list)))
    }

    fn with_selectable(&self, mut definition: Map<String, Value>) -> Value {
        if !self.selectable.is_empty() {
            let path = |path: &String| json!({"fieldPath": path.trim_start_matches('.')});
            let paths: Vec<Value> = self.selectable.iter().map(path).collect();
            definition.insert("x-kubernetes-selectable-fields".to_owned(), paths.into());
        }
        Value::Object(definition)
    }
}

/// Objects inside the object (`x-kubernetes-embedded-resource`) have the fields of every object too.
fn embed(schema: &mut Map<String, Value>, definitions: &mut Definitions<'_>, depth: usize) {
    if depth == 0 {
        return;
    }
    for (name, value) in schema.iter_mut() {
        match (name.as_str(), value) {
            ("properties", Value::Object(fields)) => {
                for field in fields.values_mut().filter_map(Value::as_object_mut) {
                    embed_one(field, definitions, depth - 1);
                }
            }
            ("items" | "additionalProperties", Value::Object(inner)) => embed_one(inner, definitions, depth - 1),
            _ => {}
        }
    }
}

fn embed_one(schema: &mut Map<String, Value>, definitions: &mut Definitions<'_>, depth: usize) {
    embed(schema, definitions, depth);
    if schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        add_object_fields(schema, definitions);
        let required = schema.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(required) = required {
            for name in ["kind", "apiVersion"] {
                if !required.iter().any(|known| known == name) {
                    required.push(name.into());
                }
            }
        }
    }
}

fn add_object_fields(schema: &mut Map<String, Value>, definitions: &mut Definitions<'_>) {
    let meta = definitions.refer_name("meta/v1.ObjectMeta");
    let metadata = described(definitions.describe("core/v1.Pod", "metadata"), json!({"allOf": [meta]}));
    add_type_meta(schema, definitions);
    if let Some(Value::Object(fields)) = schema.get_mut("properties") {
        fields.insert("metadata".to_owned(), metadata);
    }
}

fn add_type_meta(schema: &mut Map<String, Value>, definitions: &Definitions<'_>) {
    let fields = schema.entry("properties").or_insert_with(|| json!({}));
    for name in ["apiVersion", "kind"] {
        fields[name] = described(definitions.describe("core/v1.Pod", name), json!({"type": "string"}));
    }
}

fn described(description: Option<String>, mut schema: Value) -> Value {
    if let Some(text) = description {
        schema["description"] = text.into();
    }
    schema
}

fn as_object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
