//! Selectable fields of a version.

use std::collections::BTreeSet;

use serde_json::Value;

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
        let found = match find(schema, path) {
            Ok(found) => found,
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

/// The schema at a path such as `.spec.colour`, or what is wrong with the path. Upstream: `cel.ValidFieldPath`.
fn find<'a>(schema: &'a Value, path: &str) -> Result<&'a Value, String> {
    let (mut schema, mut rest) = (schema, path);
    while !rest.is_empty() {
        if rest.starts_with('[') {
            return Err("array notation is not allowed".to_owned());
        }
        let Some(after) = rest.strip_prefix('.') else {
            let token = &rest[..rest.find(['.', '[', ']']).unwrap_or(rest.len())];
            let token = if token.is_empty() { "]" } else { token };
            return Err(format!("expected [ or . but got: {token}"));
        };
        if after.is_empty() {
            return Err("unexpected end of JSON path".to_owned());
        }
        // A delimiter stands for a name of its own.
        let end = after.find(['.', '[', ']']).unwrap_or(after.len()).max(1);
        let end = if after.is_char_boundary(end) { end } else { after.len() };
        let (name, after) = after.split_at(end);
        let found = if schema["properties"].is_object() {
            schema["properties"].get(name)
        } else {
            schema.get("additionalProperties").filter(|values| values.is_object())
        };
        schema = found.ok_or("does not refer to a valid field")?;
        rest = after;
    }
    Ok(schema)
}
