//! Lists as sets: cel-go's `ext/sets.go`.

use super::{Row, global, in_aggregate};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{List, Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("sets.contains", "list_sets_contains_list", "list(T), list(T) -> bool", Cost::Sets, contains),
    global("sets.equivalent", "list_sets_equivalent_list", "list(T), list(T) -> bool", Cost::SetsTwice, equivalent),
    global("sets.intersects", "list_sets_intersects_list", "list(T), list(T) -> bool", Cost::Sets, intersects),
];

fn lists<'x, 'a>(args: &'x [Value<'a>]) -> Result<(&'x List<'a>, &'x List<'a>), EvalError> {
    match args {
        [Value::List(one), Value::List(other)] => Ok((one, other)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn is_in<'a>(element: Outcome<'a>, list: &List<'a>) -> Result<bool, EvalError> {
    in_aggregate(&[element?, Value::List(list.clone())]).map(|found| matches!(found, Value::Bool(true)))
}

fn all_in<'a>(elements: &List<'a>, list: &List<'a>) -> Result<bool, EvalError> {
    for element in elements.iter() {
        if !is_in(element, list)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contains<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (list, part) = lists(args)?;
    all_in(part, list).map(Value::Bool)
}

fn equivalent<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (one, other) = lists(args)?;
    Ok(Value::Bool(all_in(other, one)? && all_in(one, other)?))
}

fn intersects<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let (one, other) = lists(args)?;
    Ok(Value::Bool(one.iter().any(|element| is_in(element, other).unwrap_or(false))))
}
