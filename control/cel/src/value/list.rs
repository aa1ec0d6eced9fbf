//! Lists: of values, or of JSON with or without a schema.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{Outcome, Value};
use crate::{
    decl::{DeclType, ListKind},
    error::EvalError,
};

/// A list.
#[derive(Debug, Clone)]
pub enum List<'a> {
    /// Values, computed or written out.
    Owned(Arc<Vec<Value<'a>>>),
    /// Elements without a schema.
    Json(&'a [Json]),
    /// Elements of a schema.
    Typed(Typed<'a>),
}

/// A list of a schema: its elements, and what was added to them.
#[derive(Debug, Clone)]
pub struct Typed<'a> {
    pub(super) elements: &'a [Json],
    /// What an expression has added, which makes the whole computed.
    pub(super) computed: Option<Arc<Vec<Value<'a>>>>,
    pub(super) element: &'a DeclType,
    pub(super) kind: &'a ListKind,
}

impl<'a> Typed<'a> {
    pub(crate) const fn kind(&self) -> &'a ListKind {
        self.kind
    }
}

impl<'a> List<'a> {
    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(values) => values.len(),
            Self::Json(elements) => elements.len(),
            Self::Typed(typed) => typed.computed.as_ref().map_or(typed.elements.len(), |values| values.len()),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An element; nothing beyond the end.
    ///
    /// # Errors
    /// An element is not of its schema.
    pub fn get(&self, index: usize) -> Option<Result<Value<'a>, EvalError>> {
        match self {
            Self::Owned(values) => values.get(index).cloned().map(Ok),
            Self::Json(elements) => elements.get(index).map(|element| Ok(Value::from_json(element))),
            Self::Typed(typed) => match &typed.computed {
                Some(values) => values.get(index).cloned().map(Ok),
                None => typed.elements.get(index).map(|element| Value::of_type(element, typed.element)),
            },
        }
    }

    /// All elements.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub(super) fn first(&self) -> Option<Outcome<'a>> {
        self.get(0)
    }

    /// Whether `optional.ofNonZeroValue` looks at whether it is empty: upstream's lists of a schema do not say.
    pub(super) const fn is_zeroer(&self) -> bool {
        !matches!(self, Self::Typed(_))
    }

    pub(super) fn without_schema(self) -> Self {
        match self {
            Self::Typed(Typed { elements, computed: None, .. }) => Self::Json(elements),
            Self::Typed(Typed { computed: Some(values), .. }) => Self::Owned(values),
            other => other,
        }
    }

    /// All elements, if each has a value.
    pub(crate) fn to_vec(&self) -> Result<Vec<Value<'a>>, EvalError> {
        self.iter().collect()
    }

    /// Both lists after each other; of a schema's sets and maps what is alike becomes one.
    pub(super) fn concat(self, other: &Self) -> Result<Self, EvalError> {
        match self {
            Self::Typed(typed) => typed.concat(other).map(Self::Typed),
            one if one.is_empty() => Ok(other.clone()),
            one if other.is_empty() => Ok(one),
            Self::Owned(mut values) => {
                Arc::make_mut(&mut values).extend(other.to_vec()?);
                Ok(Self::Owned(values))
            }
            Self::Json(elements) => {
                let mut values: Vec<_> = elements.iter().map(Value::from_json).collect();
                values.extend(other.to_vec()?);
                Ok(Self::Owned(Arc::new(values)))
            }
        }
    }
}

impl<'a> Typed<'a> {
    fn values(&self) -> Result<Vec<Value<'a>>, EvalError> {
        List::Typed(self.clone()).to_vec()
    }

    /// upstream's `Add` of `unstructuredList`, `unstructuredSetList` and `unstructuredMapList`.
    fn concat(self, other: &List<'a>) -> Result<Self, EvalError> {
        let mut values = self.values()?;
        for value in other.iter() {
            let value = value?;
            let same = match self.kind {
                ListKind::Atomic => None,
                ListKind::Set => values.iter().position(|one| super::equal(one, &value).is_ok_and(|same| same)),
                ListKind::Map(keys) => {
                    let key = key_of(&value, keys);
                    values.iter().position(|one| same_key(&key_of(one, keys), &key))
                }
            };
            match same.and_then(|index| values.get_mut(index)) {
                Some(_) if *self.kind == ListKind::Set => {}
                Some(one) => *one = value,
                None => values.push(value),
            }
        }
        Ok(Self { computed: Some(Arc::new(values)), ..self })
    }
}

/// The values of the keys of an element of a list of type map.
pub(super) fn key_of<'a>(element: &Value<'a>, keys: &[Box<str>]) -> Vec<Option<Value<'a>>> {
    let Value::Map(map) = element else { return vec![None; keys.len()] };
    keys.iter().map(|key| map.raw(key).and_then(Result::ok)).collect()
}

pub(super) fn same_key(one: &[Option<Value<'_>>], other: &[Option<Value<'_>>]) -> bool {
    one.iter().zip(other).all(|pair| match pair {
        (Some(one), Some(other)) => super::equal(one, other).is_ok_and(|same| same),
        (one, other) => one.is_none() && other.is_none(),
    })
}
