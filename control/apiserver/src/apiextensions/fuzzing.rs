//! Properties of what reads the columns of custom resources, for fuzzers.

use serde_json::Value;

use super::columns::Path;

/// A path of a printer column is read or refused, and what it finds in an object is within the object. `text` has the path in its
/// first line, and the object behind it.
///
/// # Panics
/// When that does not hold.
pub fn printer_columns(text: &str) {
    let (path, object) = text.split_once('\n').unwrap_or((text, "{}"));
    let Some(path) = Path::parse(path) else { return };
    let object: Value = serde_json::from_str(object).unwrap_or_default();
    let Some(found) = path.first(&object) else { return };
    assert!(is_within(&object, found), "{found} is not in {object}");
}

fn is_within(whole: &Value, part: &Value) -> bool {
    std::ptr::eq(whole, part)
        || match whole {
            Value::Array(items) => items.iter().any(|item| is_within(item, part)),
            Value::Object(fields) => fields.values().any(|field| is_within(field, part)),
            _ => false,
        }
}
