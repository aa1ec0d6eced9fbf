//! Values, which borrow what they can from the objects that expressions are about.

mod arithmetic;
mod compare;
mod convert;
mod display;
mod equal;
mod json;
mod list;
mod map;
mod opaque;
mod time;

use std::{fmt::Debug, hash::Hash, ops::Deref, sync::Arc};

use windlass_apimachinery::go_float;

pub(crate) use self::{
    arithmetic::{add, divide, modulo, multiply, negate, subtract},
    compare::compare,
    convert::{convert, lossless_index},
    equal::equal,
    map::{Key, Owned as OwnedMap},
    time::{Civil, in_zone, parse_duration, parse_timestamp},
};
pub use self::{
    list::List,
    map::Map,
    opaque::{Authorizer, Decision, Opaque, ResourceAttributes},
    time::Timestamp,
};
use crate::{ast::Literal, error::EvalError, types::Type};

/// Text, borrowed or shared.
#[derive(Debug, Clone)]
pub enum Text<'a> {
    /// Of an object that an expression is about.
    Borrowed(&'a str),
    /// Of the expression, or computed by it.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl Hash for Text<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

/// A value.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// Null.
    Null,
    /// True or false.
    Bool(bool),
    /// 64 bits with a sign.
    Int(i64),
    /// 64 bits without a sign.
    Uint(u64),
    /// A float.
    Double(f64),
    /// Text.
    String(Text<'a>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// Nanoseconds.
    Duration(i64),
    /// A moment, with the offset of the zone that it was written in.
    Timestamp(Timestamp),
    /// A type.
    Type(Type),
    /// A value, or none.
    Optional(Option<Arc<Self>>),
    /// A list.
    List(List<'a>),
    /// A map, or an object of the API.
    Map(Map<'a>),
    /// What an expression made of a type with fields: `Object{spec: …}`.
    Struct(Arc<Struct<'a>>),
    /// A value of a library's own type.
    Opaque(Opaque<'a>),
    /// An object whose fields are computed when they are selected.
    Lazy(&'a dyn Fields),
    /// What a schema lets pass without a type: equal to the same JSON, and nothing else can be done with it.
    Unknown(&'a serde_json::Value),
}

/// A struct that an expression made.
#[derive(Debug, Clone)]
pub struct Struct<'a> {
    /// The type's name.
    pub type_name: Arc<str>,
    /// The fields that were given, in their order.
    pub fields: Vec<(Arc<str>, Value<'a>)>,
}

/// An object whose fields are computed when they are selected, such as the variables of a policy.
pub trait Fields: Debug + Send + Sync {
    /// The type's name.
    fn type_name(&self) -> &str;

    /// A field; nothing if there is none of that name.
    fn field(&self, name: &str) -> Option<Result<Value<'_>, EvalError>>;
}

/// What evaluation of a part gives.
pub(crate) type Outcome<'a> = Result<Value<'a>, EvalError>;

impl<'a> Value<'a> {
    /// A text that is computed.
    pub(crate) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Shared(text.into()))
    }

    /// What a literal stands for.
    pub(crate) fn of_literal(literal: &Literal) -> Self {
        match literal {
            Literal::Null => Self::Null,
            Literal::Bool(value) => Self::Bool(*value),
            Literal::Int(value) => Self::Int(*value),
            Literal::Uint(value) => Self::Uint(*value),
            Literal::Double(value) => Self::Double(*value),
            Literal::String(text) => Self::text(text.as_str()),
            Literal::Bytes(bytes) => Self::Bytes(bytes.as_slice().into()),
        }
    }

    /// A list of values.
    #[must_use]
    pub fn list(elements: Vec<Self>) -> Self {
        Self::List(List::Owned(Arc::new(elements)))
    }

    /// A list of texts.
    pub(crate) fn texts<T: Into<Arc<str>>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::list(texts.into_iter().map(Self::text).collect())
    }

    /// An optional with a value.
    #[must_use]
    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// An optional without a value.
    #[must_use]
    pub const fn none() -> Self {
        Self::Optional(None)
    }

    /// The value's type; those of lists and maps are not looked at further.
    pub(crate) fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Duration(_) => Type::Duration,
            Self::Timestamp(_) => Type::Timestamp,
            Self::Type(_) => Type::type_of(Type::Dyn),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Struct(object) => Type::Object(Arc::clone(&object.type_name)),
            Self::Opaque(opaque) => opaque.type_of(),
            Self::Lazy(fields) => Type::object(fields.type_name()),
            Self::Unknown(_) => Type::object("unknown"),
        }
    }

    /// The length of what has one, as cel-go counts cost: characters, bytes, elements, entries; 1 for all else.
    pub(crate) fn size(&self) -> u64 {
        self.len().unwrap_or(1)
    }

    /// As `size`; nothing of what has no length.
    pub(crate) fn len(&self) -> Option<u64> {
        Some(match self {
            Self::String(text) if text.is_ascii() => text.len() as u64,
            Self::String(text) => text.chars().count() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::List(list) => list.len() as u64,
            Self::Map(map) => map.len() as u64,
            Self::Opaque(opaque) => return opaque.len(),
            _ => return None,
        })
    }

    /// As `size`, and of an optional that of what is in it; cel-go's `actualSize`.
    pub(crate) fn cost_size(&self) -> u64 {
        match self {
            Self::Optional(Some(value)) => value.cost_size(),
            other => other.size(),
        }
    }

    /// Whether it is the zero of its type, for `optional.ofNonZeroValue`.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(value) => !value,
            Self::Int(value) | Self::Duration(value) => *value == 0,
            Self::Uint(value) => *value == 0,
            Self::Double(value) => *value == 0.0,
            Self::String(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Timestamp(timestamp) => timestamp.is_zero(),
            Self::List(list) => list.is_zeroer() && list.is_empty(),
            Self::Map(map) => map.is_zeroer() && map.is_empty(),
            Self::Struct(object) => object.fields.is_empty(),
            _ => false,
        }
    }

    /// Whether a signature's type takes the value, of whose lists and maps the first elements are looked at; cel-go's
    /// `IsAssignableRuntimeType`.
    pub(crate) fn is_of(&self, wanted: &Type) -> bool {
        match (wanted, self) {
            (Type::Dyn | Type::Any | Type::Param(_), _) => true,
            (Type::List(element), Self::List(list)) => {
                list.first().is_none_or(|first| first.is_ok_and(|first| first.is_of(element)))
            }
            (Type::Map(types), Self::Map(map)) => map
                .first()
                .is_none_or(|(key, value)| key.is_of(&types.0) && value.is_ok_and(|value| value.is_of(&types.1))),
            (Type::List(_) | Type::Map(_), _) | (_, Self::List(_) | Self::Map(_)) => false,
            (Type::Object(name), Self::Struct(object)) => *name == object.type_name,
            (Type::Object(name), Self::Lazy(fields)) => &**name == fields.type_name(),
            (Type::Opaque(..) | Type::Object(_), Self::Opaque(opaque)) => wanted.name() == opaque.type_name(),
            (Type::Type(_), Self::Type(_)) => true,
            (wanted, value) => wanted.name() == value.type_of().name(),
        }
    }

    /// As it is after it went through an optional, where upstream loses the schema.
    pub(crate) fn without_schema(self) -> Self {
        match self {
            Self::List(list) => Self::List(list.without_schema()),
            Self::Map(map) => Self::Map(map.without_schema()),
            other => other,
        }
    }
}
