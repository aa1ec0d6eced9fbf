//! Selectable fields of a version.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass_apimachinery::schema::structural::field_path;

use crate::apiserver::pipeline::validation::errors::{Errors, text};

/// Upstream's limit.
const MAX_SELECTABLE_FIELDS: usize = 8;

/// Validates the fields by the schema that stands at the same place; `why` refuses them where none does.
pub(super) fn validate(fields: &Value, schema: &Value, here: &str, why: &str, errors: &mut Errors) {
    let Some(fields) = fields.as_array().filter(|fields| !fields.is_empty()) else { return };
    if !schema.is_object() {
        return errors.invalid_text(here, "", why);
    }
    let mut seen = BTreeSet::new();
    for (at, field) in fields.iter().enumerate() {
        let (here, path) = (format!("{here}[{at}].jsonPath"), text(field, "jsonPath"));
        if path.is_empty() {
            errors.required(here, "");
            continue;
        }
        let found = match field_path(path, schema, false) {
            Ok(found) => found.schema.unwrap_or(&Value::Null),
            Err(fault) => {
                errors.invalid_text(here, path, &format!("is an invalid path: {fault}"));
                continue;
            }
        };
        if path == ".metadata" || path.starts_with(".metadata.") {
            errors.invalid_text(here.as_str(), path, "must not point to fields in metadata");
        }
        if !matches!(text(found, "type"), "string" | "boolean" | "integer") {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.invalid_text(here.as_str(), path, why);
        }
        if !seen.insert(path) {
            errors.duplicate(here, &field["jsonPath"]);
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS {
        errors.too_many(here, seen.len(), MAX_SELECTABLE_FIELDS);
    }
}
