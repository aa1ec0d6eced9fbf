//! Operators, conversions and functions of the standard: cel-go's `common/stdlib/standard.go`.

use std::cmp::Ordering;

use super::{Native, Row, Style, global, member, no_overload};
use crate::{
    ast::operators,
    cost::Cost,
    error::EvalError,
    types::Type,
    value::{self, List, Outcome, Value},
};

/// An operator that evaluation knows itself.
const fn known(function: &'static str, id: &'static str, signature: &'static str, cost: Cost) -> Row {
    Row::new(function, id, signature, cost, None)
}

const fn single(function: &'static str, id: &'static str, signature: &'static str, cost: Cost, body: Native) -> Row {
    global(function, id, signature, cost, body).style(Style::Single)
}

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    known(operators::CONDITIONAL, "conditional", "bool, A, A -> A", Cost::Conditional),
    known(operators::AND, "logical_and", "bool, bool -> bool", Cost::Logical),
    known(operators::OR, "logical_or", "bool, bool -> bool", Cost::Logical),
    single(operators::NOT, "logical_not", "bool -> bool", Cost::One, not),
    known(operators::NOT_STRICTLY_FALSE, "not_strictly_false", "bool -> bool", Cost::One),
    known(operators::EQUALS, "equals", "A, A -> bool", Cost::Equals),
    known(operators::NOT_EQUALS, "not_equals", "A, A -> bool", Cost::Compared),
    single(operators::ADD, "add_bytes", "bytes, bytes -> bytes", Cost::Added, add),
    single(operators::ADD, "add_double", "double, double -> double", Cost::One, add),
    single(operators::ADD, "add_duration_duration", "duration, duration -> duration", Cost::One, add),
    single(operators::ADD, "add_duration_timestamp", "duration, timestamp -> timestamp", Cost::One, add),
    single(operators::ADD, "add_timestamp_duration", "timestamp, duration -> timestamp", Cost::One, add),
    single(operators::ADD, "add_int64", "int, int -> int", Cost::One, add),
    single(operators::ADD, "add_list", "list(A), list(A) -> list(A)", Cost::AddedList, add),
    single(operators::ADD, "add_string", "string, string -> string", Cost::Added, add),
    single(operators::ADD, "add_uint64", "uint, uint -> uint", Cost::One, add),
    single("_/_", "divide_double", "double, double -> double", Cost::One, divide),
    single("_/_", "divide_int64", "int, int -> int", Cost::One, divide),
    single("_/_", "divide_uint64", "uint, uint -> uint", Cost::One, divide),
    single("_%_", "modulo_int64", "int, int -> int", Cost::One, modulo),
    single("_%_", "modulo_uint64", "uint, uint -> uint", Cost::One, modulo),
    single("_*_", "multiply_double", "double, double -> double", Cost::One, multiply),
    single("_*_", "multiply_int64", "int, int -> int", Cost::One, multiply),
    single("_*_", "multiply_uint64", "uint, uint -> uint", Cost::One, multiply),
    single(operators::NEGATE, "negate_double", "double -> double", Cost::One, negate),
    single(operators::NEGATE, "negate_int64", "int -> int", Cost::One, negate),
    single("_-_", "subtract_double", "double, double -> double", Cost::One, subtract),
    single("_-_", "subtract_duration_duration", "duration, duration -> duration", Cost::One, subtract),
    single("_-_", "subtract_int64", "int, int -> int", Cost::One, subtract),
    single("_-_", "subtract_timestamp_duration", "timestamp, duration -> timestamp", Cost::One, subtract),
    single("_-_", "subtract_timestamp_timestamp", "timestamp, timestamp -> duration", Cost::One, subtract),
    single("_-_", "subtract_uint64", "uint, uint -> uint", Cost::One, subtract),
    known(operators::INDEX, "index_list", "list(A), int -> A", Cost::One),
    known(operators::INDEX, "index_map", "map(A, B), A -> B", Cost::One),
    single(operators::IN, "in_list", "A, list(A) -> bool", Cost::InList, in_aggregate),
    single(operators::IN, "in_map", "A, map(A, B) -> bool", Cost::One, in_aggregate),
    single("size", "size_bytes", "bytes -> int", Cost::One, size),
    single("size", "bytes_size", "bytes -> int", Cost::One, size).member(),
    single("size", "size_list", "list(A) -> int", Cost::One, size),
    single("size", "list_size", "list(A) -> int", Cost::One, size).member(),
    single("size", "size_map", "map(A, B) -> int", Cost::One, size),
    single("size", "map_size", "map(A, B) -> int", Cost::One, size).member(),
    single("size", "size_string", "string -> int", Cost::One, size),
    single("size", "string_size", "string -> int", Cost::One, size).member(),
    member("contains", "contains_string", "string, string -> bool", Cost::Contains, contains).style(Style::Unguarded),
    member("endsWith", "ends_with_string", "string, string -> bool", Cost::Affix, ends_with).style(Style::Unguarded),
    member("startsWith", "starts_with_string", "string, string -> bool", Cost::Affix, starts_with).style(Style::Unguarded),
];

