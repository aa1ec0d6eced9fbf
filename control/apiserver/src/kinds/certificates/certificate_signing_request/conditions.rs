//! The conditions of a request: what a path may not change of them, and their times. Pure.

use serde_json::{Value, json};

/// The conditions of a kind.
pub(super) fn of_kind<'a>(object: &'a Value, kind: &str) -> Vec<&'a Value> {
    let all = object["status"]["conditions"].as_array();
    all.into_iter().flatten().filter(|condition| condition["type"] == kind).collect()
}

/// Restores the conditions that only `approval` changes, where there are as many as before.
pub(super) fn keep_decisions(object: &mut Value, old: &Value) {
    for kind in ["Approved", "Denied"] {
        let before: Vec<Value> = of_kind(old, kind).into_iter().cloned().collect();
        if of_kind(object, kind).len() != before.len() {
            continue;
        }
        let conditions = object["status"]["conditions"].as_array_mut();
        let own = conditions.into_iter().flatten().filter(|condition| condition["type"] == kind);
        own.zip(before).for_each(|(condition, before)| *condition = before);
    }
}

/// Sets the times of conditions that have none.
pub(super) fn fill_times(object: &mut Value, old: &Value, now: &str) {
    for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
        if !condition.is_object() {
            continue;
        }
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = json!(now);
        }
        if condition["lastTransitionTime"].is_null() {
            let same = |before: &&Value| before["type"] == condition["type"] && before["status"] == condition["status"];
            let before = old["status"]["conditions"].as_array().into_iter().flatten().find(same);
            let since = before.map(|before| before["lastTransitionTime"].clone()).filter(|time| !time.is_null());
            condition["lastTransitionTime"] = since.unwrap_or_else(|| json!(now));
        }
    }
}
