//! Reads an `openAPIV3Schema` as a node.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{
    MAX_DEPTH,
    schema::{
        Junctors, Kind, ListType, MapType, Object, Pattern, Presence, Property, Schema, ValidationRule, Validations,
        canonicalize,
    },
};

/// The node of a custom resource: `schema` is the `openAPIV3Schema` of its version, `object_meta` the type of `metadata`.
///
/// Takes any JSON: what [`super::validate`] refuses is passed over. Below 100 levels nothing is read.
#[must_use]
pub fn read(schema: &Value, object_meta: &Arc<Schema>) -> Schema {
    let mut root = Reader { object_meta }.node(schema, 0);
    if !matches!(root.kind, Kind::Object(_)) {
        root.kind = Kind::Object(Arc::default());
    }
    root.embedded_resource = true;
    let metadata = schema["properties"].get("metadata").map(|metadata| nested(metadata, 0));
    Reader { object_meta }.embed(&mut root, metadata);
    root
}

/// The node of any part of a schema.
pub(super) fn node(schema: &Value, object_meta: &Arc<Schema>) -> Schema {
    Reader { object_meta }.node(schema, 0)
}

/// The text at a key, unless it is empty.
fn text(json: &Value, key: &str) -> Option<Arc<str>> {
    json[key].as_str().filter(|text| !text.is_empty()).map(Arc::from)
}

pub(super) fn is_true(json: &Value, key: &str) -> bool {
    json[key] == true
}

struct Reader<'a> {
    object_meta: &'a Arc<Schema>,
}

impl Reader<'_> {
    fn node(&self, json: &Value, depth: usize) -> Schema {
        if depth > MAX_DEPTH {
            return Schema::new(Kind::Any);
        }
        let mut schema = Schema::new(self.kind(json, depth));
        schema.untyped = json["type"].as_str().unwrap_or_default().is_empty();
        schema.nullable = is_true(json, "nullable");
        schema.preserve_unknown_fields = is_true(json, "x-kubernetes-preserve-unknown-fields");
        schema.embedded_resource = is_true(json, "x-kubernetes-embedded-resource");
        schema.list_type = match json["x-kubernetes-list-type"].as_str() {
            Some("atomic") => Some(ListType::Atomic),
            Some("set") => Some(ListType::Set),
            Some("map") => Some(ListType::Map(texts(&json["x-kubernetes-list-map-keys"]).collect())),
            _ => None,
        };
        schema.map_type = match json["x-kubernetes-map-type"].as_str() {
            Some("atomic") => Some(MapType::Atomic),
            Some("granular") => Some(MapType::Granular),
            _ => None,
        };
        schema.title = text(json, "title");
        schema.description = text(json, "description");
        let mut validations = validations(json, depth);
        if matches!(schema.kind, Kind::IntOrString) {
            drop_int_or_string_forms(&mut validations);
        }
        schema.validations = (validations != Validations::default()).then(|| Arc::new(validations));
        if schema.embedded_resource && matches!(schema.kind, Kind::Object(_)) {
            let metadata = json["properties"].get("metadata").map(|metadata| nested(metadata, depth));
            self.embed(&mut schema, metadata);
        }
        // A default of null counts as unset; any other is set in the form that is stored.
        if let Some(default) = json.get("default").filter(|default| !default.is_null()) {
            let mut default = default.clone();
            canonicalize(&schema, &mut default);
            schema.default = Some(Arc::new(default));
        }
        schema
    }

    fn kind(&self, json: &Value, depth: usize) -> Kind {
        if is_true(json, "x-kubernetes-int-or-string") {
            return Kind::IntOrString;
        }
        let properties = json["properties"].as_object().filter(|properties| !properties.is_empty());
        let additional = json.get("additionalProperties");
        match json["type"].as_str().unwrap_or_default() {
            "string" => Kind::String,
            "integer" => Kind::Integer(64),
            "number" => Kind::Number,
            "boolean" => Kind::Bool,
            "array" => Kind::List(Arc::new(self.node(&json["items"], depth + 1))),
            "" if json["items"].is_object() => Kind::List(Arc::new(self.node(&json["items"], depth + 1))),
            "" if properties.is_none() && additional.is_none() => Kind::Any,
            "object" | "" => match (properties, additional) {
                (None, Some(values)) if values.is_object() => Kind::Map(Arc::new(self.node(values, depth + 1))),
                (None, Some(Value::Bool(true))) => Kind::Map(Arc::new(any_value())),
                (properties, additional) => self.object(properties, additional, json, depth),
            },
            _ => Kind::Any,
        }
    }

    fn object(
        &self,
        properties: Option<&Map<String, Value>>,
        additional: Option<&Value>,
        json: &Value,
        depth: usize,
    ) -> Kind {
        let required: Vec<Arc<str>> = texts(&json["required"]).collect();
        let mut object = Object::default();
        for (name, json) in properties.into_iter().flatten() {
            let name: Arc<str> = name.as_str().into();
            let schema = self.node(json, depth + 1);
            let property = Property {
                schema,
                presence: Presence::Pointer,
                required: required.contains(&name),
                ..Property::default()
            };
            object.properties.insert(name, property);
        }
        if additional == Some(&Value::Bool(true)) {
            object.additional = Some(Arc::new(any_value()));
        }
        Kind::Object(Arc::new(object))
    }

    /// Adds what every embedded resource has. `metadata` are the validations that the schema has for it.
    fn embed(&self, schema: &mut Schema, metadata: Option<Validations>) {
        let Kind::Object(object) = &mut schema.kind else { return };
        let object = Arc::make_mut(object);
        for name in ["apiVersion", "kind"] {
            let property = object.properties.get_or_default(name);
            property.schema.kind = Kind::String;
        }
        let mut schema = Schema::clone(self.object_meta);
        schema.validations = metadata.filter(|validations| *validations != Validations::default()).map(Arc::new);
        let required = object.properties.get("metadata").is_some_and(|metadata| metadata.required);
        object.properties.insert("metadata".into(), Property { schema, required, ..Property::default() });
    }
}

