//! Which of an object's fields its kind does not have, and which hold something of another type.

use std::fmt::Write as _;

use serde_json::Value;
use windlass_kit::quantity::Quantity;

use super::shape::{Shape, TypeIndex, of_kind};
use crate::registry::Gvk;

/// What is wrong with an object's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldProblems {
    /// Paths of fields that the kind does not have, such as `spec.containers[0].imagePolicy`.
    pub unknown: Vec<String>,
    /// Values of the wrong type, told as upstream's decoder does.
    pub wrong: Vec<String>,
}

/// Checks every field of an object. A kind that nothing is known of has no problems.
#[must_use]
pub fn unknown_fields(gvk: &Gvk, value: &Value) -> FieldProblems {
    let Some((known, root)) = of_kind(gvk.kind) else { return FieldProblems::default() };
    let mut check = Check { known: &known, problems: FieldProblems::default(), path: String::new() };
    check.value(&root, value, gvk.kind);
    check.problems
}

/// Upstream's words for a text that is no quantity.
const QUANTITY: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Whether a value that is not null is one that a field of this shape can hold; objects and lists are looked at by
/// their own parts.
pub(super) fn matches_shape(shape: &Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::Any, _)
        | (Shape::String, Value::String(_))
        | (Shape::Bool, Value::Bool(_))
        | (Shape::Number, Value::Number(_))
        | (Shape::IntOrString, Value::String(_))
        | (Shape::List(_), Value::Array(_))
        | (Shape::Map(_) | Shape::Named(_), Value::Object(_)) => true,
        (Shape::Integer(32) | Shape::IntOrString, Value::Number(n)) => {
            n.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
        }
        (Shape::Integer(_), Value::Number(n)) => n.is_i64(),
        (Shape::Quantity, Value::Number(n)) => n.to_string().parse::<Quantity>().is_ok(),
        (Shape::Quantity, Value::String(text)) => text.parse::<Quantity>().is_ok(),
        (Shape::Bytes, Value::String(text)) => bytes(text).is_ok(),
        (Shape::Time | Shape::MicroTime, Value::String(text)) => time(text).is_some(),
        _ => false,
    }
}

/// A point in time as RFC 3339 has it; the reader would take other forms too.
pub(super) fn time(text: &str) -> Option<jiff::Timestamp> {
    let separated = matches!(text.as_bytes().get(10), Some(b'T' | b't'));
    let plain = !text.contains(['[', ' ', ',']);
    text.parse().ok().filter(|_| separated && plain)
}

/// What base64 stands for; line ends inside it are passed over, as upstream's decoder does.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    use base64::Engine as _;
    let engine = &base64::engine::general_purpose::STANDARD;
    if text.contains(['\r', '\n']) { engine.decode(text.replace(['\r', '\n'], "")) } else { engine.decode(text) }
}

/// A walk through one object.
struct Check<'a> {
    known: &'a TypeIndex,
    problems: FieldProblems,
    path: String,
}

impl<'a> Check<'a> {
    /// `holder` is the short name of the innermost type that holds the value.
    fn value(&mut self, shape: &Shape, value: &Value, holder: &str) {
        match (shape, value) {
            (_, Value::Null) => {}
            (Shape::List(item), Value::Array(items)) => {
                for (at, value) in items.iter().enumerate() {
                    let before = self.path.len();
                    let _ = write!(self.path, "[{at}]");
                    self.value(item, value, holder);
                    self.path.truncate(before);
                }
            }
            (Shape::Map(item), Value::Object(fields)) => {
                for (key, value) in fields {
                    self.field(key, item, value, holder);
                }
            }
            (Shape::Named(name), _) => self.named(shape, name, value, holder),
            (shape, value) if matches_shape(shape, value) => {}
            (Shape::Bytes, Value::String(text)) => self.bytes(text),
            (Shape::Time | Shape::MicroTime, Value::String(text)) => {
                let place = self.place(holder);
                let wrong = format!(
                    "parsing time {} of {place} as \"2006-01-02T15:04:05Z07:00\": not a point in time",
                    quoted(text)
                );
                self.problems.wrong.push(wrong);
            }
            (Shape::Quantity, Value::String(_) | Value::Number(_)) => {
                self.problems.wrong.push(format!("{QUANTITY}: {}", self.path));
            }
            _ => self.type_mismatch(shape, value, holder),
        }
    }

    fn named(&mut self, shape: &Shape, name: &str, value: &Value, holder: &str) {
        let known: &'a TypeIndex = self.known;
        if let Some(scalar) = known.scalars.get(name) {
            return self.value(scalar, value, holder);
        }
        let Some(fields) = known.types.get(name) else { return };
        let Value::Object(object) = value else { return self.type_mismatch(shape, value, holder) };
        let holder = name.rsplit('.').next().unwrap_or(name);
        for (key, value) in object {
            match fields.get(key.as_str()) {
                Some(field) => self.field(key, &field.shape, value, holder),
                None => self.problems.unknown.push(join(&self.path, key)),
            }
        }
    }

    fn field(&mut self, key: &str, shape: &Shape, value: &Value, holder: &str) {
        let before = self.path.len();
        if before > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        self.value(shape, value, holder);
        self.path.truncate(before);
    }

    fn bytes(&mut self, text: &str) {
        let at = match bytes(text) {
            Ok(_) => return,
            Err(base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _)) => at,
            Err(_) => text.len(),
        };
        // The text may be a secret and is not repeated.
        self.problems.wrong.push(format!("illegal base64 data at input byte {at} of {}", self.path));
    }

    fn type_mismatch(&mut self, shape: &Shape, value: &Value, holder: &str) {
        let found = match value {
            Value::String(_) => "string".to_owned(),
            Value::Number(number) if matches!(shape, Shape::Integer(_)) => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Array(_) => "array".to_owned(),
            _ => "object".to_owned(),
        };
        let place = self.place(holder);
        self.problems.wrong.push(format!("json: cannot unmarshal {found} into Go {place} of type {shape}"));
    }

    /// Where the walk is, in the words of upstream's decoder: without the places in lists.
    fn place(&self, holder: &str) -> String {
        let mut out = format!("struct field {holder}.");
        let mut inside = false;
        for c in self.path.chars() {
            match c {
                '[' => inside = true,
                ']' => inside = false,
                c if !inside => out.push(c),
                _ => {}
            }
        }
        out
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
