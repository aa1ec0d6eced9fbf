//! What makes a schema structural: every value has a type at its own node, and junctors only validate.

use serde_json::Value;

use super::{read::is_true, rules::type_of};
use crate::{
    MAX_DEPTH,
    field::{Errors, FieldError, Path},
    schema::validate::pattern,
};

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The violations in the schema at `path`, in the order of their words, each once.
pub(super) fn check(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut walk = Invariants { path: Path::new(path), errors: Errors::default(), depth: 0 };
    walk.node(schema, Level::Root);
    walk.complete(schema, Some(schema), &mut Path::new(path), &mut Path::new(path));
    let mut errors = walk.errors.0;
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// What a member of a junctor must not say, and what it must be instead.
const FORBIDDEN: [(&str, &str); 12] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
];

struct Invariants {
    path: Path,
    errors: Errors,
    depth: usize,
}

impl Invariants {
    fn field(&self, name: &str) -> String {
        self.path.field(name)
    }

    fn node(&mut self, schema: &Value, level: Level) {
        if self.depth > MAX_DEPTH {
            return;
        }
        self.depth += 1;
        if schema["items"].is_object() {
            self.at("items", None, |walk| walk.node(&schema["items"], Level::Item));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            self.at("properties", Some(name), |walk| walk.node(property, Level::Field));
        }
        self.additional(schema, level);
        self.extensions(schema);
        self.type_is_known(schema, level);
        if type_of(schema) == "array" && schema.get("items").is_none_or(Value::is_null) {
            self.errors.required(self.field("items"), "must be specified");
        }
        let in_any_of = is_int_or_string(schema);
        let in_all_of = is_true(schema, "x-kubernetes-int-or-string")
            && schema["allOf"].get(0).is_some_and(|first| has_two_forms(&first["anyOf"]));
        self.values(schema, in_any_of, in_all_of);
        if level == Level::Root || is_true(schema, "x-kubernetes-embedded-resource") {
            self.type_meta(schema, level);
        }
        self.depth -= 1;
    }

    /// Runs `inside` one step further in.
    fn at(&mut self, word: &str, key: Option<&str>, inside: impl FnOnce(&mut Self)) {
        let before = self.path.enter_field(word);
        if let Some(key) = key {
            self.path.enter_key(key);
        }
        inside(self);
        self.path.leave(before);
    }

    fn additional(&mut self, schema: &Value, level: Level) {
        let Some(additional) = schema.get("additionalProperties").filter(|additional| !additional.is_null()) else {
            return;
        };
        if level == Level::Root {
            self.errors.forbidden(self.field("additionalProperties"), "must not be used at the root");
        }
        if additional.is_object() {
            self.at("additionalProperties", None, |walk| walk.node(additional, Level::Field));
        }
        if is_true(schema, "x-kubernetes-embedded-resource") {
            let why = "must not be used if x-kubernetes-embedded-resource is set";
            self.errors.forbidden(self.field("additionalProperties"), why);
        }
    }

