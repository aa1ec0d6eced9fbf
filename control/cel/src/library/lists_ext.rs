//! Lists: cel-go's `ext/lists.go`, version 3.

use super::{Native, Row, Style, global, member, no_overload};
use crate::{
    ast::operators,
    cost::Cost,
    error::EvalError,
    value::{self, List, Outcome, Value},
};

/// Longer ranges would take gigabytes; upstream only stops when memory ends.
const MAX_RANGE: i64 = 10_000_000;

const fn sort_of(id: &'static str, signature: &'static str, cost: Cost) -> Row {
    member("sort", id, signature, cost, sort as Native).style(Style::Single)
}

const fn sort_by_of(id: &'static str, signature: &'static str, cost: Cost) -> Row {
    member(operators::SORT_BY, id, signature, cost, sort_by as Native).style(Style::Single)
}

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    member("slice", "list_slice", "list(T), int, int -> list(T)", Cost::Slice, slice),
    member("flatten", "list_flatten", "list(list(T)) -> list(T)", Cost::Flatten, flatten).style(Style::Unguarded),
    member("flatten", "list_flatten_int", "list(dyn), int -> list(dyn)", Cost::Flatten, flatten).style(Style::Unguarded),
    sort_of("list_int_sort", "list(int) -> list(int)", Cost::Sort),
    sort_of("list_uint_sort", "list(uint) -> list(uint)", Cost::Sort),
    sort_of("list_double_sort", "list(double) -> list(double)", Cost::Sort),
    sort_of("list_bool_sort", "list(bool) -> list(bool)", Cost::Sort),
    sort_of("list_google.protobuf.Duration_sort", "list(duration) -> list(duration)", Cost::Sort),
    sort_of("list_google.protobuf.Timestamp_sort", "list(timestamp) -> list(timestamp)", Cost::Sort),
    sort_of("list_string_sort", "list(string) -> list(string)", Cost::SortTexts),
    sort_of("list_bytes_sort", "list(bytes) -> list(bytes)", Cost::SortTexts),
    sort_by_of("list_int_sortByAssociatedKeys", "list(T), list(int) -> list(T)", Cost::Sort),
    sort_by_of("list_uint_sortByAssociatedKeys", "list(T), list(uint) -> list(T)", Cost::Sort),
    sort_by_of("list_double_sortByAssociatedKeys", "list(T), list(double) -> list(T)", Cost::Sort),
    sort_by_of("list_bool_sortByAssociatedKeys", "list(T), list(bool) -> list(T)", Cost::Sort),
    sort_by_of("list_google.protobuf.Duration_sortByAssociatedKeys", "list(T), list(duration) -> list(T)", Cost::Sort),
    sort_by_of("list_google.protobuf.Timestamp_sortByAssociatedKeys", "list(T), list(timestamp) -> list(T)", Cost::Sort),
    sort_by_of("list_string_sortByAssociatedKeys", "list(T), list(string) -> list(T)", Cost::SortTexts),
    sort_by_of("list_bytes_sortByAssociatedKeys", "list(T), list(bytes) -> list(T)", Cost::SortTexts),
    global("lists.range", "lists_range", "int -> list(int)", Cost::Range, range),
    member("reverse", "list_reverse", "list(T) -> list(T)", Cost::Reverse, reverse),
    member("distinct", "list_distinct", "list(T) -> list(T)", Cost::Distinct, distinct),
];

fn the_list<'x, 'a>(args: &'x [Value<'a>]) -> Result<&'x List<'a>, EvalError> {
    match args.first() {
        Some(Value::List(list)) => Ok(list),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn slice<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return Err(EvalError::no_such_overload());
    };
    let refused = |why: String| Err(EvalError::new(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(until)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return refused("negative indexes not supported".to_owned());
    };
    if from > until {
        return refused("start index must be less than or equal to end index".to_owned());
    }
    if list.len() < until {
        return refused(format!("list is length {}", list.len()));
    }
    (from..until).filter_map(|index| list.get(index)).collect::<Result<_, _>>().map(Value::list)
}

fn flatten<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let depth = match args {
        [Value::List(_)] => 1,
        [Value::List(_), Value::Int(depth)] => *depth,
        _ => {
            let types: Vec<_> = args.iter().map(|arg| arg.type_of().to_string()).collect();
            let (receiver, rest) = types.split_first().ok_or_else(EvalError::no_such_overload)?;
            return Err(EvalError::new(format!("no such overload: {receiver}.flatten({})", rest.join(", "))));
        }
    };
    if depth < 0 {
        return Err(EvalError::new("level must be non-negative"));
    }
    let mut flat = Vec::new();
    flatten_into(the_list(args)?, depth, &mut flat)?;
    Ok(Value::list(flat))
}

/// Values nest no deeper than the objects and expressions that they are of.
fn flatten_into<'a>(list: &List<'a>, depth: i64, flat: &mut Vec<Value<'a>>) -> Result<(), EvalError> {
    for element in list.iter() {
        match element? {
            Value::List(nested) if depth > 0 => flatten_into(&nested, depth - 1, flat)?,
            element => flat.push(element),
        }
    }
    Ok(())
}

fn sort<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args.first() {
        Some(Value::List(list)) => sorted(list, list),
        other => no_overload("sort", other),
    }
}

fn sort_by<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::List(list), Value::List(keys)] => sorted(list, keys),
        _ => no_overload(operators::SORT_BY, args.first()),
    }
}

fn sorted<'a>(list: &List<'a>, keys: &List<'a>) -> Outcome<'a> {
    let Some(first) = keys.get(0) else { return Ok(Value::List(list.clone())) };
    let first = first?;
    if value::compare(&first, &first).is_none() {
        return Err(EvalError::new("list elements must be comparable"));
    }
    let keys = keys.to_vec()?;
    if keys.iter().any(|key| key.type_of() != first.type_of()) {
        return Err(EvalError::new("list elements must have the same type"));
    }
    let mut pairs: Vec<_> = keys.into_iter().zip(list.to_vec()?).collect();
    pairs.sort_by(|(one, _), (other, _)| {
        value::compare(one, other).and_then(Result::ok).unwrap_or(std::cmp::Ordering::Equal)
    });
    Ok(Value::list(pairs.into_iter().map(|(_, element)| element).collect()))
}

fn range<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(end)] if *end <= MAX_RANGE => Ok(Value::list((0..*end).map(Value::Int).collect())),
        [Value::Int(_)] => Err(EvalError::new(format!("lists.range: at most {MAX_RANGE} elements"))),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn reverse<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let mut elements = the_list(args)?.to_vec()?;
    elements.reverse();
    Ok(Value::list(elements))
}

fn distinct<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let list = the_list(args)?;
    if list.is_empty() {
        return Ok(Value::List(list.clone()));
    }
    let mut unique: Vec<Value<'a>> = Vec::new();
    for element in list.iter() {
        let element = element?;
        if !unique.iter().any(|other| value::equal(&element, other).is_ok_and(|same| same)) {
            unique.push(element);
        }
    }
    Ok(Value::list(unique))
}