/// Comparisons take all pairs of numbers.
#[rustfmt::skip]
pub(super) const COMPARISONS: &[Row] = &[
    single("_<_", "less_bool", "bool, bool -> bool", Cost::One, less),
    single("_<_", "less_int64", "int, int -> bool", Cost::One, less),
    single("_<_", "less_int64_double", "int, double -> bool", Cost::One, less),
    single("_<_", "less_int64_uint64", "int, uint -> bool", Cost::One, less),
    single("_<_", "less_uint64", "uint, uint -> bool", Cost::One, less),
    single("_<_", "less_uint64_double", "uint, double -> bool", Cost::One, less),
    single("_<_", "less_uint64_int64", "uint, int -> bool", Cost::One, less),
    single("_<_", "less_double", "double, double -> bool", Cost::One, less),
    single("_<_", "less_double_int64", "double, int -> bool", Cost::One, less),
    single("_<_", "less_double_uint64", "double, uint -> bool", Cost::One, less),
    single("_<_", "less_string", "string, string -> bool", Cost::Compared, less),
    single("_<_", "less_bytes", "bytes, bytes -> bool", Cost::Compared, less),
    single("_<_", "less_timestamp", "timestamp, timestamp -> bool", Cost::One, less),
    single("_<_", "less_duration", "duration, duration -> bool", Cost::One, less),
    single("_<=_", "less_equals_bool", "bool, bool -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_int64", "int, int -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_int64_double", "int, double -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_int64_uint64", "int, uint -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_uint64", "uint, uint -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_uint64_double", "uint, double -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_uint64_int64", "uint, int -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_double", "double, double -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_double_int64", "double, int -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_double_uint64", "double, uint -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_string", "string, string -> bool", Cost::Compared, less_equals),
    single("_<=_", "less_equals_bytes", "bytes, bytes -> bool", Cost::Compared, less_equals),
    single("_<=_", "less_equals_timestamp", "timestamp, timestamp -> bool", Cost::One, less_equals),
    single("_<=_", "less_equals_duration", "duration, duration -> bool", Cost::One, less_equals),
    single("_>_", "greater_bool", "bool, bool -> bool", Cost::One, greater),
    single("_>_", "greater_int64", "int, int -> bool", Cost::One, greater),
    single("_>_", "greater_int64_double", "int, double -> bool", Cost::One, greater),
    single("_>_", "greater_int64_uint64", "int, uint -> bool", Cost::One, greater),
    single("_>_", "greater_uint64", "uint, uint -> bool", Cost::One, greater),
    single("_>_", "greater_uint64_double", "uint, double -> bool", Cost::One, greater),
    single("_>_", "greater_uint64_int64", "uint, int -> bool", Cost::One, greater),
    single("_>_", "greater_double", "double, double -> bool", Cost::One, greater),
    single("_>_", "greater_double_int64", "double, int -> bool", Cost::One, greater),
    single("_>_", "greater_double_uint64", "double, uint -> bool", Cost::One, greater),
    single("_>_", "greater_string", "string, string -> bool", Cost::Compared, greater),
    single("_>_", "greater_bytes", "bytes, bytes -> bool", Cost::Compared, greater),
    single("_>_", "greater_timestamp", "timestamp, timestamp -> bool", Cost::One, greater),
    single("_>_", "greater_duration", "duration, duration -> bool", Cost::One, greater),
    single("_>=_", "greater_equals_bool", "bool, bool -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_int64", "int, int -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_int64_double", "int, double -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_int64_uint64", "int, uint -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_uint64", "uint, uint -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_uint64_double", "uint, double -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_uint64_int64", "uint, int -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_double", "double, double -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_double_int64", "double, int -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_double_uint64", "double, uint -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_string", "string, string -> bool", Cost::Compared, greater_equals),
    single("_>=_", "greater_equals_bytes", "bytes, bytes -> bool", Cost::Compared, greater_equals),
    single("_>=_", "greater_equals_timestamp", "timestamp, timestamp -> bool", Cost::One, greater_equals),
    single("_>=_", "greater_equals_duration", "duration, duration -> bool", Cost::One, greater_equals),
];

