//! A schema, seen as server-side apply sees it: each value is a scalar, a list or a map, or may be one of several.
//!
//! Upstream makes such a schema from OpenAPI: `kube-openapi/pkg/schemaconv`.

use std::sync::Arc;

use serde_json::Value;

use crate::schema::{Kind, ListType, Object, Presence, Schema};

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub struct Type<'a>(Node<'a>);

#[derive(Debug, Clone, Copy)]
enum Node<'a> {
    Schema {
        schema: &'a Schema,
        presence: Presence,
        /// Whether unknown fields are kept at or above the node.
        preserve: bool,
        /// The type of `metadata` of embedded resources.
        object_meta: &'a Schema,
    },
    /// What the value says: its lists are atomic, its maps granular.
    Deduced,
    /// `apiVersion` and `kind`.
    Text,
}

/// What a value can be. Several are set for a value of which the schema says nothing, and all for null.
#[derive(Debug)]
pub(super) struct Atom<'a> {
    pub(super) scalar: Option<Scalar>,
    pub(super) list: Option<ListAtom<'a>>,
    pub(super) map: Option<MapAtom<'a>>,
}

/// The scalars that a value can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Number,
    Text,
    Bool,
    Any,
}

#[derive(Debug)]
pub(super) struct ListAtom<'a> {
    pub(super) topology: Topology<'a>,
    pub(super) item: Type<'a>,
}

/// How the items of a list are identified.
#[derive(Debug)]
pub(super) enum Topology<'a> {
    /// Not at all.
    Atomic,
    /// By their values.
    Set,
    /// By the values of these fields.
    Map(&'a [Arc<str>]),
}

#[derive(Debug)]
pub(super) struct MapAtom<'a> {
    pub(super) atomic: bool,
    object: Option<&'a Object>,
    /// What fields of the object inherit.
    preserve: bool,
    embedded: bool,
    object_meta: Option<&'a Schema>,
    /// The type of undeclared fields; `None` if they are not allowed.
    entries: Option<Type<'a>>,
}

impl ListAtom<'_> {
    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.topology, Topology::Atomic)
    }
}

impl<'a> MapAtom<'a> {
    /// The type of a declared field.
    pub(super) fn field(&self, name: &str) -> Option<Type<'a>> {
        let object_meta = self.object_meta?;
        if let Some(property) = self.object.and_then(|object| object.properties.get(name)) {
            let (schema, presence) = (&property.schema, property.presence);
            if !(self.embedded && name == "metadata") {
                return Some(Type(Node::Schema { schema, presence, preserve: self.preserve, object_meta }));
            }
        }
        match name {
            "metadata" if self.embedded => Some(Type::new(object_meta, object_meta)),
            "apiVersion" | "kind" if self.embedded => Some(Type(Node::Text)),
            _ => None,
        }
    }

    /// The fields that Go writes though they are empty, with their zero values.
    pub(super) fn always(&self) -> impl Iterator<Item = (&'a str, Value)> + use<'a> {
        let properties = self.object.into_iter().flat_map(|object| &object.properties);
        let always = properties.filter(|(_, property)| property.presence == Presence::Always);
        always.map(|(name, property)| (&**name, zero(&property.schema)))
    }

    /// The type of a field, declared or not.
    pub(super) fn entry(&self, name: &str) -> Option<Type<'a>> {
        self.field(name).or(self.entries)
    }
}

impl Atom<'_> {
    /// Whether two values can be the same.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.scalar.is_some() == other.scalar.is_some()
            && self.list.is_some() == other.list.is_some()
            && self.map.is_some() == other.map.is_some()
    }
}

impl<'a> Type<'a> {
    /// The type that a schema describes. `object_meta` is the type of `metadata` of objects whose schema leaves it out:
    /// custom resources and embedded ones.
    #[must_use]
    pub fn new(schema: &'a Schema, object_meta: &'a Schema) -> Self {
        Self(Node::Schema { schema, presence: Presence::Pointer, preserve: false, object_meta })
    }

