//! Validates custom objects against their structural schema, with the messages of upstream's validator (`kube-openapi`).

mod embedded;
mod formats;
mod lists;
mod number;
pub mod pattern;
mod value;

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use self::value::Found;
use super::{Kind, ListType, Schema};
use crate::{
    MAX_DEPTH,
    effort::Effort,
    field::{Cause, FieldError, Path},
};

/// Validates an object that was pruned and defaulted. `old` is the stored object of an update: what has not changed is not
/// complained about again.
///
/// Rules are another crate's, and the object's own metadata is not validated. What regular expressions take is taken from
/// `effort`; with too little of it the errors are not all there are.
#[must_use]
pub fn validate(schema: &Schema, value: &Value, old: Option<&Value>, effort: &mut Effort) -> Vec<FieldError> {
    let mut errors = values_within(schema, value, old, &mut Path::default(), effort);
    embedded::check(schema, value, &mut Path::default(), true, &mut errors);
    errors.extend(duplicates(schema, value, old));
    errors
}

/// The same of an object of which only the status has changed: as upstream, embedded objects are not looked at again.
#[must_use]
pub fn validate_status(schema: &Schema, value: &Value, old: &Value, effort: &mut Effort) -> Vec<FieldError> {
    let mut errors = values_within(schema, value, Some(old), &mut Path::default(), effort);
    errors.extend(duplicates(schema, value, Some(old)));
    errors
}

/// Items of sets and maps that stand twice, if that is new.
fn duplicates(schema: &Schema, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut found = Vec::new();
    lists::check(schema, value, &mut Path::default(), &mut found, 0);
    if !found.is_empty() && old.is_some_and(|old| !lists::are_unique(schema, old)) {
        found.clear();
    }
    found
}

/// Names in the schema that no format is known for, each once, in order: upstream warns about them.
#[must_use]
pub fn unknown_formats(schema: &Schema) -> Vec<String> {
    let mut found = BTreeSet::new();
    formats::unknown(schema, &mut found, 0);
    found.into_iter().collect()
}

/// Whether a text has a format of OpenAPI. One that is not known takes any.
#[must_use]
pub fn has_format(format: &str, text: &str) -> bool {
    formats::matches(format, text)
}

/// The errors of embedded objects alone.
pub(super) fn embedded_problems(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    embedded::check(schema, value, &mut Path::default(), false, &mut errors);
    errors
}

/// The errors of one embedded object, which begins at the root.
pub(super) fn problems_of_one(value: &Value) -> Vec<FieldError> {
    embedded::check_one(value, &Path::default()).0
}

/// The errors of values alone, without those of embedded objects and of sets and maps.
pub(super) fn values(schema: &Schema, value: &Value, old: Option<&Value>, path: &mut Path) -> Vec<FieldError> {
    values_within(schema, value, old, path, &mut Effort::unlimited())
}

fn values_within(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &mut Path,
    effort: &mut Effort,
) -> Vec<FieldError> {
    let mut walk = Walk { path: std::mem::take(path), found: Found::within(*effort), depth: 0 };
    walk.node(schema, value, old);
    *path = walk.path;
    *effort = walk.found.effort;
    walk.found.errors
}

/// A walk through one object.
struct Walk {
    path: Path,
    found: Found,
    depth: usize,
}

impl Walk {
    fn node(&mut self, schema: &Schema, value: &Value, old: Option<&Value>) {
        // `metadata` is one of Go's types; only what the schema says of its fields is validated here.
        let typed = matches!(schema.kind, Kind::Named(_));
        if old.is_some_and(|old| old == value && (typed || is_unchanged(schema, value, old))) {
            return;
        }
        let known = self.found.errors.len();
        if self.depth > MAX_DEPTH {
            let detail = format!("Too long: nested deeper than {MAX_DEPTH} levels");
            self.found.push(self.path.as_str(), Cause::TooLong, detail);
            return;
        }
        self.depth += 1;
        if !typed {
            self.type_of(schema, value);
        }
        if let Some(validations) = &schema.validations {
            let integer = matches!(schema.kind, Kind::Integer(_));
            value::check(validations, value, integer, &mut self.path, &mut self.found, self.depth);
        }
        if !typed {
            self.inside(schema, value, old);
        }
        if let Some(validations) = &schema.validations {
            value::check_required(validations, value, &self.path, &mut self.found);
        }
        self.depth -= 1;
        if self.found.errors.len() > known && old.is_some_and(|old| is_unchanged(schema, value, old)) {
            self.found.errors.truncate(known);
        }
    }

