//! The canonical forms of objects, as a typed decoder would produce them: the stored form and the form for comparison.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    Kind, Object, Presence, Property, Schema,
    prune::prune,
    scalars::{self, ZERO_TIME, matches_kind, zero},
};
use crate::MAX_DEPTH;

/// Converts an object to the form that upstream's types produce by decoding and encoding it: unknown fields and omitted
/// empty values are removed, quantities and times are canonical. Of a custom resource only the metadata is a Go type: from
/// the rest, unknown fields and nulls that mean nothing are removed.
pub fn canonicalize(schema: &Schema, value: &mut Value) {
    normalize(schema, value, &mut Form { compared: false, typed: false, depth: 0 });
}

/// [`canonicalize`]s what is of Go's types: of a custom object its metadata and that of objects embedded in it.
pub fn canonicalize_types(schema: &Schema, value: &mut Value) {
    canonicalize_typed_parts(schema, value, 0);
}

fn canonicalize_typed_parts(schema: &Schema, value: &mut Value, depth: usize) {
    match (&schema.kind, value) {
        _ if depth > MAX_DEPTH => {}
        (Kind::Named(_), value) => canonicalize(schema, value),
        (Kind::List(items), Value::Array(values)) => {
            values.iter_mut().for_each(|value| canonicalize_typed_parts(items, value, depth + 1));
        }
        (Kind::Object(_) | Kind::Map(_), Value::Object(fields)) => {
            for (key, value) in fields.iter_mut() {
                if let Some(field) = schema.field(key) {
                    canonicalize_typed_parts(field, value, depth + 1);
                }
            }
        }
        _ => {}
    }
}

/// The form in which equal objects have equal values; most stored ones have it.
#[must_use]
pub fn canonical<'a>(schema: &Schema, value: &'a Value) -> Cow<'a, Value> {
    let form = Form { compared: true, typed: false, depth: 0 };
    if is_compared(schema, value, form) { Cow::Borrowed(value) } else { Cow::Owned(compared(schema, value, form)) }
}

/// Whether [`compared`] would change nothing.
fn is_compared(schema: &Schema, value: &Value, mut form: Form) -> bool {
    if form.depth > MAX_DEPTH {
        return false;
    }
    form.depth += 1;
    form.typed |= matches!(schema.kind, Kind::Named(_));
    let schema = schema.resolved();
    match (&schema.kind, value) {
        (Kind::Object(object), Value::Object(fields)) => fields.iter().all(|(name, value)| {
            let Some(property) = object.properties.get(name.as_str()) else {
                return object.additional.is_none() && schema.preserve_unknown_fields;
            };
            !value.is_null()
                && is_compared(&property.schema, value, form)
                && !is_omitted(&property.schema, property.presence, value, true)
        }),
        (Kind::Map(values), Value::Object(fields)) => {
            fields.values().all(|value| !value.is_null() && is_compared(values, value, form))
        }
        (Kind::List(items), Value::Array(values)) => {
            values.iter().all(|value| !value.is_null() && is_compared(items, value, form))
        }
        // What is inside is pruned, or kept as it is.
        (_, Value::Object(_) | Value::Array(_)) => {
            schema.preserve_unknown_fields && !matches!(schema.kind, Kind::Union(_))
        }
        (kind, value) if form.typed => scalars::is_canonical(kind, value, true),
        _ => false,
    }
}

/// Whether two objects are equal to upstream's types: `null`, `[]`, `{}` and absent are equal, and so are absent and
/// `false`, 0 or `""` in non-pointer fields. Copies nothing but what differs.
#[must_use]
pub fn same(schema: &Schema, one: &Value, other: &Value) -> bool {
    is_same(schema, one, other, Form { compared: true, typed: false, depth: 0 })
}

/// Whether two objects are equal as [`same`] has it, but for some of their fields.
#[must_use]
pub fn same_except(schema: &Schema, except: &[&str], one: &Value, other: &Value) -> bool {
    let form = Form { compared: true, typed: matches!(schema.kind, Kind::Named(_)), depth: 1 };
    match (&schema.resolved().kind, one, other) {
        (Kind::Object(object), Value::Object(one), Value::Object(other)) => {
            are_fields_same(schema.resolved(), object, one, other, (form, except))
        }
        _ => same(schema, one, other),
    }
}

fn compared(schema: &Schema, value: &Value, mut form: Form) -> Value {
    let mut value = value.clone();
    normalize(schema, &mut value, &mut form);
    value
}

