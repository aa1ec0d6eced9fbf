//! Conditions of a status. Pure; the time is a value.

use serde_json::{Value, json};

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
