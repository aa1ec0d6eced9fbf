//! What a custom resource has where its Scale looks: numbers of replicas and a selector (upstream: `ValidateScaleSpec` and
//! `ValidateScaleStatus`). Pure.

use serde_json::Value;
use windlass_apimachinery::go_type;

use crate::apiserver::{
    pipeline::validation::errors::{Cause, Errors},
    types::ScalePaths,
};

/// Validates the observed number and the selector.
pub(super) fn of_status(object: &Value, paths: &ScalePaths, errors: &mut Errors) {
    replicas(object, &paths.status_replicas, errors);
    let Some(path) = &paths.selector else { return };
    let found = at(object, path).and_then(|found| match found {
        Some(value) if !value.is_string() => Err(mismatch(path, value, "string")),
        _ => Ok(()),
    });
    if let Err(why) = found {
        errors.invalid_text(path.as_str(), "", &why);
    }
}

/// Validates a number of replicas.
pub(super) fn replicas(object: &Value, path: &str, errors: &mut Errors) {
    let found = at(object, path).and_then(|found| match found {
        Some(value) => value.as_i64().ok_or_else(|| mismatch(path, value, "int64")),
        None => Ok(0),
    });
    let mut invalid =
        |number: i64, why: &str| errors.push(path, Cause::Invalid, format!("Invalid value: {number}: {why}"));
    match found {
        Err(why) => invalid(0, &why),
        Ok(number) if number < 0 => invalid(number, "should be a non-negative integer"),
        Ok(number) if number > i64::from(i32::MAX) => {
            invalid(number, &format!("should be less than or equal to {}", i32::MAX));
        }
        Ok(_) => {}
    }
}

/// What stands at a path; nothing where a part of it is missing.
fn at<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut value = object;
    let mut walked = String::new();
    for field in path.trim_start_matches('.').split('.') {
        walked.push('.');
        walked.push_str(field);
        match value {
            Value::Null => return Ok(None),
            Value::Object(fields) => match fields.get(field) {
                Some(inner) => value = inner,
                None => return Ok(None),
            },
            other => return Err(mismatch(&walked, other, "map[string]interface{}")),
        }
    }
    Ok(Some(value))
}

/// A value of another type than is wanted, in the words of Go's accessor.
fn mismatch(path: &str, value: &Value, wanted: &str) -> String {
    let of = go_type(value);
    format!("{path} accessor error: {} is of the type {of}, expected {wanted}", printed(value))
}

/// A value as Go prints it.
fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(printed).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key}:{}", printed(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}
