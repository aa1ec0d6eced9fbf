//! Declared defaults are values of their own schema.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{RuleLanguage, read::node};
use crate::{
    MAX_DEPTH,
    field::{Cause, Errors, FieldError, Path},
    schema::{self, Schema, prune, validate},
};

/// The faults of all defaults in the schema at `path`, which is structural.
pub(super) fn check(
    schema: &Value,
    path: &str,
    object_meta: &Arc<Schema>,
    language: &mut dyn RuleLanguage,
) -> Vec<FieldError> {
    let mut defaults = Defaults { path: Path::new(path), errors: Errors::default(), depth: 0, object_meta, language };
    if schema.get("default").is_some_and(|default| !default.is_null()) {
        // The root is an object with metadata, as an embedded one.
        let mut root = schema.clone();
        root["x-kubernetes-embedded-resource"] = Value::Bool(true);
        defaults.default(&root);
    }
    let properties = schema["properties"].as_object().into_iter().flatten();
    for (name, property) in properties {
        let before = defaults.path.enter_field("properties");
        defaults.path.enter_key(name);
        match name.as_str() {
            "metadata" | "apiVersion" | "kind" => defaults.forbidden(property, name),
            _ => defaults.node(property),
        }
        defaults.path.leave(before);
    }
    defaults.errors.0
}

/// Where a default is within the embedded object around it.
#[derive(Debug, Clone, Default)]
struct Around {
    steps: Vec<Step>,
    /// Whether that is inside its metadata, or one of the fields that say its type.
    in_metadata: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Field(String),
    Item,
}

impl Around {
    fn into(&self, step: Step, begins: bool) -> Self {
        let mut steps = self.steps.clone();
        steps.push(step);
        Self { steps, in_metadata: self.in_metadata || begins }
    }

    /// The smallest good object with a value there.
    fn object_with(&self, value: &Value) -> Value {
        let inside = self.steps.iter().rev().fold(value.clone(), |value, step| match step {
            Step::Field(name) => json!({name: value}),
            Step::Item => json!([value]),
        });
        let mut object = json!({"apiVersion": "validation/v1", "kind": "Validation"});
        if let (Some(fields), Value::Object(inside)) = (object.as_object_mut(), inside) {
            fields.extend(inside);
        }
        object
    }
}

struct Defaults<'a> {
    path: Path,
    errors: Errors,
    depth: usize,
    object_meta: &'a Arc<Schema>,
    language: &'a mut dyn RuleLanguage,
}

impl Defaults<'_> {
    /// Everything inside `schema`, the field `top` of an object, comes from elsewhere.
    fn forbidden(&mut self, schema: &Value, top: &str) {
        self.each(schema, &mut |defaults, _| {
            let why = format!("must not be set in top-level {top}");
            defaults.errors.forbidden(defaults.path.field("default"), &why);
        });
    }

    fn node(&mut self, schema: &Value) {
        self.around(schema, &Around::default());
    }

    /// Everything inside `schema`; what is inside the metadata of an embedded object must make good metadata.
    fn around(&mut self, schema: &Value, around: &Around) {
        if self.depth > MAX_DEPTH || self.language.is_exhausted() {
            return;
        }
        self.depth += 1;
        let is_embedded = schema["x-kubernetes-embedded-resource"] == true;
        let around = if is_embedded { &Around::default() } else { around };
        if schema.get("default").is_some_and(|default| !default.is_null()) {
            if around.in_metadata { self.metadata_default(schema, around) } else { self.default(schema) }
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let before = self.path.enter_field("properties");
            self.path.enter_key(name);
            let begins = is_embedded && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
            self.around(property, &around.into(Step::Field(name.clone()), begins));
            self.path.leave(before);
        }
        // Upstream does not look into `additionalProperties`.
        if schema["items"].is_object() {
            let before = self.path.enter_field("items");
            self.around(&schema["items"], &around.into(Step::Item, false));
            self.path.leave(before);
        }
        self.depth -= 1;
    }

    fn metadata_default(&mut self, json: &Value, around: &Around) {
        let default = &json["default"];
        let field = self.path.field("default");
        let object = around.object_with(default);
        // Decoding errors are reported before validation errors.
        let unread = schema::check(self.object_meta, &object["metadata"], "ObjectMeta").wrong.into_iter().next();
        if let Some(why) = unread.filter(|_| object["metadata"].is_object()) {
            let metadata = &object["metadata"];
            let why = format!("must result in valid metadata: metadata: Invalid value: {metadata}: {why}");
            return self.errors.invalid(field, default, &why);
        }
        let found = validate::problems_of_one(&object);
        if found.is_empty() {
            let node = node(json, &Arc::new(Schema::any()));
            let found = validate::values(&node, default, None, &mut Path::default());
            if found.is_empty() {
                self.errors.0.extend(self.language.check_default(json, false, &field));
            }
            for error in found {
                self.errors.push(field.as_str(), error.cause, error.detail);
            }
            return;
        }
        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        let told = if told.len() == 1 { told.concat() } else { format!("[{}]", told.join(", ")) };
        self.errors.invalid(field, default, &format!("must result in valid metadata: {told}"));
    }

    /// Runs `found` at every node with a default.
    fn each(&mut self, schema: &Value, found: &mut dyn FnMut(&mut Self, &Value)) {
        if self.depth > MAX_DEPTH {
            return;
        }
        self.depth += 1;
        if schema.get("default").is_some_and(|default| !default.is_null()) {
            found(self, schema);
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let before = self.path.enter_field("properties");
            self.path.enter_key(name);
            self.each(property, found);
            self.path.leave(before);
        }
        // Upstream does not look into `additionalProperties`.
        if schema["items"].is_object() {
            let before = self.path.enter_field("items");
            self.each(&schema["items"], found);
            self.path.leave(before);
        }
        self.depth -= 1;
    }

    fn default(&mut self, json: &Value) {
        let default = &json["default"];
        // Metadata of an embedded object is taken as it is.
        let node = node(json, &Arc::new(Schema::any()));
        let field = self.path.field("default");
        let mut pruned = default.clone();
        prune(&node, &mut pruned);
        if pruned != *default {
            self.errors.invalid(field.as_str(), default, "must not have unknown fields");
        }
        let inside = |inner: &str| match inner {
            "" | "<nil>" => field.clone(),
            inner => format!("{field}.{inner}"),
        };
        let read = super::read::node(json, self.object_meta);
        if let Some(wrong) = schema::check(&read, default, "").wrong.into_iter().next() {
            let (inner, detail) = match wrong.split_once(": ") {
                Some((inner, detail)) if detail.starts_with("Invalid value: ") => (inner.to_owned(), detail.to_owned()),
                _ => ("metadata".to_owned(), format!("Invalid value: {}: {wrong}", default["metadata"])),
            };
            return self.errors.push(inside(&inner), Cause::Invalid, detail);
        }
        let mut found = validate::embedded_problems(&node, default);
        if found.is_empty() {
            found = validate::values(&node, default, None, &mut Path::default());
        }
        if found.is_empty() {
            let is_resource_root = json["x-kubernetes-embedded-resource"] == true;
            self.errors.0.extend(self.language.check_default(json, is_resource_root, &field));
        }
        for error in found {
            self.errors.push(inside(&error.field), error.cause, error.detail);
        }
    }
}
