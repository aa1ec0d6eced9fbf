//! `+`, `-`, `*`, `/`, `%` and the sign, which refuse what overflows: cel-go's `common/types/overflow.go`.

use std::sync::Arc;

use super::{Outcome, Text, Value};
use crate::error::EvalError;

const INT: &str = "integer overflow";
const UINT: &str = "unsigned integer overflow";

fn int<'a>(result: Option<i64>) -> Outcome<'a> {
    result.map(Value::Int).ok_or_else(|| EvalError::new(INT))
}

fn uint<'a>(result: Option<u64>) -> Outcome<'a> {
    result.map(Value::Uint).ok_or_else(|| EvalError::new(UINT))
}

fn duration<'a>(result: Option<i64>) -> Outcome<'a> {
    result.map(Value::Duration).ok_or_else(|| EvalError::new(INT))
}

/// Why an operator does not take its operands: what has no such operator at all is named in the error.
fn no_overload(left: &Value<'_>, operator: &str, takes: fn(&Value<'_>) -> bool) -> EvalError {
    // Texts, timestamps and durations answer for themselves, without the name.
    let answers = matches!(left, Value::String(_) | Value::Timestamp(_) | Value::Duration(_));
    if takes(left) || answers {
        EvalError::no_such_overload()
    } else {
        EvalError::new(format!("no such overload: {operator}"))
    }
}

/// `left + right`.
pub(crate) fn add<'a>(left: Value<'a>, right: &Value<'a>) -> Outcome<'a> {
    match (left, right) {
        (Value::Int(one), Value::Int(other)) => int(one.checked_add(*other)),
        (Value::Uint(one), Value::Uint(other)) => uint(one.checked_add(*other)),
        (Value::Double(one), Value::Double(other)) => Ok(Value::Double(one + other)),
        (Value::String(one), Value::String(other)) => {
            let mut text = String::with_capacity(one.len() + other.len());
            text.push_str(&one);
            text.push_str(other);
            Ok(Value::String(Text::Shared(text.into())))
        }
        (Value::Bytes(one), Value::Bytes(other)) => {
            Ok(Value::Bytes(one.iter().chain(other.iter()).copied().collect::<Arc<[u8]>>()))
        }
        (Value::List(one), Value::List(other)) => one.concat(other).map(Value::List),
        (Value::Duration(one), Value::Duration(other)) => duration(one.checked_add(*other)),
        (Value::Timestamp(at), Value::Duration(nanos)) => at.plus(*nanos).map(Value::Timestamp),
        (Value::Duration(nanos), Value::Timestamp(at)) => at.plus(nanos).map(Value::Timestamp),
        (left, _) => Err(no_overload(&left, "_+_", |left| {
            matches!(left, Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Bytes(_) | Value::List(_))
        })),
    }
}

/// `left - right`.
pub(crate) fn subtract<'a>(left: &Value<'a>, right: &Value<'a>) -> Outcome<'a> {
    match (left, right) {
        (Value::Int(one), Value::Int(other)) => int(one.checked_sub(*other)),
        (Value::Uint(one), Value::Uint(other)) => uint(one.checked_sub(*other)),
        (Value::Double(one), Value::Double(other)) => Ok(Value::Double(one - other)),
        (Value::Duration(one), Value::Duration(other)) => duration(one.checked_sub(*other)),
        (Value::Timestamp(at), Value::Duration(nanos)) => {
            let back = nanos.checked_neg().ok_or_else(|| EvalError::new(INT))?;
            at.plus(back).map(Value::Timestamp)
        }
        (Value::Timestamp(one), Value::Timestamp(other)) => one.since(*other).map(Value::Duration),
        _ => Err(no_overload(left, "_-_", |left| matches!(left, Value::Int(_) | Value::Uint(_) | Value::Double(_)))),
    }
}

/// `left * right`.
pub(crate) fn multiply<'a>(left: &Value<'a>, right: &Value<'a>) -> Outcome<'a> {
    match (left, right) {
        (Value::Int(one), Value::Int(other)) => int(one.checked_mul(*other)),
        (Value::Uint(one), Value::Uint(other)) => uint(one.checked_mul(*other)),
        (Value::Double(one), Value::Double(other)) => Ok(Value::Double(one * other)),
        _ => Err(no_overload(left, "_*_", |left| matches!(left, Value::Int(_) | Value::Uint(_) | Value::Double(_)))),
    }
}

/// `left / right`.
pub(crate) fn divide<'a>(left: &Value<'a>, right: &Value<'a>) -> Outcome<'a> {
    match (left, right) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => Err(EvalError::new("division by zero")),
        (Value::Int(one), Value::Int(other)) => int(one.checked_div(*other)),
        (Value::Uint(one), Value::Uint(other)) => uint(one.checked_div(*other)),
        (Value::Double(one), Value::Double(other)) => Ok(Value::Double(one / other)),
        _ => Err(no_overload(left, "_/_", |left| matches!(left, Value::Int(_) | Value::Uint(_) | Value::Double(_)))),
    }
}

/// `left % right`.
pub(crate) fn modulo<'a>(left: &Value<'a>, right: &Value<'a>) -> Outcome<'a> {
    match (left, right) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => Err(EvalError::new("modulus by zero")),
        (Value::Int(one), Value::Int(other)) => int(one.checked_rem(*other)),
        (Value::Uint(one), Value::Uint(other)) => uint(one.checked_rem(*other)),
        _ => Err(no_overload(left, "_%_", |left| matches!(left, Value::Int(_) | Value::Uint(_)))),
    }
}

/// `-operand`.
pub(crate) fn negate<'a>(operand: &Value<'a>) -> Outcome<'a> {
    match operand {
        Value::Int(value) => int(value.checked_neg()),
        Value::Double(value) => Ok(Value::Double(-value)),
        Value::Duration(nanos) => duration(nanos.checked_neg()),
        Value::Bool(_) => Err(EvalError::no_such_overload()),
        other => Err(no_overload(other, "-_", |_| false)),
    }
}