    /// Checks the type of a value, before anything else.
    fn type_of(&mut self, schema: &Schema, value: &Value) {
        let wanted = match schema.kind {
            _ if schema.untyped && !matches!(schema.kind, Kind::IntOrString) => return,
            Kind::IntOrString => "integer,string",
            Kind::String => "string",
            Kind::Bool => "boolean",
            Kind::Integer(_) => "integer",
            Kind::Number => "number",
            Kind::List(_) => "array",
            Kind::Object(_) | Kind::Map(_) => "object",
            _ => return,
        };
        let found = type_name(value);
        let fits = wanted.split(',').any(|wanted| wanted == found || (wanted == "number" && found == "integer"));
        if fits || (value.is_null() && schema.nullable) {
            return;
        }
        let path = self.path.as_str();
        let is_number = matches!(schema.kind, Kind::Integer(_) | Kind::Number);
        let format = schema.validations.as_ref().and_then(|validations| validations.format.as_deref());
        let format = format.filter(|_| !matches!(schema.kind, Kind::IntOrString));
        // Where a format is declared, upstream compares formats of what is neither text nor list, and takes those.
        let (wanted, found) = match (format, value) {
            (Some(_), Value::String(_) | Value::Array(_)) if !is_number => return,
            (None, _) | (_, Value::Null | Value::String(_) | Value::Array(_)) => (wanted, found),
            (Some(format), Value::Number(number)) if number.is_i64() => (format, "int64"),
            (Some(format), Value::Number(_)) => (format, "float64"),
            (Some(format), _) => (format, ""),
        };
        self.found.wrong_type(path, wanted, found);
        if matches!(schema.kind, Kind::Integer(_)) {
            self.found.no_integer(path, value, format);
        }
    }

    fn inside(&mut self, schema: &Schema, value: &Value, old: Option<&Value>) {
        match value {
            Value::Object(fields) => {
                let old = old.and_then(Value::as_object);
                for (key, value) in fields {
                    if let Some(schema) = schema.field(key) {
                        let before = self.path.enter_field(key);
                        self.node(schema, value, old.and_then(|old| old.get(key)));
                        self.path.leave(before);
                    }
                }
            }
            Value::Array(items) => {
                let Kind::List(item) = &schema.kind else { return };
                let old = old.and_then(Value::as_array).filter(|_| matches!(schema.list_type, Some(ListType::Map(_))));
                let old: HashMap<String, &Value> =
                    old.into_iter().flatten().map(|old| (lists::identity(schema, old), old)).collect();
                for (at, value) in items.iter().enumerate() {
                    let before = self.path.enter_item(at);
                    let old = if old.is_empty() { None } else { old.get(&lists::identity(schema, value)).copied() };
                    self.node(item, value, old);
                    self.path.leave(before);
                }
            }
            _ => {}
        }
    }
}

/// Whether a value is as it was, but for the order of items of lists of type map; upstream's `CachedDeepEqual`, to which what
/// the schema does not describe has always changed, as the metadata of an object has.
fn is_unchanged(schema: &Schema, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Array(new), Value::Array(old)) if matches!(schema.list_type, Some(ListType::Map(_))) => {
            let before: HashMap<String, &Value> =
                old.iter().rev().map(|old| (lists::identity(schema, old), old)).collect();
            let is_as_before = |item| match (before.get(&lists::identity(schema, item)), schema.items()) {
                (Some(old), Some(items)) => is_unchanged(items, item, old),
                _ => false,
            };
            new.len() == old.len() && new.iter().all(is_as_before)
        }
        (Value::Object(new), Value::Object(old)) => {
            let is_as_before = |(name, value): (&String, &Value)| match (old.get(name), schema.field(name)) {
                (Some(old), Some(field)) => !matches!(field.kind, Kind::Named(_)) && is_unchanged(field, value, old),
                _ => false,
            };
            new.len() == old.len() && new.iter().all(is_as_before)
        }
        _ => new == old,
    }
}

/// A value's type in JSON Schema; a number without fraction is an integer, up to the largest that a double holds exactly.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number::is_integer(number) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
