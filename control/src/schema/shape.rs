//! The types of fields: made once per kind from the published description, joined with how upstream's types write
//! what is empty, and kept in a compact form.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard},
};

use k8s_openapi::{
    api::{
        authentication::v1 as authentication, authorization::v1 as authorization, autoscaling::v1 as autoscaling,
        core::v1 as core, policy::v1 as policy,
    },
    apimachinery::pkg::apis::meta::v1 as meta,
};
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;

use crate::registry;

#[derive(Debug, Clone)]
pub(super) enum Shape {
    /// Anything goes.
    Any,
    String,
    /// Base64.
    Bytes,
    Time,
    MicroTime,
    /// So many bits at most.
    Integer(u8),
    Number,
    Bool,
    Quantity,
    IntOrString,
    List(Arc<Shape>),
    Map(Arc<Shape>),
    /// A named type, looked up when it is met: types may hold themselves.
    Named(Arc<str>),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("interface {}"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("[]uint8"),
            Self::Time => f.write_str("v1.Time"),
            Self::MicroTime => f.write_str("v1.MicroTime"),
            Self::Integer(bits) => write!(f, "int{bits}"),
            Self::Number => f.write_str("float64"),
            Self::Bool => f.write_str("bool"),
            Self::Quantity => f.write_str("resource.Quantity"),
            Self::IntOrString => f.write_str("intstr.IntOrString"),
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

/// How upstream's type writes a field, which decides what an empty value means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// No pointer, and left out when it is empty: absent and the zero value are the same.
    Value,
    /// No pointer, and written even if it is empty: absent and the zero value are the same.
    Always,
    /// A pointer: absent differs from the zero value.
    Pointer,
}

#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) shape: Shape,
    pub(super) presence: Presence,
    /// Typed clients cannot do without it.
    pub(super) required: bool,
}

pub(super) type Fields = BTreeMap<Box<str>, Field>;

/// All named types met so far; kinds share most of them.
#[derive(Debug, Default)]
pub(super) struct TypeIndex {
    pub(super) types: HashMap<Arc<str>, Fields>,
    /// Named types that are no objects.
    pub(super) scalars: HashMap<Arc<str>, Shape>,
    kinds: HashMap<&'static str, Arc<str>>,
}

/// All types that a kind holds, and the kind's own; nothing for a kind that is not known. Requests share them.
pub(super) fn of_kind(kind: &'static str) -> Option<(RwLockReadGuard<'static, TypeIndex>, Shape)> {
    static TYPE_INDEX: LazyLock<RwLock<TypeIndex>> = LazyLock::new(RwLock::default);
    let read = || TYPE_INDEX.read().unwrap_or_else(PoisonError::into_inner);
    let root = |known: &TypeIndex| known.kinds.get(kind).map(|root| Shape::Named(Arc::clone(root)));
    let known = read();
    if let Some(root) = root(&known) {
        return Some((known, root));
    }
    drop(known);
    TYPE_INDEX.write().unwrap_or_else(PoisonError::into_inner).load_kind(kind);
    let known = read();
    let root = root(&known)?;
    Some((known, root))
}

/// The fields of each type that are not simply left out when they are empty.
static PRESENCE: LazyLock<HashMap<&'static str, HashMap<&'static str, Presence>>> = LazyLock::new(|| {
    let lines = include_str!("presence.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split(' ');
            let name = words.next()?;
            let fields = words.filter_map(|word| match word.split_at_checked(1)? {
                ("*", field) => Some((field, Presence::Pointer)),
                ("!", field) => Some((field, Presence::Always)),
                _ => None,
            });
            Some((name, fields.collect()))
        })
        .collect()
});

/// What is known of the fields of `io.k8s.api.core.v1.Pod`, which the table calls `core/v1.Pod`.
pub(super) fn presence_of(type_name: &str) -> Option<&'static HashMap<&'static str, Presence>> {
    let mut parts = type_name.rsplit('.');
    let (kind, version, group) = (parts.next()?, parts.next()?, parts.next()?);
    PRESENCE.get(format!("{group}/{version}.{kind}").as_str())
}

/// The description of a kind: of the registry, or of those that are only sent and answered.
fn description(kind: &str) -> Option<fn(&mut SchemaGenerator) -> Schema> {
    if let Some(resource) = registry::of_kind(kind) {
        return Some(resource.schema);
    }
    Some(match kind {
        "Binding" => |g| g.subschema_for::<core::Binding>(),
        "DeleteOptions" => |g| g.subschema_for::<meta::DeleteOptions>(),
        "Eviction" => |g| g.subschema_for::<policy::Eviction>(),
        "Scale" => |g| g.subschema_for::<autoscaling::Scale>(),
        "SelfSubjectAccessReview" => |g| g.subschema_for::<authorization::SelfSubjectAccessReview>(),
        "SelfSubjectReview" => |g| g.subschema_for::<authentication::SelfSubjectReview>(),
        "SubjectAccessReview" => |g| g.subschema_for::<authorization::SubjectAccessReview>(),
        "TokenReview" => |g| g.subschema_for::<authentication::TokenReview>(),
        _ => return None,
    })
}

