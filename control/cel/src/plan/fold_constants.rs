//! What is computed when an expression is planned; cel-go's `decOptimize`.

use std::sync::Arc;

use super::Node;
use crate::{
    error::EvalError,
    value::{Key, Map, OwnedMap, Value},
};

/// A list, which is a constant if all of its elements are.
pub(super) fn list(elements: Vec<(Node, bool)>) -> Result<Node, EvalError> {
    if !elements.iter().all(|(element, _)| matches!(element, Node::Const(_))) {
        return Ok(Node::List(elements.into()));
    }
    let mut values = Vec::with_capacity(elements.len());
    for (element, optional) in elements {
        let Node::Const(value) = element else { continue };
        if optional {
            values.extend(optional_element(value)?);
        } else {
            values.push(value);
        }
    }
    Ok(Node::Const(Value::list(values)))
}

/// A map, which is a constant if all of its keys and values are.
pub(super) fn map(entries: Vec<(Node, Node, bool)>) -> Result<Node, EvalError> {
    let is_const = |node: &Node| matches!(node, Node::Const(_));
    if !entries.iter().all(|(key, value, _)| is_const(key) && is_const(value)) {
        return Ok(Node::Map(entries.into()));
    }
    let mut map = OwnedMap::default();
    for (key, value, optional) in entries {
        let (Node::Const(key), Node::Const(value)) = (key, value) else { continue };
        insert(&mut map, &key, value, optional)?;
    }
    Ok(Node::Const(Value::Map(Map::Owned(Arc::new(map)))))
}

/// The value of an optional element of a list, if it has one.
pub(crate) fn optional_element(value: Value<'_>) -> Result<Option<Value<'_>>, EvalError> {
    match value {
        Value::Optional(value) => Ok(value.map(|value| Value::clone(&value))),
        other => {
            let shown = other.go_print();
            Err(EvalError::new(format!("cannot initialize optional list element from non-optional value {shown}")))
        }
    }
}

/// Adds an entry that is written out; of a key that is there twice the last one counts.
pub(crate) fn insert<'a>(
    map: &mut OwnedMap<'a>,
    key: &Value<'a>,
    value: Value<'a>,
    optional: bool,
) -> Result<(), EvalError> {
    let shown = key.go_print();
    let key = Key::of(key).ok_or_else(|| EvalError::new(format!("unsupported key type: {}", key.type_of().name())))?;
    match value {
        Value::Optional(None) if optional => {
            map.shift_remove(&&key);
        }
        Value::Optional(Some(value)) if optional => {
            map.insert(key, Value::clone(&value));
        }
        other if optional => {
            let value = other.go_print();
            let message = format!("cannot initialize optional entry '{shown}' from non-optional value {value}");
            return Err(EvalError::new(message));
        }
        value => {
            map.insert(key, value);
        }
    }
    Ok(())
}

/// Whether a list holds scalars alone, and then whether it is empty.
pub(super) fn is_set_of_scalars(list: &Value<'_>) -> Option<bool> {
    let Value::List(list) = list else { return None };
    let is_scalar = |value: Value<'_>| {
        matches!(value, Value::Bool(_) | Value::Double(_) | Value::Int(_) | Value::String(_) | Value::Uint(_))
    };
    list.iter().all(|element| element.is_ok_and(is_scalar)).then(|| list.is_empty())
}

/// Functions that are computed of constants.
pub(super) fn is_conversion(function: &str) -> bool {
    matches!(
        function,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
    )
}
