//! Takes out of the API's objects what may be a secret, whatever kind they are of. Pure.

use serde_json::{Value, json};

const WITHHELD: &str = "(withheld)";

/// Values of environments, words of commands, headers, annotations (which repeat whole manifests), data, and the last
/// words of containers. What stays is their shape: names, keys and counts.
pub(super) fn withhold(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(withhold),
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                match key.as_str() {
                    "env" | "httpHeaders" => hide_values(field),
                    "command" | "args" => hide_words(field),
                    "annotations" | "data" | "stringData" | "binaryData" => hide_each(field),
                    "terminated" => {
                        hide_message(field);
                        withhold(field);
                    }
                    _ => withhold(field),
                }
            }
        }
        _ => {}
    }
}

/// Of a list of names with values; a reference to another object is no secret.
fn hide_values(list: &mut Value) {
    for entry in list.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if entry.contains_key("value") {
            entry.insert("value".to_owned(), json!(WITHHELD));
        }
    }
}

fn hide_words(words: &mut Value) {
    if let Some(count) = words.as_array().map(Vec::len) {
        *words = json!([format!("({count} words withheld)")]);
    }
}

fn hide_each(map: &mut Value) {
    for (_, value) in map.as_object_mut().into_iter().flatten() {
        *value = json!(WITHHELD);
    }
}

fn hide_message(state: &mut Value) {
    if let Some(message) = state.get_mut("message") {
        *message = json!(WITHHELD);
    }
}