impl TypeIndex {
    /// Takes in a kind's type and everything that it holds.
    fn load_kind(&mut self, kind: &'static str) {
        let Some(description) = description(kind) else { return };
        let mut generator = SchemaSettings::openapi3().into_generator();
        let root = description(&mut generator);
        let Some(root) = named(root.as_value()) else { return };
        for (name, definition) in generator.take_definitions(true) {
            if self.types.contains_key(name.as_str()) || self.scalars.contains_key(name.as_str()) {
                continue;
            }
            match definition.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    let presence = presence_of(&name);
                    let required = |key: &str| {
                        let names = definition.get("required").and_then(Value::as_array);
                        names.is_some_and(|names| names.iter().any(|name| name == key))
                    };
                    let field = |(key, schema): (&String, &Value)| {
                        let presence = presence.and_then(|p| p.get(key.as_str()).copied());
                        let presence = presence.unwrap_or(Presence::Value);
                        let field = Field { shape: shape(schema), presence, required: required(key) };
                        (key.as_str().into(), field)
                    };
                    let fields = properties.iter().map(field).collect();
                    self.types.insert(name.into(), fields);
                }
                None => drop(self.scalars.insert(name.into(), shape(&definition))),
            }
        }
        self.kinds.insert(kind, root.into());
    }
}

/// The name at the end of a reference.
fn named(schema: &Value) -> Option<&str> {
    let reference = schema.get("$ref").or_else(|| schema.get("allOf")?.get(0)?.get("$ref"))?.as_str()?;
    reference.rsplit('/').next()
}

fn shape(schema: &Value) -> Shape {
    if schema.get("x-kubernetes-int-or-string").is_some() {
        return Shape::IntOrString;
    }
    if let Some(name) = named(schema) {
        return match name.rsplit('.').next() {
            Some("Quantity") => Shape::Quantity,
            Some("IntOrString") => Shape::IntOrString,
            Some("Time") => Shape::Time,
            Some("MicroTime") => Shape::MicroTime,
            _ => Shape::Named(name.into()),
        };
    }
    let format = schema.get("format").and_then(Value::as_str);
    match (schema.get("type").and_then(Value::as_str), format) {
        (Some("string"), Some("byte")) => Shape::Bytes,
        (Some("string"), Some("date-time")) => Shape::Time,
        (Some("string"), _) => Shape::String,
        (Some("integer"), Some("int32")) => Shape::Integer(32),
        (Some("integer"), _) => Shape::Integer(64),
        (Some("number"), _) => Shape::Number,
        (Some("boolean"), _) => Shape::Bool,
        (Some("array"), _) => Shape::List(Arc::new(schema.get("items").map_or(Shape::Any, shape))),
        (Some("object"), _) => match schema.get("additionalProperties") {
            Some(item @ Value::Object(_)) => Shape::Map(Arc::new(shape(item))),
            _ => Shape::Any,
        },
        _ => Shape::Any,
    }
}

/// Every value that is empty and that upstream's types would leave out, written out: what a client of another language
/// may send.
#[cfg(test)]
pub(crate) fn written_out(gvk: &registry::Gvk, value: &Value) -> Value {
    let mut value = value.clone();
    if let Some((known, root)) = of_kind(gvk.kind) {
        known.write_out(&root, &mut value);
    }
    value
}

/// A pointer to each field of a kind, as deep as lists and maps of one item go, with a value that it can hold.
#[cfg(test)]
pub(crate) fn pointers(gvk: &registry::Gvk) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    if let Some((known, root)) = of_kind(gvk.kind) {
        known.point(&root, "", 0, &mut found);
    }
    found
}

#[cfg(test)]
impl TypeIndex {
    fn write_out(&self, shape: &Shape, value: &mut Value) {
        match (shape, value) {
            (Shape::List(item), Value::Array(items)) => items.iter_mut().for_each(|value| self.write_out(item, value)),
            (Shape::Map(item), Value::Object(fields)) => {
                fields.values_mut().for_each(|value| self.write_out(item, value));
            }
            (Shape::Named(name), Value::Object(object)) => {
                for (key, field) in self.types.get(name).into_iter().flatten() {
                    if !object.contains_key(&**key) && field.presence != Presence::Pointer {
                        let empty = match &field.shape {
                            Shape::Time | Shape::MicroTime | Shape::Any => Value::Null,
                            shape => self.zero(shape),
                        };
                        object.insert(key.to_string(), empty);
                    }
                    if let Some(value) = object.get_mut(&**key) {
                        self.write_out(&field.shape, value);
                    }
                }
            }
            _ => {}
        }
    }

    fn point(&self, shape: &Shape, path: &str, depth: usize, found: &mut Vec<(String, Value)>) {
        const MAX_DEPTH: usize = 9;
        let fitting = match shape {
            Shape::Time => "2020-01-01T00:00:00.5+02:00".into(),
            Shape::MicroTime => "2020-01-01T00:00:00.123456789Z".into(),
            Shape::Bytes => "eA==".into(),
            Shape::String => "a".into(),
            Shape::Bool => true.into(),
            Shape::Integer(_) | Shape::Number | Shape::IntOrString => 1.into(),
            Shape::Quantity => "1024Mi".into(),
            shape => self.zero(shape),
        };
        found.push((path.to_owned(), fitting));
        if depth == MAX_DEPTH {
            return;
        }
        match shape {
            Shape::List(item) => self.point(item, &format!("{path}/0"), depth + 1, found),
            Shape::Map(item) => self.point(item, &format!("{path}/a"), depth + 1, found),
            Shape::Named(name) => {
                for (key, field) in self.types.get(name).into_iter().flatten() {
                    self.point(&field.shape, &format!("{path}/{key}"), depth + 1, found);
                }
            }
            _ => {}
        }
    }
}
