//! Sets the defaults that a schema declares.

use serde_json::Value;

use super::{Kind, Schema};
use crate::MAX_DEPTH;

/// Sets the declared defaults of absent fields, and of null where it is no value, in everything that is present: nothing is
/// made inside of what is absent.
///
/// For custom resources. Defaults of built-in types are declared for documentation; their kinds set them themselves.
pub fn default(schema: &Schema, value: &mut Value) {
    walk(schema, value, 0);
}

fn walk(schema: &Schema, value: &mut Value, depth: usize) {
    // Inside of Go's types nothing is defaulted by schema.
    if depth > MAX_DEPTH || matches!(schema.kind, Kind::Named(_)) {
        return;
    }
    match (&schema.kind, value) {
        (Kind::Object(object), Value::Object(fields)) => {
            for (name, property) in &object.properties {
                let schema = &property.schema;
                if let Some(default) = &schema.default
                    && fields.get(&**name).is_none_or(|value| value.is_null() && !schema.nullable)
                {
                    fields.insert(name.to_string(), Value::clone(default));
                }
                if let Some(value) = fields.get_mut(&**name) {
                    walk(schema, value, depth + 1);
                }
            }
        }
        (Kind::Map(values), Value::Object(fields)) => {
            fields.values_mut().for_each(|value| element(values, value, depth + 1));
        }
        (Kind::List(items), Value::Array(values)) => {
            values.iter_mut().for_each(|value| element(items, value, depth + 1));
        }
        _ => {}
    }
}

/// An item of a list or a value of a map: null is replaced where it is no value.
fn element(schema: &Schema, value: &mut Value, depth: usize) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = Value::clone(default);
    }
    walk(schema, value, depth);
}
