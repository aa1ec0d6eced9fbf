//! What an update changes. A check lists what it does not care about, and covers every other change: an overlooked
//! field is then checked, too. Pure.

use serde_json::Value;

/// What the server itself sets.
const OF_THE_SERVER: [&str; 2] = ["/metadata/managedFields", "/metadata/resourceVersion"];

/// Whether an update changes these fields at most, named by JSON pointers.
pub(super) fn only_changes(old: &Value, new: &Value, free: &[&str]) -> bool {
    let rest = |object: &Value| {
        let mut rest = object.clone();
        for pointer in free.iter().chain(&OF_THE_SERVER) {
            let Some((parent, field)) = pointer.rsplit_once('/') else { continue };
            if let Some(fields) = rest.pointer_mut(parent).and_then(Value::as_object_mut) {
                fields.remove(field);
            }
        }
        rest
    };
    is_same(&rest(old), &rest(new))
}

/// Whether two values mean the same: what is empty is as good as absent (upstream: `equality.Semantic`).
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let in_other = |key: &String| other.get(key).unwrap_or(&Value::Null);
            one.iter().all(|(key, value)| is_same(value, in_other(key)))
                && other.iter().filter(|(key, _)| !one.contains_key(*key)).all(|(_, value)| is_empty(value))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        _ => one == other || is_empty(one) && is_empty(other),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_counts_that_is_not_free() {
        let free = &["/metadata/finalizers", "/status/capacity"];
        let old =
            json!({"metadata": {"name": "a", "labels": {}, "resourceVersion": "1"}, "status": {"phase": "Bound"}});
        for (new, only) in [
            (json!({"metadata": {"name": "a", "resourceVersion": "2"}, "status": {"phase": "Bound"}}), true),
            (
                json!({"metadata": {"name": "a", "finalizers": ["x/y"]}, "status": {"phase": "Bound", "capacity": 1}}),
                true,
            ),
            (
                json!({"metadata": {"name": "a"}, "status": {"phase": "Bound"}, "spec": {"list": [], "more": {"x": null}}}),
                true,
            ),
            (json!({"metadata": {"name": "a", "labels": {"a": "b"}}, "status": {"phase": "Bound"}}), false),
            (json!({"metadata": {"name": "a"}, "status": {"phase": "Lost"}}), false),
            (json!({"metadata": {"name": "a"}}), false),
            (json!({"metadata": {"name": "a"}, "status": {"phase": "Bound"}, "new": 0}), false),
        ] {
            assert_eq!(only_changes(&old, &new, free), only, "{new}");
            assert_eq!(only_changes(&new, &old, free), only, "{new}");
        }
    }
}
