//! The rules for an `openAPIV3Schema`, with upstream's messages. Works on its JSON, whose fields were checked by its type.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{RuleLanguage, field_path, invariants, read::is_true};
use crate::{
    MAX_DEPTH,
    field::{Errors, FieldError, Path},
    schema::Schema,
};

/// Validates the `openAPIV3Schema` at `path`. `status` is whether the version has a status subresource, `object_meta` the type
/// of metadata, `language` that of rules.
#[must_use]
pub fn validate(
    schema: &Value,
    path: &str,
    status: bool,
    object_meta: &Arc<Schema>,
    language: &mut dyn RuleLanguage,
) -> Vec<FieldError> {
    let mut rules = Rules {
        path: Path::new(path),
        errors: Errors::default(),
        depth: 0,
        in_metadata: false,
        in_map_of_metadata: false,
    };
    if status {
        rules.status_root(schema);
    }
    if is_true(schema, "nullable") {
        rules.errors.forbidden(format!("{path}.nullable"), "nullable cannot be true at the root");
    }
    let why = unsupported(schema, 0);
    let mut is_structural = why.is_none();
    if is_structural {
        let structural = invariants::check(schema, path);
        let found = if structural.is_empty() {
            super::defaults::check(schema, path, object_meta, language)
        } else {
            structural
        };
        is_structural = found.is_empty();
        rules.errors.0.extend(found);
    }
    let before = rules.errors.0.len();
    rules.node(schema, true);
    if is_structural {
        let faults: BTreeSet<&str> = rules.errors.0[before..].iter().map(|error| &*error.field).collect();
        let is_sound = |path: &str| faults.range(path..).next().is_none_or(|next| !next.starts_with(path));
        let found = language.check_rules(schema, path, &is_sound);
        rules.errors.0.extend(found);
    }
    // Of what upstream cannot make a structural schema, if nothing else is wrong with it.
    if rules.errors.0.is_empty()
        && let Some(why) = why
    {
        rules.errors.invalid_text(path, "", &why);
    }
    rules.errors.0
}

/// The faults that keep a schema from being structural, as upstream's controller looks for them in definitions that are
/// stored already.
///
/// # Errors
/// What of the schema no structural schema can hold.
pub fn violations(schema: &Value, path: &str) -> Result<Vec<FieldError>, String> {
    match unsupported(schema, 0) {
        Some(why) => Err(why),
        None => Ok(invariants::check(schema, path)),
    }
}

/// The first word in a schema that no structural schema can hold.
fn unsupported(schema: &Value, depth: usize) -> Option<String> {
    if depth > MAX_DEPTH {
        return None;
    }
    let words = ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"];
    if let Some(word) = words.iter().find(|word| is_present(&schema[**word])) {
        let word = if *word == "$schema" { "schema" } else { word };
        return Some(format!("OpenAPIV3Schema '{word}' is not supported"));
    }
    if schema["items"].as_array().is_some_and(|items| !items.is_empty()) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    if schema[PRESERVE] == false {
        return Some(format!("internal error: '{PRESERVE}' must be true or undefined"));
    }
    let members =
        ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|word| schema[word].as_array().into_iter().flatten());
    let single = ["not", "additionalProperties", "items"].into_iter().map(|word| &schema[word]);
    let properties = schema["properties"].as_object().into_iter().flatten().map(|(_, schema)| schema);
    let inside = members.chain(single).chain(properties);
    inside.filter(|schema| schema.is_object()).find_map(|schema| unsupported(schema, depth + 1))
}

/// Whether a word that upstream does not support says something.
fn is_present(value: &Value) -> bool {
    !value.is_null() && *value != "" && *value != json!({})
}