fn is_same(schema: &Schema, one: &Value, other: &Value, mut form: Form) -> bool {
    if one == other {
        return true;
    }
    let (use_of_type, outer) = (schema, form);
    if let Kind::Named(of) = &schema.kind {
        form.typed = true;
        if let (Kind::Object(object), Value::Object(one), Value::Object(other)) = (&of.definition().kind, one, other)
            && form.depth < MAX_DEPTH
        {
            form.depth += 1;
            return are_fields_same(of.definition(), object, one, other, (form, &[]));
        }
    }
    match (&schema.resolved().kind, one, other) {
        (Kind::List(items), Value::Array(one), Value::Array(other)) if form.depth < MAX_DEPTH => {
            form.depth += 1;
            // An item that is null is the zero value of its type.
            let is_same = |(one, other): (&Value, &Value)| match one.is_null() || other.is_null() {
                true => compared_element(items, one, form) == compared_element(items, other, form),
                false => is_same(items, one, other, form),
            };
            one.len() == other.len() && one.iter().zip(other).all(is_same)
        }
        _ => compared(use_of_type, one, outer) == compared(use_of_type, other, outer),
    }
}

/// Whether the fields of two structs are the same.
fn are_fields_same(
    schema: &Schema,
    object: &Object,
    one: &Map<String, Value>,
    other: &Map<String, Value>,
    (form, except): (Form, &[&str]),
) -> bool {
    // Fields that the type does not have are pruned, unless they are kept whole or have a type too.
    if schema.preserve_unknown_fields || object.additional.is_some() {
        let whole = |fields: &Map<String, Value>| {
            let mut fields = fields.clone();
            fields.retain(|name, _| !except.contains(&name.as_str()));
            normalize_fields(schema, object, &mut fields, &mut form.clone());
            fields
        };
        return whole(one) == whole(other);
    }
    let is_same = |name: &str, property: &Property| {
        let [one, other] = [one, other].map(|fields| fields.get(name).filter(|value| !value.is_null()));
        match (one, other) {
            (None, None) => true,
            (Some(one), Some(other)) if one == other => true,
            (Some(one @ Value::Object(_)), Some(other @ Value::Object(_)))
            | (Some(one @ Value::Array(_)), Some(other @ Value::Array(_))) => {
                is_same(&property.schema, one, other, form)
            }
            _ => {
                let field = |value: Option<&Value>| {
                    let value = compared(&property.schema, value?, form);
                    (!is_omitted(&property.schema, property.presence, &value, true)).then_some(value)
                };
                field(one) == field(other)
            }
        }
    };
    let of_one = one.keys().map(String::as_str);
    let of_other = other.keys().map(String::as_str).filter(|name| !one.contains_key(*name));
    let is_same = |name| object.properties.get(name).is_none_or(|property| is_same(name, property));
    of_one.chain(of_other).filter(|name| !except.contains(name)).all(is_same)
}

fn compared_element(schema: &Schema, value: &Value, mut form: Form) -> Value {
    let mut value = value.clone();
    element(schema, &mut value, &mut form);
    value
}

/// Removes fields of Go's types that cannot be decoded, and returns their paths. For objects of versions that validated
/// less.
pub fn drop_invalid_fields(schema: &Schema, value: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    drop_invalid(schema, value, "", &mut dropped, Inside { typed: false, depth: 0 });
    dropped
}

/// A field as Go writes it that nobody has set: `None` where the type leaves it out. Lists, maps and times that are always
/// written are `null` then, which means the same as nothing, and are left out here.
#[must_use]
pub fn unset(schema: &Schema, field: &str) -> Option<Value> {
    let property = schema.property(field).filter(|property| property.presence == Presence::Always)?;
    let schema = property.schema.resolved();
    match &schema.kind {
        // One of Go's structs never has itself as a value, so that this ends.
        Kind::Object(object) => {
            let fields = object.properties.keys();
            Some(Value::Object(fields.filter_map(|name| Some((name.to_string(), unset(schema, name)?))).collect()))
        }
        Kind::List(_) | Kind::Map(_) => None,
        _ => Some(zero(schema)).filter(|zero| !zero.is_null()),
    }
}

/// What a walk produces.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// Without any zero value that equals an absent field; otherwise as upstream's encoder writes it, without adding
    /// fields that it always writes.
    compared: bool,
    /// Whether the walk is inside one of Go's types.
    typed: bool,
    depth: usize,
}

