//! Order and equality of JSON values as field paths need them: numbers compare by what they are worth, not by how they
//! are written. Upstream: `structured-merge-diff/value`.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Whether two values are the same; `1` and `1.0` are.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b) == Ordering::Equal,
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((ka, a), (kb, b))| ka == kb && equal(a, b))
        }
        _ => a == b,
    }
}

/// Orders values: numbers, strings, booleans, lists, maps, null.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            compare_each(a.iter().zip(b).map(|(a, b)| compare(a, b)), a.len(), b.len())
        }
        (Value::Object(a), Value::Object(b)) => {
            let each = a.iter().zip(b).map(|((ka, a), (kb, b))| ka.cmp(kb).then_with(|| compare(a, b)));
            compare_each(each, a.len(), b.len())
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// The order of two lists from that of their items: the first difference, else the length.
pub(super) fn compare_each(mut each: impl Iterator<Item = Ordering>, a: usize, b: usize) -> Ordering {
    each.find(|order| order.is_ne()).unwrap_or_else(|| a.cmp(&b))
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
    }
}
