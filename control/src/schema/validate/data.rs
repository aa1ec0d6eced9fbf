//! ConfigMaps and Secrets. The values of Secrets are never repeated.

use serde_json::Value;

use super::{
    errors::{Errors, text},
    names,
};

/// Upstream's limit on all values of one object.
const MAX_DATA_BYTES: usize = 1024 * 1024;
const IMMUTABLE_DATA: &str = "field is immutable when `immutable` is set";

pub(super) fn config_map(object: &Value, errors: &mut Errors) {
    keys(object, &["data", "binaryData"], errors);
    for (key, _) in object["binaryData"].as_object().into_iter().flatten() {
        if object["data"].get(key).is_some() {
            errors.invalid_text(format!("binaryData[{key}]"), key, "duplicate of key present in data");
        }
    }
}

pub(super) fn secret(object: &Value, errors: &mut Errors) {
    keys(object, &["data"], errors);
    let required: &[&str] = match text(object, "type") {
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/basic-auth" => {
            if object["data"].get("username").is_none() && object["data"].get("password").is_none() {
                errors.required("data[username]", "");
                errors.required("data[password]", "");
            }
            &[]
        }
        "kubernetes.io/service-account-token" => {
            if text(&object["metadata"]["annotations"], "kubernetes.io/service-account.name").is_empty() {
                errors.required("metadata.annotations[kubernetes.io/service-account.name]", "");
            }
            &[]
        }
        _ => &[],
    };
    for key in required {
        if object["data"].get(key).is_none() {
            errors.required(format!("data[{key}]"), "");
        }
    }
}

fn keys(object: &Value, fields: &[&str], errors: &mut Errors) {
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

pub(super) fn immutable(new: &Value, old: &Value, errors: &mut Errors) {
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
