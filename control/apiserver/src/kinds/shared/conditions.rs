//! Conditions of a status. Pure; the time is a value.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::field::Field;
use crate::apiserver::pipeline::validation::{errors::Errors, names};

/// A condition by its type.
pub(crate) fn get<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Whether a condition is true.
pub(crate) fn is_true(object: &Value, kind: &str) -> bool {
    get(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Sets a condition; its transition time changes with its status alone.
pub(crate) fn set(object: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    let since = match get(object, kind) {
        Some(before) if before["status"] == status => before["lastTransitionTime"].clone(),
        _ => json!(now),
    };
    let condition =
        json!({"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message});
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let conditions = &mut object["status"]["conditions"];
    match conditions.as_array_mut() {
        Some(all) => match all.iter_mut().find(|one| one["type"] == kind) {
            Some(one) => *one = condition,
            None => all.push(condition),
        },
        None => *conditions = json!([condition]),
    }
}

const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
const MAX_REASON_BYTES: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

fn reason(text: &str) -> Option<String> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"_,:".contains(&b);
    let good =
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(fine) && !text.ends_with([',', ':']);
    (!good).then(|| REASON.to_owned())
}

/// Validates conditions of the common type (`meta/v1.Condition`).
pub(crate) fn validate(conditions: &Field<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        if !seen.insert(condition.at("type").text()) {
            condition.at("type").duplicate(errors);
        }
        condition.at("type").fits(names::qualified, errors);
        condition.at("status").one_of(&["False", "True", "Unknown"], errors);
        if condition.at("observedGeneration").number().is_some_and(|generation| generation < 0) {
            condition.at("observedGeneration").invalid("must be greater than or equal to zero", errors);
        }
        if !condition.at("lastTransitionTime").is_set() {
            condition.at("lastTransitionTime").required("", errors);
        }
        condition.at("reason").named(reason, errors);
        condition.at("reason").max_bytes(MAX_REASON_BYTES, errors);
        condition.at("message").max_bytes(MAX_MESSAGE_BYTES, errors);
    }
}

/// Removes a condition.
pub(crate) fn remove(object: &mut Value, kind: &str) {
    if let Some(all) = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        all.retain(|condition| condition["type"] != kind);
    }
}