/// Fields that the root may have besides a status subresource, as upstream's type calls them.
const AT_ROOT: [(&str, &str); 22] = [
    ("Description", "description"),
    ("Type", "type"),
    ("Format", "format"),
    ("Title", "title"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Required", "required"),
    ("Items", "items"),
    ("Properties", "properties"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
    ("XValidations", "x-kubernetes-validations"),
];

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

pub(super) fn type_of(schema: &Value) -> &str {
    schema["type"].as_str().unwrap_or_default()
}

/// Whether a field is set to more than its zero value.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// What contains schemas, in upstream's order.
const CONTAINERS: [&str; 9] =
    ["additionalProperties", "properties", "not", "allOf", "oneOf", "anyOf", "definitions", "items", "dependencies"];

/// A walk through everything that a schema contains.
struct Rules {
    path: Path,
    errors: Errors,
    depth: usize,
    /// Whether the node is inside of an object's `metadata`, `apiVersion` or `kind`.
    in_metadata: bool,
    /// Whether it is also inside of `additionalProperties` there.
    in_map_of_metadata: bool,
}

impl Rules {
    fn status_root(&mut self, schema: &Value) {
        let before = ["id", "$schema", "$ref"].iter().any(|word| is_present(&schema[*word]));
        let of = type_of(schema);
        if !before && !of.is_empty() && of != "object" {
            let why =
                "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            return self.errors.invalid_text(self.field("type"), of, why);
        }
        let fields = schema.as_object().into_iter().flatten();
        let other =
            fields.clone().any(|(name, value)| is_set(value) && !AT_ROOT.iter().any(|(_, known)| known == name));
        if other {
            let names: Vec<&str> = AT_ROOT.iter().map(|(name, _)| *name).collect();
            let why = format!(
                "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
                names.join(" ")
            );
            self.errors.invalid(self.path.as_str(), schema, &why);
        }
    }

    fn node(&mut self, schema: &Value, root: bool) {
        if self.depth > MAX_DEPTH {
            let why = format!("must not be nested deeper than {MAX_DEPTH} levels");
            self.errors.forbidden(self.path.as_str(), &why);
            return;
        }
        self.depth += 1;
        self.unsupported(schema);
        let meta = root || is_true(schema, "x-kubernetes-embedded-resource");
        for word in CONTAINERS {
            match &schema[word] {
                Value::Object(fields) if matches!(word, "properties" | "definitions" | "dependencies") => {
                    for (name, inside) in fields.iter().filter(|(_, value)| value.is_object()) {
                        let before = self.in_metadata;
                        self.in_metadata |=
                            meta && word == "properties" && matches!(&**name, "metadata" | "kind" | "apiVersion");
                        self.inside(word, Some(name), None, inside);
                        self.in_metadata = before;
                    }
                }
                Value::Array(members) => {
                    for (at, inside) in members.iter().enumerate() {
                        self.inside(word, None, Some(at), inside);
                    }
                }
                inside @ Value::Object(_) => {
                    let before = self.in_map_of_metadata;
                    self.in_map_of_metadata |= self.in_metadata && word == "additionalProperties";
                    self.inside(word, None, None, inside);
                    self.in_map_of_metadata = before;
                }
                _ => {}
            }
        }
        self.topology(schema);
        self.rules(schema);
        self.depth -= 1;
    }

    fn inside(&mut self, word: &str, key: Option<&String>, at: Option<usize>, schema: &Value) {
        let before = self.path.enter_field(word);
        if let Some(key) = key {
            self.path.enter_key(key);
        }
        if let Some(at) = at {
            self.path.enter_item(at);
        }
        self.node(schema, false);
        self.path.leave(before);
    }

    fn field(&self, name: &str) -> String {
        self.path.field(name)
    }

    fn unsupported(&mut self, schema: &Value) {
        let of = type_of(schema);
        if !of.is_empty() && !TYPES.contains(&of) {
            self.errors.not_supported(self.field("type"), &schema["type"], &TYPES);
        }
        if self.in_map_of_metadata && schema.get("default").is_some_and(|default| !default.is_null()) {
            let why = "must not be set inside additionalProperties applying to object metadata";
            self.errors.forbidden(self.field("default"), why);
        }
        for word in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            if is_present(&schema[word]) {
                self.errors.forbidden(self.field(word), &format!("{word} is not supported"));
            }
        }
        if of == "null" {
            let why = "type cannot be set to null, use nullable as an alternative";
            self.errors.forbidden(self.field("type"), why);
        }
        if schema["items"].is_array() {
            self.errors.forbidden(self.field("items"), "items must be a schema object and not an array");
        }
        if self.in_metadata && is_true(schema, "x-kubernetes-embedded-resource") {
            let field = self.field("x-kubernetes-embedded-resource");
            self.errors.forbidden(field, "must not be used inside of resource meta");
        }
        if is_true(schema, "uniqueItems") {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.forbidden(self.field("uniqueItems"), why);
        }
        let additional = schema.get("additionalProperties").filter(|additional| !additional.is_null());
        if is_set(&schema["properties"]) && additional.is_some_and(|additional| additional != true) {
            let why = "additionalProperties and properties are mutual exclusive";
            self.errors.forbidden(self.field("additionalProperties"), why);
        }
    }

    /// The type that an extension wants.
    fn wants(&mut self, schema: &Value, of: &str, extension: &str) {
        let why = format!("must be {of} if {extension} is specified");
        match type_of(schema) {
            found if found == of => {}
            "" => self.errors.required(self.field("type"), &why),
            found => self.errors.invalid_text(self.field("type"), found, &why),
        }
    }

    fn topology(&mut self, schema: &Value) {
        const MAP_TYPE: &str = "x-kubernetes-map-type";
        const LIST_TYPE: &str = "x-kubernetes-list-type";
        const KEYS: &str = "x-kubernetes-list-map-keys";
        if schema[PRESERVE] == false {
            let field = self.field(PRESERVE);
            self.errors.invalid(field, &Value::Bool(false), "must be true or undefined");
        }
        if schema[MAP_TYPE].is_string() {
            self.wants(schema, "object", MAP_TYPE);
            if !matches!(schema[MAP_TYPE].as_str(), Some("atomic" | "granular")) {
                self.errors.not_supported(self.field(MAP_TYPE), &schema[MAP_TYPE], &["atomic", "granular"]);
            }
        }
        let list_type = schema[LIST_TYPE].as_str();
        if let Some(of) = list_type {
            self.wants(schema, "array", LIST_TYPE);
            if of == "set" && type_of(schema) == "array" && schema["items"].is_object() {
                self.set_items(schema);
            }
            if !matches!(of, "atomic" | "set" | "map") {
                self.errors.not_supported(self.field(LIST_TYPE), &schema[LIST_TYPE], &["atomic", "set", "map"]);
            }
        }
        let keys: Vec<&str> = schema[KEYS].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            Some("map") => {
                if keys.is_empty() {
                    self.errors.required(self.field(KEYS), "must not be empty if x-kubernetes-list-type is map");
                }
                self.map_items(schema, &keys);
                self.map_keys(&schema["items"], &keys);
            }
            None if !keys.is_empty() => self.errors.required(self.field(LIST_TYPE), why),
            Some(of) if !keys.is_empty() => self.errors.invalid_text(self.field(LIST_TYPE), of, why),
            _ => {}
        }
        if list_type == Some("set") && is_true(&schema["items"], "nullable") {
            let field = format!("{}.nullable", self.path.field("items"));
            self.errors.forbidden(field, "cannot be nullable when x-kubernetes-list-type is set");
        }
    }

    /// Items of a map are objects with scalar keys.
    fn map_items(&mut self, schema: &Value, keys: &[&str]) {
        let items = &schema["items"];
        if items.is_array() {
            let why = "must only have a single schema if x-kubernetes-list-type is map";
            return self.errors.invalid(self.field("items"), items, why);
        }
        if !items.is_object() {
            return self.errors.required(self.field("items"), "must have a schema if x-kubernetes-list-type is map");
        }
        let field = |name: &str| format!("{}.{name}", self.path.field("items"));
        let of = type_of(items);
        if of != "object" {
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            return self.errors.invalid_text(field("type"), of, why);
        }
        let list = self.path.field("x-kubernetes-list-map-keys");
        for (at, key) in keys.iter().enumerate() {
            match items["properties"].get(*key).map(type_of) {
                Some("object" | "array") => {
                    let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    self.errors.invalid_text(field(&format!("properties[{key}].type")), of, why);
                }
                Some(_) => {}
                None => {
                    self.errors.invalid(list.as_str(), &json!(keys), "entries must all be names of item properties")
                }
            }
            if keys[..at].contains(key) {
                self.errors.invalid(list.as_str(), &json!(keys), "must not contain duplicate entries");
            }
        }
    }

    /// Items of a map and their keys are always there.
    fn map_keys(&mut self, items: &Value, keys: &[&str]) {
        let field = |name: &str| format!("{}.{name}", self.path.field("items"));
        if is_true(items, "nullable") {
            self.errors.forbidden(field("nullable"), "cannot be nullable when x-kubernetes-list-type is map");
        }
        let required: Vec<&str> =
            items["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for key in keys {
            let Some(property) = items["properties"].get(*key) else { continue };
            let here = field(&format!("properties[{key}]"));
            if property.get("default").is_none_or(Value::is_null) && !required.contains(key) {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.errors.required(format!("{here}.default"), why);
            }
            if is_true(property, "nullable") {
                let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.errors.forbidden(format!("{here}.nullable"), why);
            }
        }
    }

    /// Items of a set are scalars, or as a whole one.
    fn set_items(&mut self, schema: &Value) {
        const WHY: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let items = &schema["items"];
        let field = |name: &str| format!("{}.{name}", self.path.field("items"));
        let mut refuse = |name: &str| {
            // Upstream shows the list type, also where the map type is wrong.
            let value = &items["x-kubernetes-list-type"];
            self.errors.push(field(name), crate::field::Cause::Invalid, format!("Invalid value: {value}: {WHY}"));
        };
        match (type_of(items), items["x-kubernetes-list-type"].as_str(), items["x-kubernetes-map-type"].as_str()) {
            ("array", Some(of), _) if of != "atomic" => refuse("x-kubernetes-list-type"),
            ("object", _, of) if of != Some("atomic") => refuse("x-kubernetes-map-type"),
            _ => {}
        }
    }

    fn rules(&mut self, schema: &Value) {
        for (at, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
            let before = self.path.enter_field("x-kubernetes-validations");
            self.path.enter_item(at);
            self.rule(rule, schema);
            self.path.leave(before);
        }
    }

    fn rule(&mut self, rule: &Value, schema: &Value) {
        let text = |name: &str| rule[name].as_str().unwrap_or_default();
        let (expression, message) = (text("rule"), text("message"));
        if expression.trim().is_empty() {
            self.errors.required(self.field("rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            self.errors.invalid_text(self.field("message"), message, "must be non-empty if specified");
        } else if message.trim().contains(['\n', '\r']) {
            self.errors.invalid_text(self.field("message"), message, "must not contain line breaks");
        } else if expression.trim().contains(['\n', '\r']) && message.is_empty() {
            self.errors.required(self.field("message"), "message must be specified if rule contains line breaks");
        }
        let of_message = text("messageExpression");
        if !of_message.is_empty() && of_message.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            self.errors.required(self.field("messageExpression"), why);
        }
        if rule["reason"].is_string() && !REASONS.contains(&text("reason")) {
            self.errors.not_supported(self.field("reason"), &rule["reason"], &REASONS);
        }
        let path = text("fieldPath");
        if !path.is_empty() && path.trim().is_empty() {
            self.errors.invalid_text(self.field("fieldPath"), path, "must be non-empty if specified");
        }
        if path.contains(['\n', '\r']) {
            self.errors.invalid_text(self.field("fieldPath"), path, "must not contain line breaks");
        }
        if !path.is_empty() && unsupported(schema, 0).is_none() && field_path(path, schema, true).is_err() {
            self.errors.invalid_text(self.field("fieldPath"), path, "must be a valid path");
        }
    }
}
