//! JSON values as messages of upstream show them: in Go's format `%v`.

use serde_json::Value;

use crate::go_type;

/// A value as Go formats it. The depth is that of a body, which is bounded.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => list(items),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}:{}", text(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}

/// A list as Go formats it.
pub(super) fn list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(" "))
}

/// A value that is not the text which a format expects, as Go says so.
pub(super) fn not_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "%!s(<nil>)".to_owned(),
        other => format!("%!s({}={})", go_type(other), text(other)),
    }
}
