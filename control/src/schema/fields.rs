//! Which fields a kind has, and of what type: made once per kind from the published description and kept
//! in a compact form.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::registry::{self, Gvk};

/// What is wrong with an object's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldProblems {
    /// Paths of fields that the kind does not have.
    pub unknown: Vec<String>,
    /// Values of the wrong type, told as the decoder would.
    pub wrong: Vec<String>,
}

#[derive(Debug, Clone)]
enum Shape {
    /// Anything goes.
    Any,
    Text,
    Integer,
    Number,
    Truth,
    /// A number or a text, such as a quantity or a port.
    Scalar,
    List(Arc<Shape>),
    Map(Arc<Shape>),
    /// A named type, looked up when it is met: types may hold themselves.
    Named(Arc<str>),
}

type Fields = BTreeMap<Box<str>, Shape>;

/// All named types met so far; kinds share most of them.
#[derive(Debug, Default)]
struct Known {
    types: HashMap<Arc<str>, Arc<Fields>>,
    scalars: HashMap<Arc<str>, Shape>,
    kinds: HashMap<&'static str, Arc<str>>,
}

fn known() -> &'static Mutex<Known> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default)
}

/// Checks every field of an object.
#[must_use]
pub fn unknown_fields(gvk: &Gvk, value: &Value) -> FieldProblems {
    let mut problems = FieldProblems::default();
    let mut known = known().lock().unwrap_or_else(PoisonError::into_inner);
    let Some(root) = known.root(gvk) else { return problems };
    known.check(&Shape::Named(root), value, String::new(), gvk.kind, &mut problems);
    problems
}

impl Known {
    fn root(&mut self, gvk: &Gvk) -> Option<Arc<str>> {
        if let Some(root) = self.kinds.get(gvk.kind) {
            return Some(Arc::clone(root));
        }
        let schema = registry::of_kind(gvk.kind)?.schema;
        let mut generator = SchemaSettings::openapi3().into_generator();
        let root = schema(&mut generator);
        let root: Arc<str> = named(root.as_value())?.into();
        for (name, definition) in generator.take_definitions(true) {
            let name: Arc<str> = name.into();
            match definition.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    let fields = properties.iter().map(|(k, v)| (k.as_str().into(), shape(v))).collect();
                    self.types.insert(name, Arc::new(fields));
                }
                None => drop(self.scalars.insert(name, shape(&definition))),
            }
        }
        self.kinds.insert(gvk.kind, Arc::clone(&root));
        Some(root)
    }

    fn check(&self, shape: &Shape, value: &Value, path: String, kind: &str, problems: &mut FieldProblems) {
        if value.is_null() {
            return;
        }
        let fits = match (shape, value) {
            (Shape::Any, _)
            | (Shape::Text, Value::String(_))
            | (Shape::Truth, Value::Bool(_))
            | (Shape::Number | Shape::Scalar, Value::Number(_))
            | (Shape::Scalar, Value::String(_)) => true,
            (Shape::Integer, Value::Number(n)) => n.is_i64() || n.is_u64(),
            (Shape::List(item), Value::Array(items)) => {
                for (at, value) in items.iter().enumerate() {
                    self.check(item, value, format!("{path}[{at}]"), kind, problems);
                }
                true
            }
            (Shape::Map(item), Value::Object(fields)) => {
                for (key, value) in fields {
                    self.check(item, value, join(&path, key), kind, problems);
                }
                true
            }
            (Shape::Named(name), _) => match (self.types.get(name), self.scalars.get(name), value) {
                (Some(fields), _, Value::Object(object)) => {
                    for (key, value) in object {
                        match fields.get(key.as_str()) {
                            Some(shape) => self.check(shape, value, join(&path, key), kind, problems),
                            None => problems.unknown.push(join(&path, key)),
                        }
                    }
                    true
                }
                (None, Some(scalar), _) => return self.check(scalar, value, path, kind, problems),
                (None, None, _) => true,
                _ => false,
            },
            _ => false,
        };
        if !fits {
            let found = match value {
                Value::String(_) => "string",
                Value::Number(_) => "number",
                Value::Bool(_) => "bool",
                Value::Array(_) => "array",
                _ => "object",
            };
            let wanted = match shape {
                Shape::Text => "string",
                Shape::Integer => "int",
                Shape::Number => "number",
                Shape::Truth => "bool",
                Shape::Scalar => "string or number",
                Shape::List(_) => "list",
                Shape::Map(_) | Shape::Named(_) | Shape::Any => "object",
            };
            problems.wrong.push(format!("json: cannot unmarshal {found} into Go struct field {kind}.{path} of type {wanted}"));
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The name at the end of a reference.
fn named(schema: &Value) -> Option<&str> {
    let reference = schema.get("$ref").or_else(|| schema.get("allOf")?.get(0)?.get("$ref"))?.as_str()?;
    reference.rsplit('/').next()
}

fn shape(schema: &Value) -> Shape {
    if schema.get("x-kubernetes-int-or-string").is_some() {
        return Shape::Scalar;
    }
    if let Some(name) = named(schema) {
        // Quantities are written as text or as plain numbers.
        return if name.ends_with(".Quantity") { Shape::Scalar } else { Shape::Named(name.into()) };
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => Shape::Text,
        Some("integer") => Shape::Integer,
        Some("number") => Shape::Number,
        Some("boolean") => Shape::Truth,
        Some("array") => Shape::List(Arc::new(schema.get("items").map_or(Shape::Any, shape))),
        Some("object") => match schema.get("additionalProperties") {
            Some(item @ Value::Object(_)) => Shape::Map(Arc::new(shape(item))),
            _ => Shape::Any,
        },
        _ => Shape::Any,
    }
}
