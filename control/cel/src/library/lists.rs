//! Lists as Kubernetes extends them: upstream's `library/lists.go`.

use std::cmp::Ordering;

use super::{Row, member};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{self, List, Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    member("isSorted", "list_int_is_sorted_bool", "list(int) -> bool", Cost::Scan, is_sorted),
    member("isSorted", "list_uint_is_sorted_bool", "list(uint) -> bool", Cost::Scan, is_sorted),
    member("isSorted", "list_double_is_sorted_bool", "list(double) -> bool", Cost::Scan, is_sorted),
    member("isSorted", "list_bool_is_sorted_bool", "list(bool) -> bool", Cost::Scan, is_sorted),
    member("isSorted", "list_duration_is_sorted_bool", "list(duration) -> bool", Cost::Scan, is_sorted),
    member("isSorted", "list_timestamp_is_sorted_bool", "list(timestamp) -> bool", Cost::Scan, is_sorted),
    member("isSorted", "list_string_is_sorted_bool", "list(string) -> bool", Cost::Scan, is_sorted),
    member("isSorted", "list_bytes_is_sorted_bool", "list(bytes) -> bool", Cost::Scan, is_sorted),
    member("sum", "list_int_sum_int", "list(int) -> int", Cost::Scan, |args| sum(args, Value::Int(0))),
    member("sum", "list_uint_sum_uint", "list(uint) -> uint", Cost::Scan, |args| sum(args, Value::Uint(0))),
    member("sum", "list_double_sum_double", "list(double) -> double", Cost::Scan, |args| sum(args, Value::Double(0.0))),
    member("sum", "list_duration_sum_duration", "list(duration) -> duration", Cost::Scan, |args| sum(args, Value::Duration(0))),
    member("max", "list_int_max_int", "list(int) -> int", Cost::Scan, max),
    member("max", "list_uint_max_uint", "list(uint) -> uint", Cost::Scan, max),
    member("max", "list_double_max_double", "list(double) -> double", Cost::Scan, max),
    member("max", "list_bool_max_bool", "list(bool) -> bool", Cost::Scan, max),
    member("max", "list_duration_max_duration", "list(duration) -> duration", Cost::Scan, max),
    member("max", "list_timestamp_max_timestamp", "list(timestamp) -> timestamp", Cost::Scan, max),
    member("max", "list_string_max_string", "list(string) -> string", Cost::Scan, max),
    member("max", "list_bytes_max_bytes", "list(bytes) -> bytes", Cost::Scan, max),
    member("min", "list_int_min_int", "list(int) -> int", Cost::Scan, min),
    member("min", "list_uint_min_uint", "list(uint) -> uint", Cost::Scan, min),
    member("min", "list_double_min_double", "list(double) -> double", Cost::Scan, min),
    member("min", "list_bool_min_bool", "list(bool) -> bool", Cost::Scan, min),
    member("min", "list_duration_min_duration", "list(duration) -> duration", Cost::Scan, min),
    member("min", "list_timestamp_min_timestamp", "list(timestamp) -> timestamp", Cost::Scan, min),
    member("min", "list_string_min_string", "list(string) -> string", Cost::Scan, min),
    member("min", "list_bytes_min_bytes", "list(bytes) -> bytes", Cost::Scan, min),
    member("indexOf", "list_a_index_of_int", "list(A), A -> int", Cost::Scan, index_of),
    member("lastIndexOf", "list_a_last_index_of_int", "list(A), A -> int", Cost::Scan, last_index_of),
];

fn the_list<'x, 'a>(args: &'x [Value<'a>]) -> Result<&'x List<'a>, EvalError> {
    match args.first() {
        Some(Value::List(list)) => Ok(list),
        _ => Err(EvalError::no_such_overload()),
    }
}

/// The order of two elements; nothing if they cannot be compared, which upstream takes for any other order.
fn order(one: &Value<'_>, other: &Value<'_>) -> Option<Ordering> {
    value::compare(one, other)?.ok()
}

fn is_sorted<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let mut before = None;
    for element in the_list(args)?.iter() {
        let element = element?;
        if value::compare(&element, &element).is_none() {
            return Err(EvalError::no_such_overload());
        }
        if before.as_ref().is_some_and(|before| order(before, &element) == Some(Ordering::Greater)) {
            return Ok(Value::Bool(false));
        }
        before = Some(element);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(args: &[Value<'a>], zero: Value<'a>) -> Outcome<'a> {
    the_list(args)?.iter().try_fold(zero, |sum, element| value::add(sum, &element?))
}

fn extreme<'a>(args: &[Value<'a>], name: &str, replace_if: Ordering) -> Outcome<'a> {
    let mut found: Option<Value<'a>> = None;
    for element in the_list(args)?.iter() {
        let element = element?;
        if value::compare(&element, &element).is_none() {
            return Err(EvalError::no_such_overload());
        }
        if found.as_ref().is_none_or(|found| order(found, &element) == Some(replace_if)) {
            found = Some(element);
        }
    }
    found.ok_or_else(|| EvalError::new(format!("{name} called on empty list")))
}

fn max<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    extreme(args, "max", Ordering::Less)
}

fn min<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    extreme(args, "min", Ordering::Greater)
}

fn positions<'a>(args: &[Value<'a>]) -> Result<Vec<bool>, EvalError> {
    let [Value::List(list), wanted] = args else { return Err(EvalError::no_such_overload()) };
    let same = |element: Outcome<'a>| element.and_then(|element| value::equal(&element, wanted)).unwrap_or(false);
    Ok(list.iter().map(same).collect())
}

fn index<'a>(found: Option<usize>) -> Outcome<'a> {
    Ok(Value::Int(found.map_or(-1, |at| i64::try_from(at).unwrap_or(i64::MAX))))
}

fn index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    index(positions(args)?.iter().position(|same| *same))
}

fn last_index_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    index(positions(args)?.iter().rposition(|same| *same))
}
