//! Maps: of values, or of JSON with or without a schema; objects of a schema are maps too.

use std::sync::Arc;

use foldhash::fast::FixedState;
use indexmap::{Equivalent, IndexMap};
use serde_json::Value as Json;

use super::{Outcome, Text, Value};
use crate::{
    decl::{DeclType, Shape, escape, unescape},
    error::EvalError,
};

/// A map.
#[derive(Debug, Clone)]
pub enum Map<'a> {
    /// Values, computed or written out.
    Owned(Arc<Owned<'a>>),
    /// Entries without a schema.
    Json(&'a serde_json::Map<String, Json>),
    /// Entries of a schema, or the fields of an object of it.
    Typed(&'a serde_json::Map<String, Json>, &'a DeclType),
}

/// Entries in the order in which they were added.
pub(crate) type Owned<'a> = IndexMap<Key<'a>, Value<'a>, FixedState>;

/// What can be a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    /// The bits of a float.
    Double(u64),
    String(Text<'a>),
    Null,
}

impl<'a> Equivalent<Key<'a>> for &Key<'_> {
    fn equivalent(&self, key: &Key<'a>) -> bool {
        **self == *key
    }
}

impl<'a> Key<'a> {
    pub(crate) fn of(value: &Value<'a>) -> Option<Self> {
        Some(match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Uint(value) => Self::Uint(*value),
            Value::Double(value) => Self::Double(value.to_bits()),
            Value::String(text) => Self::String(text.clone()),
            Value::Null => Self::Null,
            _ => return None,
        })
    }

    pub(crate) fn to_value(&self) -> Value<'a> {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::Double(bits) => Value::Double(f64::from_bits(*bits)),
            Self::String(text) => Value::String(text.clone()),
            Self::Null => Value::Null,
        }
    }
}

impl<'a> Map<'a> {
    /// How many entries there are; upstream counts those of an object without a schema too.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(entries) => entries.len(),
            Self::Json(entries) | Self::Typed(entries, _) => entries.len(),
        }
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The value is not of its schema, or keys are no texts where they must be.
    pub(crate) fn find(&self, key: &Value<'a>) -> Option<Outcome<'a>> {
        match (self, key) {
            (Self::Owned(entries), key) => find_owned(entries, key).map(Ok),
            (Self::Json(entries), Value::String(key)) => entries.get(&**key).map(|value| Ok(Value::from_json(value))),
            (Self::Json(_), _) => None,
            (Self::Typed(entries, declared), Value::String(key)) => find_typed(entries, declared, key),
            (Self::Typed(..), _) => Some(Err(EvalError::no_such_overload())),
        }
    }

    /// The value of a property by its name in JSON.
    pub(super) fn raw(&self, name: &str) -> Option<Outcome<'a>> {
        match self {
            Self::Owned(entries) => entries.get(&&Key::String(Text::Shared(name.into()))).cloned().map(Ok),
            Self::Json(entries) => entries.get(name).map(|value| Ok(Value::from_json(value))),
            Self::Typed(entries, declared) => {
                entries.get(name).and_then(|value| Some(Value::of_type(value, declared.property(name)?)))
            }
        }
    }

    /// All keys; of an object of a schema those of declared fields, as expressions name them.
    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Owned(entries) => entries.keys().map(Key::to_value).collect(),
            Self::Json(entries) => entries.keys().map(|key| Value::String(Text::Borrowed(key))).collect(),
            Self::Typed(entries, declared) => {
                let known = entries.keys().filter(|key| declared.property(key).is_some());
                known.map(|key| Value::String(name_of(declared, key))).collect()
            }
        }
    }

    pub(super) fn first(&self) -> Option<(Value<'a>, Outcome<'a>)> {
        let key = match self {
            Self::Owned(entries) => return entries.first().map(|(key, value)| (key.to_value(), Ok(value.clone()))),
            Self::Json(entries) => Value::String(Text::Borrowed(entries.keys().next()?)),
            Self::Typed(..) => self.keys().into_iter().next()?,
        };
        let value = self.find(&key)?;
        Some((key, value))
    }

    /// Whether `optional.ofNonZeroValue` looks at whether it is empty: upstream's maps of a schema do not say.
    pub(super) const fn is_zeroer(&self) -> bool {
        !matches!(self, Self::Typed(..))
    }

    pub(super) fn without_schema(self) -> Self {
        match self {
            Self::Typed(entries, _) => Self::Json(entries),
            other => other,
        }
    }
}

/// A property's name as expressions write it.
fn name_of<'a>(declared: &DeclType, key: &'a str) -> Text<'a> {
    match declared.shape() {
        Shape::Object(_) => escape(key).map_or(Text::Borrowed(key), |escaped| match escaped {
            std::borrow::Cow::Borrowed(key) => Text::Borrowed(key),
            std::borrow::Cow::Owned(key) => Text::Shared(key.into()),
        }),
        _ => Text::Borrowed(key),
    }
}

fn find_typed<'a>(
    entries: &'a serde_json::Map<String, Json>,
    declared: &'a DeclType,
    key: &str,
) -> Option<Outcome<'a>> {
    let is_object = matches!(declared.shape(), Shape::Object(_));
    let value = if is_object { entries.get(&*unescape(key)?) } else { entries.get(key) }?;
    if is_object && value.is_null() {
        return None;
    }
    let property = if is_object { declared.property(&unescape(key)?) } else { declared.property(key) }?;
    Some(Value::of_type(value, property))
}

/// Numbers of different types are the same key, if they are the same number.
fn find_owned<'a>(entries: &Owned<'a>, key: &Value<'a>) -> Option<Value<'a>> {
    let get = |key: Key<'a>| entries.get(&&key).cloned();
    if let Some(found) = get(Key::of(key)?) {
        return Some(found);
    }
    match key {
        Value::Double(value) => super::convert::lossless_int(*value)
            .and_then(|value| get(Key::Int(value)))
            .or_else(|| super::convert::lossless_uint(*value).and_then(|value| get(Key::Uint(value)))),
        Value::Int(value) => u64::try_from(*value).ok().and_then(|value| get(Key::Uint(value))),
        Value::Uint(value) => i64::try_from(*value).ok().and_then(|value| get(Key::Int(value))),
        _ => None,
    }
}
