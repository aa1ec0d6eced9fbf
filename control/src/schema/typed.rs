//! The canonical forms of objects, as a typed decoder would produce them: the stored form and the form for comparison.

use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

use super::{
    fields::{matches_shape, time},
    shape::{Presence, Shape, TypeIndex, of_kind},
};
use crate::registry::Gvk;

/// Converts an object to the form that upstream's types produce by decoding and encoding it: unknown fields and omitted
/// empty values are removed, quantities and times are canonical.
pub fn prune(gvk: &Gvk, value: &mut Value) {
    walk(gvk, value, CanonicalForm::Stored);
}

/// Whether two objects are equal to upstream's types: `null`, `[]`, `{}` and absent are equal, and so are absent and
/// `false`, 0 or `""` in non-pointer fields.
#[must_use]
pub fn same(gvk: &Gvk, one: &Value, other: &Value) -> bool {
    one == other || canonical(gvk, one) == canonical(gvk, other)
}

/// The form in which equal objects have equal values.
#[must_use]
pub fn canonical(gvk: &Gvk, value: &Value) -> Value {
    let mut value = value.clone();
    walk(gvk, &mut value, CanonicalForm::Compared);
    value
}

/// Removes fields that the kind's type cannot decode and returns their paths. For objects of versions that validated
/// less.
pub fn drop_invalid_fields(gvk: &Gvk, value: &mut Value) -> Vec<String> {
    let Some((known, root)) = of_kind(gvk.kind) else { return Vec::new() };
    let mut dropped = Vec::new();
    known.drop_invalid_fields(&root, value, "", &mut dropped);
    dropped
}

fn walk(gvk: &Gvk, value: &mut Value, form: CanonicalForm) {
    if let Some((known, root)) = of_kind(gvk.kind) {
        known.normalize(&root, value, form);
    }
}

/// The zero time of upstream's types. They write it as `null`, which clients in other languages refuse where a time is
/// required.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

