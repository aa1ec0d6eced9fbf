//! What a typed decoder makes of an object: the form in which it is stored, and the form in which two are compared.

use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

use super::{
    fields::{fits, time},
    shape::{Known, Presence, Shape, of_kind},
};
use crate::registry::Gvk;

/// Makes of an object what upstream's types would after reading and writing it: fields that the kind does not have, and
/// what is empty and not written then, go; quantities and times are in their canonical form.
pub fn prune(gvk: &Gvk, value: &mut Value) {
    walk(gvk, value, Form::Stored);
}

/// Whether two objects are the same to upstream's types: `null`, `[]`, `{}` and absent are, and so are absent and `false`,
/// 0 or an empty text in fields that are no pointers.
#[must_use]
pub fn same(gvk: &Gvk, one: &Value, other: &Value) -> bool {
    one == other || canonical(gvk, one) == canonical(gvk, other)
}

/// The form in which equal objects are equal values.
#[must_use]
pub fn canonical(gvk: &Gvk, value: &Value) -> Value {
    let mut value = value.clone();
    walk(gvk, &mut value, Form::Compared);
    value
}

/// Takes away what the kind's type cannot hold; the paths of what went. For objects of versions that checked less.
pub fn salvage(gvk: &Gvk, value: &mut Value) -> Vec<String> {
    let Some((known, root)) = of_kind(gvk.kind) else { return Vec::new() };
    let mut gone = Vec::new();
    known.salvage(&root, value, "", &mut gone);
    gone
}

fn walk(gvk: &Gvk, value: &mut Value, form: Form) {
    if let Some((known, root)) = of_kind(gvk.kind) {
        known.normalize(&root, value, form);
    }
}

/// What no time is to upstream's types. They write it as `null`, which clients in other languages do not take where a
/// time is required.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

fn is_time(shape: &Shape) -> bool {
    matches!(shape, Shape::Time | Shape::MicroTime)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As upstream's encoder writes it, except that what it always writes is not added.
    Stored,
    /// Without anything that says nothing.
    Compared,
}

impl Known {
    fn normalize(&self, shape: &Shape, value: &mut Value, form: Form) {
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
                        field.is_none_or(|field| !says_nothing(&field.shape, field.presence, value, form))
                    });
                    let times = fields.iter().filter(|(_, field)| field.required && is_time(&field.shape));
                    for (key, _) in times.filter(|_| form == Form::Stored) {
                        object.entry(&**key).or_insert_with(|| json!(NO_TIME));
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

    /// An item of a list or map: there is no place for nothing in it.
    fn element(&self, shape: &Shape, value: &mut Value, form: Form) {
        if value.is_null() {
            *value = self.zero(shape);
        }
        self.normalize(shape, value, form);
    }

    /// What upstream's decoder makes of `null` in a list or map.
    pub(super) fn zero(&self, shape: &Shape) -> Value {
        match shape {
            Shape::Any => Value::Null,
            Shape::Text | Shape::Bytes => json!(""),
            Shape::Integer(_) | Shape::Number | Shape::IntOrString => json!(0),
            Shape::Truth => json!(false),
            Shape::Quantity => json!("0"),
            Shape::Time | Shape::MicroTime => json!(NO_TIME),
            Shape::List(_) => json!([]),
            Shape::Map(_) => json!({}),
            Shape::Named(name) => self.scalars.get(name).map_or_else(|| json!({}), |scalar| self.zero(scalar)),
        }
    }

    fn salvage(&self, shape: &Shape, value: &mut Value, path: &str, gone: &mut Vec<String>) {
        match (shape, value) {
            (Shape::List(item), Value::Array(items)) => {
                let mut at = 0;
                items.retain_mut(|value| {
                    let path = format!("{path}[{at}]");
                    at += 1;
                    self.keep(item, value, &path, gone)
                });
            }
            (Shape::Map(item), Value::Object(fields)) => {
                fields.retain(|key, value| self.keep(item, value, &format!("{path}[{key}]"), gone));
            }
            (Shape::Named(name), Value::Object(object)) => {
                let Some(fields) = self.types.get(name) else { return };
                object.retain(|key, value| {
                    let Some(field) = fields.get(key.as_str()) else { return true };
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    value.is_null() || self.keep(&field.shape, value, &path, gone)
                });
            }
            _ => {}
        }
    }

    fn keep(&self, shape: &Shape, value: &mut Value, path: &str, gone: &mut Vec<String>) -> bool {
        let shape = match shape {
            Shape::Named(name) => self.scalars.get(name).unwrap_or(shape),
            shape => shape,
        };
        if !fits(shape, value) {
            gone.push(path.to_owned());
            return false;
        }
        self.salvage(shape, value, path, gone);
        true
    }
}

/// Whether leaving a field out says the same as its value.
fn says_nothing(shape: &Shape, presence: Presence, value: &Value, form: Form) -> bool {
    let empty = match value {
        Value::Null => true,
        // A list or a map is never behind a pointer.
        Value::Array(items) => return items.is_empty() && (form == Form::Compared || presence != Presence::Always),
        Value::Object(fields) if matches!(shape, Shape::Map(_)) => {
            return fields.is_empty() && (form == Form::Compared || presence != Presence::Always);
        }
        Value::Object(fields) => return fields.is_empty() && form == Form::Compared && presence != Presence::Pointer,
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
        Presence::Always => empty && form == Form::Compared,
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