fn normalize(schema: &Schema, value: &mut Value, form: &mut Form) {
    if form.depth > MAX_DEPTH {
        // Nothing that was decoded is as deep.
        *value = Value::Null;
        return;
    }
    let outer = *form;
    form.depth += 1;
    let schema = match &schema.kind {
        Kind::Named(of) => {
            form.typed = true;
            of.definition()
        }
        _ => schema,
    };
    match (&schema.kind, value) {
        (Kind::List(items), Value::Array(values)) => values.iter_mut().for_each(|value| element(items, value, form)),
        (Kind::Map(values), Value::Object(fields)) => {
            fields.values_mut().for_each(|value| element(values, value, form));
            if !form.typed && !values.nullable && values.default.is_none() {
                fields.retain(|_, value| !value.is_null());
            }
        }
        (Kind::Object(object), Value::Object(fields)) => normalize_fields(schema, object, fields, form),
        (Kind::Union(_), value) => match schema.alternative(value) {
            Some(alternative) => normalize(alternative, value, form),
            None => prune(schema, value),
        },
        // Of another type than it should be, or of any.
        (_, value @ (Value::Object(_) | Value::Array(_))) => prune(schema, value),
        (kind, value) if form.typed => scalars::canonicalize(kind, value, form.compared),
        (Kind::Integer(_), value) => scalars::canonicalize_integer(value),
        _ => {}
    }
    *form = outer;
}

fn normalize_fields(schema: &Schema, object: &Object, fields: &mut Map<String, Value>, form: &mut Form) {
    let mut is_kept = |key: &str, value: &mut Value| {
        let Some(property) = object.properties.get(key) else {
            if let Some(additional) = &object.additional {
                prune(additional, value);
                return true;
            }
            return schema.preserve_unknown_fields;
        };
        if value.is_null() {
            let schema = &property.schema;
            return !form.typed && (schema.nullable || schema.default.is_some());
        }
        normalize(&property.schema, value, form);
        !is_omitted(&property.schema, property.presence, value, form.compared)
    };
    // Nearly always nothing is to be removed, and a walk that may remove takes longer.
    let omitted = fields.iter_mut().filter_map(|(key, value)| (!is_kept(key, value)).then(|| key.clone()));
    for key in omitted.collect::<Vec<_>>() {
        fields.remove(&key);
    }
    if form.typed && !form.compared {
        for (key, property) in &object.properties {
            if property.required && matches!(property.schema.kind, Kind::Time | Kind::MicroTime) {
                fields.entry(&**key).or_insert_with(|| ZERO_TIME.into());
            }
        }
    }
}

/// An item of a list or map, where Go's types make the zero value of null.
fn element(schema: &Schema, value: &mut Value, form: &mut Form) {
    if value.is_null() && (form.typed || matches!(schema.kind, Kind::Named(_))) {
        *value = zero(schema);
    }
    normalize(schema, value, form);
}

/// Whether a field with this value is omitted.
fn is_omitted(schema: &Schema, presence: Presence, value: &Value, compared: bool) -> bool {
    if presence == Presence::Pointer {
        return false;
    }
    let kind = &schema.resolved().kind;
    let empty = match value {
        Value::Null => true,
        // Somebody else's object, of which Go keeps the text: an empty one is not nothing.
        _ if matches!(kind, Kind::Json | Kind::RawExtension) => return false,
        Value::Array(items) => return items.is_empty() && (compared || presence == Presence::Value),
        Value::Object(fields) if matches!(kind, Kind::Map(_)) => {
            return fields.is_empty() && (compared || presence == Presence::Value);
        }
        Value::Object(fields) => return fields.is_empty() && compared,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => match kind {
            Kind::Quantity => text == "0",
            Kind::Duration => text == "0s",
            // Upstream writes `null`, which means the same as nothing.
            Kind::Time | Kind::MicroTime => return text.starts_with("0001-01-01T00:00:00"),
            _ => text.is_empty(),
        },
    };
    empty && (compared || presence == Presence::Value)
}

/// Where a walk is.
#[derive(Debug, Clone, Copy)]
struct Inside {
    typed: bool,
    depth: usize,
}

fn drop_invalid(schema: &Schema, value: &mut Value, path: &str, dropped: &mut Vec<String>, inside: Inside) {
    if inside.depth > MAX_DEPTH {
        return;
    }
    let typed = inside.typed || matches!(schema.kind, Kind::Named(_));
    let below = Inside { typed, depth: inside.depth + 1 };
    let mut keep = |schema: &Schema, value: &mut Value, path: &str| {
        let typed = typed || matches!(schema.kind, Kind::Named(_));
        if typed && !value.is_null() && !matches_kind(schema, value) {
            dropped.push(path.to_owned());
            return false;
        }
        drop_invalid(schema, value, path, dropped, below);
        true
    };
    match (&schema.resolved().kind, value) {
        (Kind::List(items), Value::Array(values)) => {
            let mut at = 0;
            values.retain_mut(|value| {
                let path = format!("{path}[{at}]");
                at += 1;
                keep(items, value, &path)
            });
        }
        (Kind::Map(values), Value::Object(fields)) => {
            fields.retain(|key, value| keep(values, value, &format!("{path}[{key}]")));
        }
        (Kind::Object(object), Value::Object(fields)) => fields.retain(|key, value| {
            let Some(property) = object.properties.get(key.as_str()) else { return true };
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            keep(&property.schema, value, &path)
        }),
        _ => {}
    }
}
