//! Which fields a kind has, and of what type: made once per kind from the published description and kept
//! in a compact form.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Write as _},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use k8s_openapi::api::{
    authentication::v1 as authentication, authorization::v1 as authorization, autoscaling::v1 as autoscaling,
    core::v1 as core, policy::v1 as policy,
};
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;

use crate::registry::{self, Gvk};

/// What is wrong with an object's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldProblems {
    /// Paths of fields that the kind does not have, such as `spec.containers[0].imagePolicy`.
    pub unknown: Vec<String>,
    /// Values of the wrong type, told as upstream's decoder does.
    pub wrong: Vec<String>,
}

#[derive(Debug, Clone)]
enum Shape {
    /// Anything goes.
    Any,
    Text,
    /// Base64.
    Bytes,
    Time,
    /// So many bits at most.
    Integer(u8),
    Number,
    Truth,
    /// A number or a text, such as a quantity or a port.
    Scalar,
    List(Arc<Shape>),
    Map(Arc<Shape>),
    /// A named type, looked up when it is met: types may hold themselves.
    Named(Arc<str>),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("interface {}"),
            Self::Text => f.write_str("string"),
            Self::Bytes => f.write_str("[]uint8"),
            Self::Time => f.write_str("v1.Time"),
            Self::Integer(bits) => write!(f, "int{bits}"),
            Self::Number => f.write_str("float64"),
            Self::Truth => f.write_str("bool"),
            Self::Scalar => f.write_str("number or string"),
            Self::List(item) => write!(f, "[]{item}"),
            Self::Map(item) => write!(f, "map[string]{item}"),
            Self::Named(name) => {
                let mut parts = name.rsplit('.');
                let kind = parts.next().unwrap_or_default();
                write!(f, "{}.{kind}", parts.next().unwrap_or_default())
            }
        }
    }
}

type Fields = BTreeMap<Box<str>, Shape>;

/// All named types met so far; kinds share most of them.
#[derive(Debug, Default)]
struct Known {
    types: HashMap<Arc<str>, Fields>,
    /// Named types that are no objects.
    scalars: HashMap<Arc<str>, Shape>,
    kinds: HashMap<&'static str, Arc<str>>,
}

fn known() -> &'static Mutex<Known> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default)
}

/// Checks every field of an object. A kind that nothing is known of has no problems.
#[must_use]
pub fn unknown_fields(gvk: &Gvk, value: &Value) -> FieldProblems {
    let mut known = known().lock().unwrap_or_else(PoisonError::into_inner);
    let Some(root) = known.root(gvk) else { return FieldProblems::default() };
    let mut check = Check { known: &known, problems: FieldProblems::default(), path: String::new() };
    check.value(&Shape::Named(root), value, gvk.kind);
    check.problems
}

/// Takes away what a typed decoder would not keep: fields that the kind does not have, and nulls.
pub fn prune(gvk: &Gvk, value: &mut Value) {
    let mut known = known().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(root) = known.root(gvk) {
        known.prune(&Shape::Named(root), value);
    }
}

/// The description of a kind: of the registry, or of those that are only sent and answered.
fn description(kind: &str) -> Option<fn(&mut SchemaGenerator) -> Schema> {
    if let Some(resource) = registry::of_kind(kind) {
        return Some(resource.schema);
    }
    Some(match kind {
        "Binding" => |g| g.subschema_for::<core::Binding>(),
        "Eviction" => |g| g.subschema_for::<policy::Eviction>(),
        "Scale" => |g| g.subschema_for::<autoscaling::Scale>(),
        "SelfSubjectAccessReview" => |g| g.subschema_for::<authorization::SelfSubjectAccessReview>(),
        "SelfSubjectReview" => |g| g.subschema_for::<authentication::SelfSubjectReview>(),
        "SubjectAccessReview" => |g| g.subschema_for::<authorization::SubjectAccessReview>(),
        "TokenReview" => |g| g.subschema_for::<authentication::TokenReview>(),
        _ => return None,
    })
}

