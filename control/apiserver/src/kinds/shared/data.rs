//! The data of ConfigMaps and Secrets. The values of Secrets are never repeated. Pure.

use serde_json::Value;

use crate::apiserver::pipeline::validation::{errors::Errors, names};

/// Upstream's limit on all values of one object.
const MAX_DATA_BYTES: usize = 1024 * 1024;
const IMMUTABLE_DATA: &str = "field is immutable when `immutable` is set";

/// The bytes that a text in base64 stands for.
fn decoded_length(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

/// Refuses keys that no file can have, and more values than an object may hold. `texts` is the field whose values are no
/// base64, if there is one.
pub(crate) fn validate_keys(object: &Value, fields: &[&str], texts: Option<&str>, errors: &mut Errors) {
    let mut total = 0;
    for field in fields {
        for (key, value) in object[*field].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or("");
            total += if Some(*field) == texts { value.len() } else { decoded_length(value) };
            errors.unless(format!("{field}[{key}]"), key, names::config_key(key));
        }
    }
    if total > MAX_DATA_BYTES {
        // Of several fields upstream names none, in its way.
        errors.too_long(if let [field] = fields { field } else { "[]" }, MAX_DATA_BYTES);
    }
}

/// Refuses changes of an immutable object.
pub(crate) fn validate_immutable(new: &Value, old: &Value, errors: &mut Errors) {
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        errors.forbidden("immutable", IMMUTABLE_DATA);
    }
    for field in ["data", "binaryData"] {
        if old[field] != new[field] {
            errors.forbidden(field, IMMUTABLE_DATA);
        }
    }
}
