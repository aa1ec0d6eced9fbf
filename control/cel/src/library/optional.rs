//! Optional values: cel-go's `cel/library.go`, version 2. `or` and `orValue` do not look at their argument unless they need
//! it, and so are known to evaluation, as are `.?` and `[?`.

use super::{Row, global, member};
use crate::{
    ast::operators,
    cost::Cost,
    error::EvalError,
    value::{Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("optional.of", "optional_of", "V -> optional(V)", Cost::One, of),
    global("optional.ofNonZeroValue", "optional_ofNonZeroValue", "V -> optional(V)", Cost::One, of_non_zero),
    global("optional.none", "optional_none", "-> optional(V)", Cost::One, none),
    member("value", "optional_value", "optional(V) -> V", Cost::One, value),
    member("hasValue", "optional_hasValue", "optional(V) -> bool", Cost::One, has_value),
    Row::new("or", "optional_or_optional", "optional(V), optional(V) -> optional(V)", Cost::One, None).member(),
    Row::new("orValue", "optional_orValue_value", "optional(V), V -> V", Cost::One, None).member(),
    Row::new(operators::OPT_SELECT, "select_optional_field", "dyn, string -> optional(V)", Cost::One, None),
    Row::new(operators::OPT_INDEX, "list_optindex_optional_int", "list(V), int -> optional(V)", Cost::One, None),
    Row::new(operators::OPT_INDEX, "optional_list_optindex_optional_int", "optional(list(V)), int -> optional(V)", Cost::One, None),
    Row::new(operators::OPT_INDEX, "map_optindex_optional_value", "map(K, V), K -> optional(V)", Cost::One, None),
    Row::new(operators::OPT_INDEX, "optional_map_optindex_optional_value", "optional(map(K, V)), K -> optional(V)", Cost::One, None),
    Row::new(operators::INDEX, "optional_list_index_int", "optional(list(V)), int -> optional(V)", Cost::One, None),
    Row::new(operators::INDEX, "optional_map_index_value", "optional(map(K, V)), K -> optional(V)", Cost::One, None),
    member("last", "list_last", "list(V) -> optional(V)", Cost::One, last),
    member("first", "list_first", "list(V) -> optional(V)", Cost::One, first),
    global("optional.unwrap", "optional_unwrap", "list(optional(V)) -> list(V)", Cost::One, unwrap),
    member("unwrapOpt", "optional_unwrapOpt", "list(optional(V)) -> list(V)", Cost::One, unwrap),
    // What macros of two variables become; known to evaluation, which adds to a map in place.
    Row::new(operators::MAP_INSERT, "@mapInsert_map_key_value", "map(K, V), K, V -> map(K, V)", Cost::One, None),
    Row::new(operators::MAP_INSERT, "@mapInsert_map_map", "map(K, V), map(K, V) -> map(K, V)", Cost::One, None),
];

fn only<'x, 'a>(args: &'x [Value<'a>]) -> Result<&'x Value<'a>, EvalError> {
    args.first().ok_or_else(EvalError::no_such_overload)
}

fn of<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    only(args).cloned().map(Value::some)
}

fn of_non_zero<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let value = only(args)?;
    Ok(if value.is_zero() { Value::none() } else { Value::some(value.clone()) })
}

fn none<'a>(_: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::none())
}

fn value<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match only(args)? {
        Value::Optional(Some(value)) => Ok(Value::clone(value)),
        Value::Optional(None) => Err(EvalError::new("optional.none() dereference")),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn has_value<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match only(args)? {
        Value::Optional(value) => Ok(Value::Bool(value.is_some())),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn element<'a>(args: &[Value<'a>], index: fn(usize) -> usize) -> Outcome<'a> {
    let Value::List(list) = only(args)? else { return Err(EvalError::no_such_overload()) };
    list.get(index(list.len())).transpose().map(|value| value.map_or_else(Value::none, Value::some))
}

fn first<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    element(args, |_| 0)
}

fn last<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    element(args, |length| length.saturating_sub(1))
}

fn unwrap<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let Value::List(list) = only(args)? else { return Err(EvalError::no_such_overload()) };
    let mut unwrapped = Vec::new();
    for element in list.iter() {
        match element? {
            Value::Optional(Some(value)) => unwrapped.push(Value::clone(&value)),
            Value::Optional(None) => {}
            other => return Err(EvalError::new(format!("value {} is not optional", other.go_print()))),
        }
    }
    Ok(Value::list(unwrapped))
}