impl Known {
    fn root(&mut self, gvk: &Gvk) -> Option<Arc<str>> {
        if let Some(root) = self.kinds.get(gvk.kind) {
            return Some(Arc::clone(root));
        }
        let mut generator = SchemaSettings::openapi3().into_generator();
        let root = description(gvk.kind)?(&mut generator);
        let root: Arc<str> = named(root.as_value())?.into();
        for (name, definition) in generator.take_definitions(true) {
            if self.types.contains_key(name.as_str()) || self.scalars.contains_key(name.as_str()) {
                continue;
            }
            let name: Arc<str> = name.into();
            match definition.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    let fields = properties.iter().map(|(k, v)| (k.as_str().into(), shape(v))).collect();
                    self.types.insert(name, fields);
                }
                None => drop(self.scalars.insert(name, shape(&definition))),
            }
        }
        self.kinds.insert(gvk.kind, Arc::clone(&root));
        Some(root)
    }

    fn prune(&self, shape: &Shape, value: &mut Value) {
        match (shape, value) {
            (Shape::List(item), Value::Array(items)) => items.iter_mut().for_each(|value| self.prune(item, value)),
            (Shape::Map(item), Value::Object(fields)) => {
                fields.retain(|_, value| !value.is_null());
                fields.values_mut().for_each(|value| self.prune(item, value));
            }
            (Shape::Named(name), Value::Object(object)) => {
                let Some(fields) = self.types.get(name) else { return };
                object.retain(|key, value| !value.is_null() && fields.contains_key(key.as_str()));
                for (key, value) in object {
                    if let Some(shape) = fields.get(key.as_str()) {
                        self.prune(shape, value);
                    }
                }
            }
            _ => {}
        }
    }
}

/// A walk through one object.
struct Check<'a> {
    known: &'a Known,
    problems: FieldProblems,
    path: String,
}

impl<'a> Check<'a> {
    /// `holder` is the short name of the innermost type that holds the value.
    fn value(&mut self, shape: &Shape, value: &Value, holder: &str) {
        match (shape, value) {
            (_, Value::Null)
            | (Shape::Any, _)
            | (Shape::Text, Value::String(_))
            | (Shape::Truth, Value::Bool(_))
            | (Shape::Number | Shape::Scalar, Value::Number(_))
            | (Shape::Scalar, Value::String(_)) => {}
            (Shape::Integer(32), Value::Number(n)) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {}
            (Shape::Integer(64), Value::Number(n)) if n.is_i64() => {}
            (Shape::Bytes, Value::String(text)) => self.bytes(text),
            (Shape::Time, Value::String(text)) => {
                if text.parse::<jiff::Timestamp>().is_err() {
                    let place = self.place(holder);
                    let wrong = format!(
                        "parsing time {} of {place} as \"2006-01-02T15:04:05Z07:00\": not a point in time",
                        quoted(text)
                    );
                    self.problems.wrong.push(wrong);
                }
            }
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
            _ => self.misfit(shape, value, holder),
        }
    }

    fn named(&mut self, shape: &Shape, name: &str, value: &Value, holder: &str) {
        let known: &'a Known = self.known;
        if let Some(scalar) = known.scalars.get(name) {
            return self.value(scalar, value, holder);
        }
        let Some(fields) = known.types.get(name) else { return };
        let Value::Object(object) = value else { return self.misfit(shape, value, holder) };
        let holder = name.rsplit('.').next().unwrap_or(name);
        for (key, value) in object {
            match fields.get(key.as_str()) {
                Some(shape) => self.field(key, shape, value, holder),
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
        use base64::Engine as _;
        if let Err(error) = base64::engine::general_purpose::STANDARD.decode(text) {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                _ => text.len(),
            };
            // The text may be a secret and is not repeated.
            self.problems.wrong.push(format!("illegal base64 data at input byte {at} of {}", self.path));
        }
    }

    fn misfit(&mut self, shape: &Shape, value: &Value, holder: &str) {
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
    let format = schema.get("format").and_then(Value::as_str);
    match (schema.get("type").and_then(Value::as_str), format) {
        (Some("string"), Some("byte")) => Shape::Bytes,
        (Some("string"), Some("date-time")) => Shape::Time,
        (Some("string"), _) => Shape::Text,
        (Some("integer"), Some("int32")) => Shape::Integer(32),
        (Some("integer"), _) => Shape::Integer(64),
        (Some("number"), _) => Shape::Number,
        (Some("boolean"), _) => Shape::Truth,
        (Some("array"), _) => Shape::List(Arc::new(schema.get("items").map_or(Shape::Any, shape))),
        (Some("object"), _) => match schema.get("additionalProperties") {
            Some(item @ Value::Object(_)) => Shape::Map(Arc::new(shape(item))),
            _ => Shape::Any,
        },
        _ => Shape::Any,
    }
}
