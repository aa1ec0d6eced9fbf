//! Equality: cel-go's `Equal`, and upstream's of lists and objects of a schema.

use std::cmp::Ordering;

use super::{
    List, Map, Opaque, Value, compare,
    list::{Typed, key_of, same_key},
};
use crate::{decl::ListKind, error::EvalError};

/// Whether two values are equal; numbers of different types are if they are the same number.
///
/// # Errors
/// A library's own type refuses to be compared with another one.
pub(crate) fn equal(left: &Value<'_>, right: &Value<'_>) -> Result<bool, EvalError> {
    match (left, right) {
        (Value::Null, Value::Null) => Ok(true),
        (Value::Null, _) | (_, Value::Null) => Ok(false),
        _ => equal_to(left, right),
    }
}

fn equal_to(left: &Value<'_>, right: &Value<'_>) -> Result<bool, EvalError> {
    Ok(match (left, right) {
        (Value::Null, other) => matches!(other, Value::Null),
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::Int(one), Value::Int(other)) | (Value::Duration(one), Value::Duration(other)) => one == other,
        (Value::Uint(one), Value::Uint(other)) => one == other,
        (Value::Double(one), Value::Double(other)) => one == other,
        (Value::Int(one), Value::Uint(other)) | (Value::Uint(other), Value::Int(one)) => {
            compare::int_and_uint(*one, *other) == Ordering::Equal
        }
        (Value::Double(one), Value::Int(other)) | (Value::Int(other), Value::Double(one)) => {
            compare::double_and_int(*one, *other) == Some(Ordering::Equal)
        }
        (Value::Double(one), Value::Uint(other)) | (Value::Uint(other), Value::Double(one)) => {
            compare::double_and_uint(*one, *other) == Some(Ordering::Equal)
        }
        (Value::String(one), Value::String(other)) => one == other,
        (Value::Bytes(one), Value::Bytes(other)) => one == other,
        (Value::Timestamp(one), Value::Timestamp(other)) => one.instant() == other.instant(),
        (Value::Type(one), Value::Type(other)) => one.name() == other.name(),
        (Value::Optional(one), Value::Optional(other)) => match (one, other) {
            (Some(one), Some(other)) => return equal_to(one, other),
            (one, other) => one.is_none() && other.is_none(),
        },
        (Value::List(List::Typed(one)), Value::List(other)) => return typed_lists(one, other),
        (Value::List(List::Typed(_)), _) | (Value::Map(Map::Typed(..)), _) if !matches!(right, Value::Map(_)) => {
            return Err(EvalError::no_such_overload());
        }
        (Value::List(one), Value::List(other)) => {
            one.len() == other.len()
                && one.iter().zip(other.iter()).all(|pair| match pair {
                    // As upstream: elements that cannot be compared do not make lists differ.
                    (Ok(one), Ok(other)) => equal(&one, &other).unwrap_or(true),
                    _ => true,
                })
        }
        (Value::Map(one @ Map::Typed(..)), Value::Map(other)) => return typed_maps(one, other),
        (Value::Map(one), Value::Map(other)) => {
            one.len() == other.len()
                && one.keys().iter().all(|key| match (one.find(key), other.find(key)) {
                    (Some(Ok(one)), Some(Ok(other))) => equal(&one, &other).unwrap_or(true),
                    (_, None) => false,
                    _ => true,
                })
        }
        (Value::Struct(one), Value::Struct(other)) => {
            one.type_name == other.type_name
                && one.fields.len() == other.fields.len()
                && one.fields.iter().all(|(name, value)| {
                    let found = other.fields.iter().find(|(other, _)| name == other);
                    found.is_some_and(|(_, other)| equal(value, other).is_ok_and(|same| same))
                })
        }
        (Value::Opaque(one), other) => return opaque(one, other),
        (Value::Unknown(one), Value::Unknown(other)) => one == other,
        _ => false,
    })
}

fn opaque(one: &Opaque<'_>, other: &Value<'_>) -> Result<bool, EvalError> {
    match other {
        Value::Opaque(other) => one.equal(other),
        _ => None,
    }
    .ok_or_else(EvalError::no_such_overload)
}

/// upstream's `Equal` of `unstructuredList`, and of those of type set and map, whose order does not count.
fn typed_lists(one: &Typed<'_>, other: &List<'_>) -> Result<bool, EvalError> {
    let this = List::Typed(one.clone());
    if this.len() != other.len() {
        return Ok(false);
    }
    match one.kind {
        ListKind::Atomic => {
            for (one, other) in this.iter().zip(other.iter()) {
                if !equal_to(&one?, &other?)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        ListKind::Set => {
            let elements = this.to_vec()?;
            for other in other.iter() {
                let other = other?;
                if !elements.iter().any(|one| equal(one, &other).is_ok_and(|same| same)) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        ListKind::Map(keys) => {
            let elements: Vec<_> = this.to_vec()?.into_iter().map(|one| (key_of(&one, keys), one)).collect();
            for other in other.iter() {
                let other = other?;
                let key = key_of(&other, keys);
                // Of several elements with one key the last one counts.
                let found = elements.iter().rev().find(|(one, _)| same_key(one, &key));
                let Some((_, one)) = found else { return Ok(false) };
                if !equal_to(one, &other)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

/// upstream's `Equal` of `unstructuredMap`.
fn typed_maps(one: &Map<'_>, other: &Map<'_>) -> Result<bool, EvalError> {
    if one.len() != other.len() {
        return Ok(false);
    }
    for key in one.keys() {
        match (one.find(&key), other.find(&key)) {
            (Some(one), Some(other)) => {
                if !equal_to(&one?, &other?)? {
                    return Ok(false);
                }
            }
            (None, None) => {}
            _ => return Ok(false),
        }
    }
    undeclared(one, other)
}

/// What the schema does not declare is compared as JSON, where both have it.
fn undeclared(one: &Map<'_>, other: &Map<'_>) -> Result<bool, EvalError> {
    let Map::Typed(entries, declared) = one else { return Ok(true) };
    for (key, value) in entries.iter().filter(|(key, _)| declared.property(key).is_none()) {
        let Map::Typed(others, _) = other else { return Err(EvalError::no_such_overload()) };
        if others.get(key).is_some_and(|other| other != value) {
            return Ok(false);
        }
    }
    Ok(true)
}