#[rustfmt::skip]
pub(super) const CONVERSIONS: &[Row] = &[
    single("type", "type", "A -> type(A)", Cost::One, type_of),
    global("bool", "bool_to_bool", "bool -> bool", Cost::One, same),
    global("bool", "string_to_bool", "string -> bool", Cost::One, |args| to(args, &Type::Bool)),
    global("bytes", "bytes_to_bytes", "bytes -> bytes", Cost::One, same),
    global("bytes", "string_to_bytes", "string -> bytes", Cost::StringToBytes, |args| to(args, &Type::Bytes)),
    global("double", "double_to_double", "double -> double", Cost::One, same),
    global("double", "int64_to_double", "int -> double", Cost::One, |args| to(args, &Type::Double)),
    global("double", "string_to_double", "string -> double", Cost::One, |args| to(args, &Type::Double)),
    global("double", "uint64_to_double", "uint -> double", Cost::One, |args| to(args, &Type::Double)),
    global("duration", "duration_to_duration", "duration -> duration", Cost::One, same),
    global("duration", "int64_to_duration", "int -> duration", Cost::One, |args| to(args, &Type::Duration)),
    global("duration", "string_to_duration", "string -> duration", Cost::One, |args| to(args, &Type::Duration)),
    single("dyn", "to_dyn", "A -> dyn", Cost::One, same),
    global("int", "int64_to_int64", "int -> int", Cost::One, same),
    global("int", "double_to_int64", "double -> int", Cost::One, |args| to(args, &Type::Int)),
    global("int", "duration_to_int64", "duration -> int", Cost::One, |args| to(args, &Type::Int)),
    global("int", "string_to_int64", "string -> int", Cost::One, |args| to(args, &Type::Int)),
    global("int", "timestamp_to_int64", "timestamp -> int", Cost::One, |args| to(args, &Type::Int)),
    global("int", "uint64_to_int64", "uint -> int", Cost::One, |args| to(args, &Type::Int)),
    global("string", "string_to_string", "string -> string", Cost::One, same),
    global("string", "bool_to_string", "bool -> string", Cost::One, |args| to(args, &Type::String)),
    global("string", "bytes_to_string", "bytes -> string", Cost::BytesToString, |args| to(args, &Type::String)),
    global("string", "double_to_string", "double -> string", Cost::One, |args| to(args, &Type::String)),
    global("string", "duration_to_string", "duration -> string", Cost::One, |args| to(args, &Type::String)),
    global("string", "int64_to_string", "int -> string", Cost::One, |args| to(args, &Type::String)),
    global("string", "timestamp_to_string", "timestamp -> string", Cost::One, |args| to(args, &Type::String)),
    global("string", "uint64_to_string", "uint -> string", Cost::One, |args| to(args, &Type::String)),
    global("timestamp", "timestamp_to_timestamp", "timestamp -> timestamp", Cost::One, same),
    global("timestamp", "int64_to_timestamp", "int -> timestamp", Cost::One, |args| to(args, &Type::Timestamp)),
    global("timestamp", "string_to_timestamp", "string -> timestamp", Cost::One, |args| to(args, &Type::Timestamp)),
    global("uint", "uint64_to_uint64", "uint -> uint", Cost::One, same),
    global("uint", "double_to_uint64", "double -> uint", Cost::One, |args| to(args, &Type::Uint)),
    global("uint", "int64_to_uint64", "int -> uint", Cost::One, |args| to(args, &Type::Uint)),
    global("uint", "string_to_uint64", "string -> uint", Cost::One, |args| to(args, &Type::Uint)),
];

