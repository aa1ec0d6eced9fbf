//! The order of values: cel-go's `Compare`.

use std::cmp::Ordering;

use super::Value;
use crate::error::EvalError;

/// The order of two values, numbers of different types included. Of types that have none: nothing.
///
/// # Errors
/// The values cannot be compared with each other.
pub(crate) fn compare(left: &Value<'_>, right: &Value<'_>) -> Option<Result<Ordering, EvalError>> {
    Some(Ok(match (left, right) {
        (Value::Bool(one), Value::Bool(other)) => one.cmp(other),
        (Value::Int(one), Value::Int(other)) | (Value::Duration(one), Value::Duration(other)) => one.cmp(other),
        (Value::Uint(one), Value::Uint(other)) => one.cmp(other),
        (Value::Int(one), Value::Uint(other)) => int_and_uint(*one, *other),
        (Value::Uint(one), Value::Int(other)) => int_and_uint(*other, *one).reverse(),
        (Value::Double(one), Value::Double(other)) => return Some(ordered(*one, one.partial_cmp(other))),
        (Value::Double(one), Value::Int(other)) => return Some(ordered(*one, double_and_int(*one, *other))),
        (Value::Int(one), Value::Double(other)) => {
            return Some(ordered(*other, double_and_int(*other, *one).map(Ordering::reverse)));
        }
        (Value::Double(one), Value::Uint(other)) => return Some(ordered(*one, double_and_uint(*one, *other))),
        (Value::Uint(one), Value::Double(other)) => {
            return Some(ordered(*other, double_and_uint(*other, *one).map(Ordering::reverse)));
        }
        (Value::String(one), Value::String(other)) => (**one).cmp(&**other),
        (Value::Bytes(one), Value::Bytes(other)) => one.cmp(other),
        (Value::Timestamp(one), Value::Timestamp(other)) => one.instant().cmp(&other.instant()),
        (left, _) if is_comparable(left) => return Some(Err(EvalError::no_such_overload())),
        _ => return None,
    }))
}

/// Whether values of this type have an order.
pub(crate) const fn is_comparable(value: &Value<'_>) -> bool {
    matches!(
        value,
        Value::Bool(_)
            | Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::String(_)
            | Value::Bytes(_)
            | Value::Duration(_)
            | Value::Timestamp(_)
    )
}

fn ordered(_: f64, order: Option<Ordering>) -> Result<Ordering, EvalError> {
    order.ok_or_else(|| EvalError::new("NaN values cannot be ordered"))
}

pub(super) fn int_and_uint(one: i64, other: u64) -> Ordering {
    u64::try_from(one).map_or(Ordering::Less, |one| one.cmp(&other))
}

/// What is beyond all ints is compared as such, all else as floats.
pub(super) fn double_and_int(one: f64, other: i64) -> Option<Ordering> {
    if one < i64::MIN as f64 {
        return Some(Ordering::Less);
    }
    if one > i64::MAX as f64 {
        return Some(Ordering::Greater);
    }
    one.partial_cmp(&(other as f64))
}

pub(super) fn double_and_uint(one: f64, other: u64) -> Option<Ordering> {
    if one < 0.0 {
        return Some(Ordering::Less);
    }
    if one > u64::MAX as f64 {
        return Some(Ordering::Greater);
    }
    one.partial_cmp(&(other as f64))
}