    fn extensions(&mut self, schema: &Value) {
        if !is_true(schema, "x-kubernetes-int-or-string") {
            return;
        }
        for word in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if is_true(schema, word) {
                let why = "must be false if x-kubernetes-int-or-string is true";
                self.errors.invalid(self.field(word), &Value::Bool(true), why);
            }
        }
    }

    fn type_is_known(&mut self, schema: &Value, level: Level) {
        let of = type_of(schema);
        let embedded = is_true(schema, "x-kubernetes-embedded-resource");
        let preserves = is_true(schema, "x-kubernetes-preserve-unknown-fields");
        let field = self.field("type");
        if embedded && of != "object" {
            let why = "must be object if x-kubernetes-embedded-resource is true";
            match of {
                "" => self.errors.required(field, why),
                of => self.errors.invalid_text(field, of, why),
            }
        } else if of.is_empty() && !is_true(schema, "x-kubernetes-int-or-string") && !preserves {
            let why = match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            };
            self.errors.required(field, why);
        } else if level == Level::Root && !of.is_empty() && of != "object" {
            self.errors.invalid_text(field, of, "must be object at the root");
        }
        let empty = schema["properties"].as_object().is_none_or(serde_json::Map::is_empty);
        if embedded && !preserves && empty {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            self.errors.required(self.field("properties"), why);
        }
    }

    /// `apiVersion`, `kind` and `metadata` of an object are what they are everywhere.
    fn type_meta(&mut self, schema: &Value, level: Level) {
        for word in ["apiVersion", "kind"] {
            if let Some(property) = schema["properties"].get(word).filter(|property| type_of(property) != "string") {
                let field = format!("{}[{word}].type", self.field("properties"));
                self.errors.invalid_text(field, type_of(property), "must be string");
            }
        }
        let Some(metadata) = schema["properties"].get("metadata") else { return };
        let field = format!("{}[metadata]", self.field("properties"));
        if type_of(metadata) != "object" {
            self.errors.invalid_text(format!("{field}.type"), type_of(metadata), "must be object");
        }
        let allowed = |(name, value): (&String, &Value)| match name.as_str() {
            // Value validations, what only describes, and what is refused elsewhere.
            "required" | "minProperties" | "maxProperties" | "type" | "default" | "allOf" | "anyOf" | "oneOf"
            | "not" | "enum" | "format" | "example" | "externalDocs" => true,
            "properties" => value
                .as_object()
                .is_some_and(|names| names.keys().all(|name| matches!(name.as_str(), "name" | "generateName"))),
            _ => !super::rules::is_set(value),
        };
        if level == Level::Root && !metadata.as_object().into_iter().flatten().all(allowed) {
            let why =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            self.errors.forbidden(field, why);
        }
    }

    /// Value validations of a node, and the members of its junctors.
    fn values(&mut self, schema: &Value, skip_any_of: bool, skip_first_all_of: bool) {
        for word in JUNCTORS {
            if word == "anyOf" && skip_any_of {
                continue;
            }
            for (at, member) in schema[word].as_array().into_iter().flatten().enumerate() {
                let before = self.path.enter_field(word);
                self.path.enter_item(at);
                self.member(member, word == "allOf" && at == 0 && skip_first_all_of);
                self.path.leave(before);
            }
        }
        if schema["not"].is_object() {
            self.at("not", None, |walk| walk.member(&schema["not"], false));
        }
        if let Some(expression) = schema["pattern"].as_str().filter(|expression| !expression.is_empty())
            && let Err(why) = pattern::compile(expression)
        {
            let why = format!("must be a valid regular expression, but isn't: {why}");
            self.errors.invalid_text(self.field("pattern"), expression, &why);
        }
    }

    /// A member of a junctor, or what is inside of it.
    fn member(&mut self, schema: &Value, skip_any_of: bool) {
        if self.depth > MAX_DEPTH {
            return;
        }
        self.depth += 1;
        self.values(schema, skip_any_of, false);
        if schema["items"].is_object() {
            self.at("items", None, |walk| walk.member(&schema["items"], false));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            self.at("properties", Some(name), |walk| walk.member(property, false));
        }
        for (word, why) in FORBIDDEN {
            let value = &schema[word];
            let is_set = if word == "additionalProperties" { !value.is_null() } else { super::rules::is_set(value) };
            if is_set || (word == "default" && !value.is_null()) {
                self.errors.forbidden(self.field(word), why);
            }
        }
        if super::rules::is_set(&schema["x-kubernetes-validations"]) {
            self.errors.forbidden(self.field("x-kubernetes-validations"), "must be empty to be structural");
        }
        if schema["properties"].get("metadata").is_some() {
            let field = format!("{}[metadata]", self.field("properties"));
            self.errors.forbidden(field, "must not be specified in a nested context");
        }
        self.depth -= 1;
    }

    /// What the junctors of the root name must have a node of its own. `twin` is that node, at `own`.
    fn complete(&mut self, validations: &Value, twin: Option<&Value>, own: &mut Path, nested: &mut Path) {
        if self.depth > MAX_DEPTH {
            return;
        }
        self.depth += 1;
        for word in JUNCTORS {
            for (at, member) in validations[word].as_array().into_iter().flatten().enumerate() {
                let before = nested.enter_field(word);
                nested.enter_item(at);
                self.complete_member(member, twin, own, nested);
                nested.leave(before);
            }
        }
        if validations["not"].is_object() {
            let before = nested.enter_field("not");
            self.complete_member(&validations["not"], twin, own, nested);
            nested.leave(before);
        }
        self.depth -= 1;
    }

    fn complete_member(&mut self, member: &Value, twin: Option<&Value>, own: &mut Path, nested: &mut Path) {
        let Some(twin) = twin else {
            self.errors.required(own.as_str(), &format!("because it is defined in {nested}"));
            return;
        };
        self.complete(member, Some(twin), own, nested);
        if member["items"].is_object() {
            let (before, before_nested) = (own.enter_field("items"), nested.enter_field("items"));
            self.complete_member(&member["items"], twin.get("items"), own, nested);
            own.leave(before);
            nested.leave(before_nested);
        }
        for (name, inside) in member["properties"].as_object().into_iter().flatten() {
            let (before, before_nested) = (own.enter_field("properties"), nested.enter_field("properties"));
            own.enter_key(name);
            nested.enter_key(name);
            self.complete_member(inside, twin["properties"].get(name), own, nested);
            own.leave(before);
            nested.leave(before_nested);
        }
    }
}

/// The literal forms of an int-or-string: `anyOf: [{type: integer}, {type: string}]`.
fn is_int_or_string(schema: &Value) -> bool {
    is_true(schema, "x-kubernetes-int-or-string") && has_two_forms(&schema["anyOf"])
}

fn has_two_forms(any_of: &Value) -> bool {
    *any_of == serde_json::json!([{"type": "integer"}, {"type": "string"}])
}