fn same<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    args.first().cloned().ok_or_else(EvalError::no_such_overload)
}

fn to<'a>(args: &[Value<'a>], wanted: &Type) -> Outcome<'a> {
    value::convert(args.first().ok_or_else(EvalError::no_such_overload)?, wanted)
}

fn type_of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    same(args).map(|value| Value::Type(value.type_of()))
}

fn not<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn pair<'x, 'a>(args: &'x [Value<'a>]) -> Result<(&'x Value<'a>, &'x Value<'a>), EvalError> {
    match args {
        [one, other] => Ok((one, other)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn add<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    pair(args).and_then(|(one, other)| value::add(one.clone(), other))
}

fn subtract<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    pair(args).and_then(|(one, other)| value::subtract(one, other))
}

fn multiply<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    pair(args).and_then(|(one, other)| value::multiply(one, other))
}

fn divide<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    pair(args).and_then(|(one, other)| value::divide(one, other))
}

fn modulo<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    pair(args).and_then(|(one, other)| value::modulo(one, other))
}

fn negate<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    value::negate(args.first().ok_or_else(EvalError::no_such_overload)?)
}

fn compared<'a>(args: &[Value<'a>], operator: &str, fits: fn(Ordering) -> bool) -> Outcome<'a> {
    let (one, other) = pair(args)?;
    match value::compare(one, other) {
        Some(order) => order.map(|order| Value::Bool(fits(order))),
        None => no_overload(operator, Some(one)),
    }
}

fn less<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    compared(args, "_<_", Ordering::is_lt)
}

fn less_equals<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    compared(args, "_<=_", Ordering::is_le)
}

fn greater<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    compared(args, "_>_", Ordering::is_gt)
}

fn greater_equals<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    compared(args, "_>=_", Ordering::is_ge)
}

/// `a in b`.
pub(crate) fn in_aggregate<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (element, aggregate) = pair(args)?;
    match aggregate {
        Value::List(list) => {
            let mut refused = None;
            for other in list.iter() {
                let same = other.and_then(|other| match list {
                    List::Typed(_) => value::equal(&other, element),
                    _ => value::equal(element, &other),
                });
                match same {
                    Ok(true) => return Ok(Value::Bool(true)),
                    Ok(false) => {}
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            // Upstream's lists of a schema say what could not be compared, others do not.
            match (list, refused) {
                (List::Typed(_), Some(error)) => Err(error),
                _ => Ok(Value::Bool(false)),
            }
        }
        Value::Map(map) => match map.find(element) {
            Some(Err(error)) => Err(error),
            found => Ok(Value::Bool(found.is_some())),
        },
        _ => Err(EvalError::no_such_overload()),
    }
}

fn size<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args.first() {
        Some(value @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))) => {
            Ok(Value::Int(i64::try_from(value.size()).unwrap_or(i64::MAX)))
        }
        other => no_overload("size", other),
    }
}

fn texts<'a>(args: &[Value<'a>], holds: fn(&str, &str) -> bool) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(part)] => Ok(Value::Bool(holds(text, part))),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn contains<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    texts(args, |text, part| text.contains(part))
}

fn starts_with<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    texts(args, |text, part| text.starts_with(part))
}

fn ends_with<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    texts(args, |text, part| text.ends_with(part))
}