    /// What a value of this type can be: all that it may be, or the one that it is.
    pub(super) fn atom(self, value: &Value) -> Atom<'a> {
        let mut atom = self.whole_atom();
        match value {
            Value::Null => {}
            Value::Array(_) if atom.list.is_some() => (atom.scalar, atom.map) = (None, None),
            Value::Object(_) if atom.map.is_some() => (atom.scalar, atom.list) = (None, None),
            Value::Number(_) | Value::String(_) | Value::Bool(_) if atom.scalar.is_some() => {
                (atom.list, atom.map) = (None, None);
            }
            _ => {}
        }
        atom
    }

    fn whole_atom(self) -> Atom<'a> {
        let scalar = |scalar| Atom { scalar: Some(scalar), list: None, map: None };
        let (schema, preserve, object_meta) = match self.0 {
            Node::Deduced => return Self::deduced_atom(false),
            Node::Text => return scalar(Scalar::Text),
            Node::Schema { schema, preserve, object_meta, .. } => (schema, preserve, object_meta),
        };
        let definition = schema.resolved();
        let preserve = preserve || schema.preserve_unknown_fields || definition.preserve_unknown_fields;
        let inside = |schema| Self(Node::Schema { schema, presence: Presence::Pointer, preserve, object_meta });
        let atom = match &definition.kind {
            Kind::Any | Kind::Json | Kind::Union(_) => Self::deduced_atom(schema.is_atomic()),
            Kind::Bool => scalar(Scalar::Bool),
            Kind::Integer(_) | Kind::Number => scalar(Scalar::Number),
            Kind::String if has_format(schema) => scalar(Scalar::Any),
            Kind::String | Kind::Bytes | Kind::Duration => scalar(Scalar::Text),
            Kind::Quantity | Kind::IntOrString | Kind::Time | Kind::MicroTime => scalar(Scalar::Any),
            Kind::List(items) => {
                let topology = match &schema.list_type {
                    None | Some(ListType::Atomic) => Topology::Atomic,
                    Some(ListType::Set) => Topology::Set,
                    Some(ListType::Map(keys)) => Topology::Map(keys),
                };
                Atom { scalar: None, list: Some(ListAtom { topology, item: inside(items) }), map: None }
            }
            Kind::Map(values) => Self::map_atom(MapAtom {
                atomic: schema.is_atomic(),
                entries: Some(inside(values)),
                ..MapAtom::of_any(object_meta)
            }),
            Kind::RawExtension | Kind::FieldsV1 => Self::deduced_atom(true),
            Kind::Object(object) => {
                let embedded = schema.embedded_resource || definition.embedded_resource;
                // An object of which nothing is declared is a map of anything.
                let open = preserve || (object.properties.is_empty() && !embedded);
                Self::map_atom(MapAtom {
                    atomic: schema.is_atomic(),
                    object: Some(object),
                    preserve,
                    embedded,
                    object_meta: Some(object_meta),
                    entries: open.then_some(Self(Node::Deduced)),
                })
            }
            // A definition names no other type.
            Kind::Named(_) => Self::deduced_atom(false),
        };
        if definition.untyped { Self::or_deduced(atom) } else { atom }
    }

    /// What a schema without `type` takes, such as int-or-string in a custom resource: also what it says nothing of.
    fn or_deduced(atom: Atom<'a>) -> Atom<'a> {
        let deduced = Self::deduced_atom(false);
        Atom { scalar: atom.scalar.or(deduced.scalar), list: atom.list.or(deduced.list), map: atom.map.or(deduced.map) }
    }

    fn map_atom(map: MapAtom<'a>) -> Atom<'a> {
        Atom { scalar: None, list: None, map: Some(map) }
    }

    fn deduced_atom(atomic: bool) -> Atom<'a> {
        let deduced = Self(Node::Deduced);
        Atom {
            scalar: Some(Scalar::Any),
            list: Some(ListAtom { topology: Topology::Atomic, item: deduced }),
            map: Some(MapAtom {
                atomic,
                object: None,
                preserve: true,
                embedded: false,
                object_meta: None,
                entries: Some(deduced),
            }),
        }
    }

    /// The value that an item of a list has in a key field that it leaves out. Fields that are no pointers in Go have their
    /// zero value, as in upstream's OpenAPI.
    pub(super) fn default_value(self) -> Option<Value> {
        let Node::Schema { schema, presence, .. } = self.0 else { return None };
        if let Some(default) = &schema.default {
            return Some(default.as_ref().clone());
        }
        (presence != Presence::Pointer).then(|| zero(schema)).filter(|zero| !zero.is_null() && !zero.is_object())
    }
}

impl<'a> MapAtom<'a> {
    /// A granular map of anything.
    fn of_any(object_meta: &'a Schema) -> Self {
        Self {
            atomic: false,
            object: None,
            preserve: true,
            embedded: false,
            object_meta: Some(object_meta),
            entries: Some(Type(Node::Deduced)),
        }
    }
}

/// What Go writes of an empty value; of a struct without its fields.
fn zero(schema: &Schema) -> Value {
    match &schema.resolved().kind {
        Kind::Object(_) => Value::Object(serde_json::Map::new()),
        Kind::String => Value::from(""),
        Kind::Bool => Value::from(false),
        Kind::Integer(_) | Kind::Number | Kind::IntOrString => Value::from(0),
        Kind::Quantity => Value::from("0"),
        Kind::Duration => Value::from("0s"),
        _ => Value::Null,
    }
}

/// Whether a text has a format that makes it more than text; such a field takes any scalar.
fn has_format(schema: &Schema) -> bool {
    let format = schema.validations.as_ref().and_then(|validations| validations.format.as_deref());
    format.is_some_and(|format| !matches!(format, "" | "byte"))
}
