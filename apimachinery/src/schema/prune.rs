//! Removes what a type does not know, by the rules of structural schemas.

use serde_json::Value;

use super::{Kind, Schema};
use crate::MAX_DEPTH;

/// Removes fields that the schema does not name. Those of an object that preserves unknown fields stay with everything
/// inside; named fields within are still pruned. Values of the wrong type stay: they are refused elsewhere.
pub fn prune(schema: &Schema, value: &mut Value) {
    walk(schema, value, 0);
}

fn walk(schema: &Schema, value: &mut Value, depth: usize) {
    let schema = schema.resolved();
    if depth > MAX_DEPTH {
        // Nothing that was decoded is as deep.
        *value = Value::Null;
        return;
    }
    match value {
        Value::Array(items) => {
            let inside = schema.items().or_else(|| schema.alternative(&Value::Array(Vec::new()))?.items());
            match inside {
                Some(inside) => items.iter_mut().for_each(|item| walk(inside, item, depth + 1)),
                None if schema.preserve_unknown_fields => {}
                None => items.iter_mut().for_each(|item| walk(&UNKNOWN, item, depth + 1)),
            }
        }
        Value::Object(fields) => {
            let schema = match &schema.kind {
                Kind::Union(_) => {
                    schema.alternative(&Value::Object(serde_json::Map::new())).unwrap_or(schema).resolved()
                }
                _ => schema,
            };
            fields.retain(|key, value| match schema.field(key) {
                Some(field) => {
                    walk(field, value, depth + 1);
                    true
                }
                None => schema.preserve_unknown_fields,
            });
        }
        _ => {}
    }
}

/// What is below a value that the schema does not describe.
static UNKNOWN: Schema = Schema::new(Kind::Any);
