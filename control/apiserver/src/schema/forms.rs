//! Forms of objects for tests: with everything written out, and with each field in turn.

use serde_json::{Value, json};
use windlass_apimachinery::schema::{Kind, Presence, Schema};

/// Every value that is empty and that upstream's types would leave out, written out: what a client of another language
/// may send.
pub(crate) fn written_out(schema: &Schema, value: &Value) -> Value {
    let mut value = value.clone();
    write_out(schema, &mut value);
    value
}

/// A pointer to each field of a kind, as deep as lists and maps of one item go, with a value that it can hold.
pub(crate) fn pointers(schema: &Schema) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    point(schema, "", 0, &mut found);
    found
}

fn zero(schema: &Schema) -> Value {
    match &schema.resolved().kind {
        Kind::Any | Kind::Json | Kind::RawExtension | Kind::FieldsV1 | Kind::Union(_) => Value::Null,
        Kind::String | Kind::Bytes => json!(""),
        Kind::Integer(_) | Kind::Number | Kind::IntOrString => json!(0),
        Kind::Bool => json!(false),
        Kind::Quantity => json!("0"),
        Kind::Duration => json!("0s"),
        Kind::Time | Kind::MicroTime => json!("0001-01-01T00:00:00Z"),
        Kind::List(_) => json!([]),
        Kind::Map(_) | Kind::Object(_) | Kind::Named(_) => json!({}),
    }
}

fn write_out(schema: &Schema, value: &mut Value) {
    match (&schema.resolved().kind, value) {
        (Kind::List(items), Value::Array(values)) => values.iter_mut().for_each(|value| write_out(items, value)),
        (Kind::Map(values), Value::Object(fields)) => {
            fields.values_mut().for_each(|value| write_out(values, value));
        }
        (Kind::Object(object), Value::Object(fields)) => {
            for (key, property) in &object.properties {
                if !fields.contains_key(&**key) && property.presence != Presence::Pointer {
                    let empty = match &property.schema.kind {
                        Kind::Time | Kind::MicroTime => Value::Null,
                        // Go writes a nil slice as null; an empty list is another value, owned by its writer.
                        Kind::List(_) if property.presence == Presence::Always => Value::Null,
                        _ => zero(&property.schema),
                    };
                    fields.insert(key.to_string(), empty);
                }
                if let Some(value) = fields.get_mut(&**key) {
                    write_out(&property.schema, value);
                }
            }
        }
        _ => {}
    }
}

fn point(schema: &Schema, path: &str, depth: usize, found: &mut Vec<(String, Value)>) {
    const MAX_DEPTH: usize = 9;
    let fitting = match &schema.resolved().kind {
        Kind::Time => "2020-01-01T00:00:00.5+02:00".into(),
        Kind::MicroTime => "2020-01-01T00:00:00.123456789Z".into(),
        Kind::Bytes => "eA==".into(),
        Kind::String => "a".into(),
        Kind::Bool => true.into(),
        Kind::Integer(_) | Kind::Number | Kind::IntOrString => 1.into(),
        Kind::Quantity => "1024Mi".into(),
        _ => zero(schema),
    };
    found.push((path.to_owned(), fitting));
    if depth == MAX_DEPTH {
        return;
    }
    match &schema.resolved().kind {
        Kind::List(items) => point(items, &format!("{path}/0"), depth + 1, found),
        Kind::Map(values) => point(values, &format!("{path}/a"), depth + 1, found),
        Kind::Object(object) => {
            for (key, property) in &object.properties {
                point(&property.schema, &format!("{path}/{key}"), depth + 1, found);
            }
        }
        _ => {}
    }
}