fn is_time(shape: &Shape) -> bool {
    matches!(shape, Shape::Time | Shape::MicroTime)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CanonicalForm {
    /// As upstream's encoder writes it, without adding fields that it always writes.
    Stored,
    /// Without any zero value that equals an absent field.
    Compared,
}

impl TypeIndex {
    fn normalize(&self, shape: &Shape, value: &mut Value, form: CanonicalForm) {
        match (shape, value) {
            (Shape::List(item), Value::Array(items)) => {
                for value in items {
                    self.element(item, value, form);
                }
            }
            (Shape::Map(item), Value::Object(fields)) => {
                fields.values_mut().for_each(|value| self.element(item, value, form));
            }
            (Shape::Named(name), value) => match (self.types.get(name), value) {
                (Some(fields), Value::Object(object)) => {
                    object.retain(|key, value| !value.is_null() && fields.contains_key(key.as_str()));
                    for (key, value) in object.iter_mut() {
                        if let Some(field) = fields.get(key.as_str()) {
                            self.normalize(&field.shape, value, form);
                        }
                    }
                    object.retain(|key, value| {
                        let field = fields.get(key.as_str());
                        field.is_none_or(|field| !is_omitted(&field.shape, field.presence, value, form))
                    });
                    let times = fields.iter().filter(|(_, field)| field.required && is_time(&field.shape));
                    for (key, _) in times.filter(|_| form == CanonicalForm::Stored) {
                        object.entry(&**key).or_insert_with(|| json!(ZERO_TIME));
                    }
                }
                (None, value) => {
                    if let Some(scalar) = self.scalars.get(name) {
                        self.normalize(scalar, value, form);
                    }
                }
                _ => {}
            },
            (Shape::Quantity, value) => quantity(value),
            (Shape::Time | Shape::MicroTime, Value::String(text)) => {
                if let Some(at) = time(text) {
                    *text = written(at, matches!(shape, Shape::MicroTime));
                }
            }
            (Shape::Bytes, Value::String(text)) => text.retain(|c| !matches!(c, '\r' | '\n')),
            _ => {}
        }
    }

    /// An item of a list or map, where null becomes the zero value.
    fn element(&self, shape: &Shape, value: &mut Value, form: CanonicalForm) {
        if value.is_null() {
            *value = self.zero(shape);
        }
        self.normalize(shape, value, form);
    }

    /// The zero value, which upstream's decoder makes of `null` in a list or map.
    pub(super) fn zero(&self, shape: &Shape) -> Value {
        match shape {
            Shape::Any => Value::Null,
            Shape::String | Shape::Bytes => json!(""),
            Shape::Integer(_) | Shape::Number | Shape::IntOrString => json!(0),
            Shape::Bool => json!(false),
            Shape::Quantity => json!("0"),
            Shape::Time | Shape::MicroTime => json!(ZERO_TIME),
            Shape::List(_) => json!([]),
            Shape::Map(_) => json!({}),
            Shape::Named(name) => self.scalars.get(name).map_or_else(|| json!({}), |scalar| self.zero(scalar)),
        }
    }

    fn drop_invalid_fields(&self, shape: &Shape, value: &mut Value, path: &str, dropped: &mut Vec<String>) {
        match (shape, value) {
            (Shape::List(item), Value::Array(items)) => {
                let mut at = 0;
                items.retain_mut(|value| {
                    let path = format!("{path}[{at}]");
                    at += 1;
                    self.retain_valid(item, value, &path, dropped)
                });
            }
            (Shape::Map(item), Value::Object(fields)) => {
                fields.retain(|key, value| self.retain_valid(item, value, &format!("{path}[{key}]"), dropped));
            }
            (Shape::Named(name), Value::Object(object)) => {
                let Some(fields) = self.types.get(name) else { return };
                object.retain(|key, value| {
                    let Some(field) = fields.get(key.as_str()) else { return true };
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    value.is_null() || self.retain_valid(&field.shape, value, &path, dropped)
                });
            }
            _ => {}
        }
    }

    fn retain_valid(&self, shape: &Shape, value: &mut Value, path: &str, dropped: &mut Vec<String>) -> bool {
        let shape = match shape {
            Shape::Named(name) => self.scalars.get(name).unwrap_or(shape),
            shape => shape,
        };
        if !matches_shape(shape, value) {
            dropped.push(path.to_owned());
            return false;
        }
        self.drop_invalid_fields(shape, value, path, dropped);
        true
    }
}

/// Whether a field with this value is omitted.
fn is_omitted(shape: &Shape, presence: Presence, value: &Value, form: CanonicalForm) -> bool {
    let empty = match value {
        Value::Null => true,
        // Lists and maps are never pointers.
        Value::Array(items) => {
            return items.is_empty() && (form == CanonicalForm::Compared || presence != Presence::Always);
        }
        Value::Object(fields) if matches!(shape, Shape::Map(_)) => {
            return fields.is_empty() && (form == CanonicalForm::Compared || presence != Presence::Always);
        }
        Value::Object(fields) => {
            return fields.is_empty() && form == CanonicalForm::Compared && presence != Presence::Pointer;
        }
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => match shape {
            Shape::Quantity => text == "0",
            Shape::Time | Shape::MicroTime => text.starts_with("0001-01-01T00:00:00"),
            _ => text.is_empty(),
        },
    };
    match presence {
        Presence::Pointer => false,
        Presence::Always => empty && form == CanonicalForm::Compared,
        Presence::Value => empty,
    }
}

fn quantity(value: &mut Value) {
    let text = match &*value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    if let Ok(quantity) = text.parse::<Quantity>() {
        *value = Value::String(quantity.to_string());
    }
}

fn written(at: jiff::Timestamp, micros: bool) -> String {
    let format = if micros { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    at.strftime(format).to_string()
}