/// A value of which only the type is free: nothing inside is known.
fn any_value() -> Schema {
    let mut any = Schema::new(Kind::Any);
    any.untyped = true;
    any
}

fn texts(json: &Value) -> impl Iterator<Item = Arc<str>> + use<'_> {
    json.as_array().into_iter().flatten().filter_map(Value::as_str).map(Arc::from)
}

/// The validations of one node, with its junctors.
fn validations(json: &Value, depth: usize) -> Validations {
    let count = |key: &str| json[key].as_i64().map(|n| u64::try_from(n).unwrap_or(0));
    let list = |key: &str| {
        let members = json[key].as_array().into_iter().flatten();
        members.map(|member| nested(member, depth + 1)).collect::<Vec<_>>()
    };
    let not = json.get("not").filter(|not| not.is_object()).map(|not| nested(not, depth + 1));
    let [all_of, any_of, one_of] = ["allOf", "anyOf", "oneOf"].map(list);
    let junctors = Junctors { all_of, any_of, one_of, not, integer_or_text: false };
    let joined = !junctors.all_of.is_empty() || !junctors.any_of.is_empty() || !junctors.one_of.is_empty();
    let joined = joined || junctors.not.is_some();
    Validations {
        enumeration: json["enum"].as_array().cloned().unwrap_or_default(),
        format: text(json, "format"),
        pattern: text(json, "pattern").map(Pattern::new),
        minimum: json["minimum"].as_f64(),
        exclusive_minimum: is_true(json, "exclusiveMinimum"),
        maximum: json["maximum"].as_f64(),
        exclusive_maximum: is_true(json, "exclusiveMaximum"),
        multiple_of: json["multipleOf"].as_f64(),
        min_length: count("minLength"),
        max_length: count("maxLength"),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
        required: texts(&json["required"]).collect(),
        junctors: joined.then(|| Box::new(junctors)),
        rules: ValidationRule::all_of(json).collect(),
        ..Validations::default()
    }
}

/// The validations of a member of a junctor, with those of what is inside.
fn nested(json: &Value, depth: usize) -> Validations {
    if depth > MAX_DEPTH {
        return Validations::default();
    }
    let mut out = validations(json, depth);
    for (name, json) in json["properties"].as_object().into_iter().flatten() {
        out.properties.insert(name.as_str().into(), nested(json, depth + 1));
    }
    let inside =
        |key: &str| json.get(key).filter(|json| json.is_object()).map(|json| Box::new(nested(json, depth + 1)));
    out.items = inside("items");
    out.additional_properties = inside("additionalProperties");
    out
}

impl ValidationRule {
    /// The rules of a node.
    pub fn all_of(schema: &Value) -> impl Iterator<Item = Self> + use<'_> {
        schema["x-kubernetes-validations"].as_array().into_iter().flatten().map(|json| Self {
            rule: json["rule"].as_str().unwrap_or_default().into(),
            message: text(json, "message"),
            message_expression: text(json, "messageExpression"),
            reason: text(json, "reason"),
            field_path: text(json, "fieldPath"),
            optional_old_self: json["optionalOldSelf"].as_bool(),
        })
    }
}

/// The literal forms of int-or-string, of which a note is enough.
fn drop_int_or_string_forms(validations: &mut Validations) {
    let Some(junctors) = &mut validations.junctors else { return };
    // Of a form nothing is left without its type: any value has it.
    let drop_forms = |junctors: &mut Junctors| {
        if junctors.any_of.iter().all(|form| *form == Validations::default()) {
            junctors.integer_or_text = !junctors.any_of.is_empty();
            junctors.any_of.clear();
        }
    };
    drop_forms(junctors);
    if let Some(first) = junctors.all_of.first_mut()
        && let Some(inner) = &mut first.junctors
    {
        drop_forms(inner);
    }
}
