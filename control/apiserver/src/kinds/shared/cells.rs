//! What cells are made of: ages, lists, labels. Pure.

use serde_json::Value;

pub(crate) use crate::apiserver::types::age;

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

pub(crate) fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

pub(crate) fn or_unknown(value: &Value) -> String {
    match text(value) {
        "" => "<unknown>".to_owned(),
        text => text.to_owned(),
    }
}

pub(crate) fn joined(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// `a=b,c=d`.
pub(crate) fn map_of(map: &Value) -> String {
    joined(map.as_object().into_iter().flatten().map(|(k, v)| format!("{k}={}", text(v))))
}

/// The short forms of access modes, as `kubectl` shows them.
pub(crate) fn access_modes(modes: &Value) -> String {
    let short = |mode: &Value| match text(mode) {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    };
    joined(modes.as_array().into_iter().flatten().map(short))
}

/// The phase of a volume or claim, unless it is being deleted.
pub(crate) fn phase(object: &Value) -> &str {
    if object["metadata"]["deletionTimestamp"].is_null() { text(&object["status"]["phase"]) } else { "Terminating" }
}

pub(crate) fn keys(object: &Value, fields: &[&str]) -> usize {
    fields.iter().map(|f| object[*f].as_object().map_or(0, serde_json::Map::len)).sum()
}

/// The first three of several, and how many more there are.
pub(crate) fn first_three(all: &[String]) -> String {
    match all.len() {
        0 => "<none>".to_owned(),
        1..=3 => all.join(","),
        more => format!("{} + {} more...", all[..3].join(","), more - 3),
    }
}

/// As `kubectl` shows a name that is not set.
pub(crate) fn or_unset(name: &Value) -> &str {
    name.as_str().filter(|n| !n.is_empty()).unwrap_or("<unset>")
}
