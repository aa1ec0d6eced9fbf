//! Declared defaults are values of their own schema.

use std::sync::Arc;

use serde_json::Value;

use super::read::node;
use crate::{
    MAX_DEPTH,
    field::{Errors, FieldError, Path},
    schema::{Schema, prune, validate},
};

/// The faults of all defaults in the schema at `path`, which is structural.
pub(super) fn check(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut defaults = Defaults { path: Path::new(path), errors: Errors::default(), depth: 0 };
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

struct Defaults {
    path: Path,
    errors: Errors,
    depth: usize,
}

impl Defaults {
    /// Everything inside `schema`, the field `top` of an object, comes from elsewhere.
    fn forbidden(&mut self, schema: &Value, top: &str) {
        self.each(schema, &mut |defaults, _| {
            let why = format!("must not be set in top-level {top}");
            defaults.errors.forbidden(defaults.path.field("default"), &why);
        });
    }

    fn node(&mut self, schema: &Value) {
        self.each(schema, &mut |defaults, schema| defaults.default(schema));
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
        let mut found = validate::embedded_problems(&node, default);
        if found.is_empty() {
            found = validate::values(&node, default, None, &mut Path::default());
        }
        for error in found {
            self.errors.push(inside(&error.field), error.cause, error.detail);
        }
    }
}
