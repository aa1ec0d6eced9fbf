//! The data of ConfigMaps and Secrets. The values of Secrets are never repeated. Pure.

use serde_json::Value;

use crate::apiserver::validation::{errors::Errors, names};

/// Upstream's limit on all values of one object.
const MAX_DATA_BYTES: usize = 1024 * 1024;
const IMMUTABLE_DATA: &str = "field is immutable when `immutable` is set";

pub(crate) fn validate_keys(object: &Value, fields: &[&str], errors: &mut Errors) {
    let mut total = 0;
    for field in fields {
        for (key, value) in object[*field].as_object().into_iter().flatten() {
            let length = value.as_str().map_or(0, str::len);
            // What is base64 counts as what it stands for.
            total += if *field == "data" && fields.len() > 1 { length } else { length / 4 * 3 };
            errors.unless(format!("{field}[{key}]"), key, names::config_key(key));
        }
    }
    if total > MAX_DATA_BYTES {
        errors.too_long(if fields.len() > 1 { "" } else { "data" }, MAX_DATA_BYTES);
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
