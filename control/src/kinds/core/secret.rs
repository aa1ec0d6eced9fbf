//! Secret. Its values are never repeated in errors. Pure.

use base64::Engine as _;
use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        types::{Definition, Resource, VersionSpec},
        validation::errors::{Errors, text},
    },
    kinds::{
        shared::{
            cells, data,
            tables::{AGE, column, count, named},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let resource = Resource::new("", "secrets", "Secret", Secret);
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Secret"));
    v1.selectable = vec![SelectableField::path("type")];
    let columns = vec![column("Type", "What it holds."), count("Data", "Number of keys."), AGE];
    v1.table =
        named(columns, |object, age| vec![object["type"].clone(), json!(cells::keys(object, &["data"])), json!(age)]);
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct Secret;

impl Strategy for Secret {
    fn default(&self, object: &mut Map<String, Value>) {
        set(object, "type", json!("Opaque"));
        if let Some(Value::Object(texts)) = object.remove("stringData") {
            let data = child(object, "data");
            for (key, text) in texts {
                let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or(""));
                data.insert(key, Value::String(encoded));
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        data::validate_keys(object, &["data"], errors);
        validate_type(object, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        data::validate_immutable(new, old, errors);
        if old["type"] != new["type"] {
            errors.invalid("type", &new["type"], "field is immutable");
        }
    }
}

/// The keys that a type of Secret must have.
fn validate_type(object: &Value, errors: &mut Errors) {
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
