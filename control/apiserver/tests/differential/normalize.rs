//! Normalizes responses: removes what two API servers may write differently without a difference in meaning.

use std::net::Ipv4Addr;

use serde_json::{Map, Value};

/// A difference of two responses; `None` means missing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// A JSON pointer.
    pub(crate) at: String,
    pub(crate) real: Option<Value>,
    pub(crate) ours: Option<Value>,
}

/// A response without the values that each server generates: uids, times and revisions.
pub(crate) fn normalize(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(key, _)| !matches!(key.as_str(), "resourceVersion" | "continue"))
                .map(|(key, value)| match key.as_str() {
                    "managedFields" => (key.clone(), managers(normalize(value))),
                    "causes" => (key.clone(), conflicts(normalize(value))),
                    "cells" => (key.clone(), ages(normalize(value))),
                    // Field sets have uids in their keys.
                    _ => (blanked(key), normalize(value)),
                })
                .collect::<Map<_, _>>(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(normalize).collect()),
        Value::String(text) => Value::String(blanked(text)),
        other => other.clone(),
    }
}

/// Managed fields in the order of the managers: the servers' is that of the times, in seconds.
fn managers(mut entries: Value) -> Value {
    if let Some(entries) = entries.as_array_mut() {
        entries.sort_by_key(|entry| {
            ["operation", "manager", "apiVersion", "subresource"]
                .map(|field| entry[field].as_str().unwrap_or("").to_owned())
        });
    }
    entries
}

/// Cells without ages: one server is asked a moment after the other.
fn ages(mut cells: Value) -> Value {
    let is_age = |cell: &str| {
        cell.split_inclusive(['s', 'm', 'h'])
            .all(|part| part.len() > 1 && part[..part.len() - 1].bytes().all(|byte| byte.is_ascii_digit()))
            && cell.ends_with(['s', 'm', 'h'])
    };
    for cell in cells.as_array_mut().into_iter().flatten() {
        if cell.as_str().is_some_and(is_age) {
            *cell = "an age".into();
        }
    }
    cells
}

/// Conflicts in the order of their managers and fields: upstream's have none. Other causes keep their order.
fn conflicts(mut causes: Value) -> Value {
    if let Some(causes) = causes.as_array_mut()
        && causes.iter().all(|cause| cause["reason"] == "FieldManagerConflict")
    {
        causes.sort_by_key(Value::to_string);
    }
    causes
}

/// A text without what servers draw: addresses of Services, names of the volumes with a pod's token, uids and times.
fn blanked(text: &str) -> String {
    const TOKEN_VOLUME: &str = "kube-api-access-";
    if text.parse().is_ok_and(is_drawn) {
        return "an address of the range".to_owned();
    }
    match text.strip_prefix(TOKEN_VOLUME) {
        Some(drawn) if drawn.len() == 5 => format!("{TOKEN_VOLUME}xxxxx"),
        _ => without_uids_and_times(text),
    }
}

/// Whether an address is one that a Service gets without asking for it: of 10.96.0.0/16, above the part for those that ask.
fn is_drawn(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    (first, second) == (10, 96) && third > 0
}

/// Replaces the digits of uids and times by zeros in a text. The format stays: times with and without fractions differ.
fn without_uids_and_times(text: &str) -> String {
    const UID: &str = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    const TIME: &str = "dddd-dd-ddTdd:dd:dd";
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(rest) = text.get(at..) {
        let Some(next) = rest.chars().next() else { break };
        if [UID, TIME].iter().any(|form| has_form(&bytes[at..], form)) {
            let length = if has_form(&bytes[at..], UID) { UID.len() } else { TIME.len() };
            let fraction = rest[length..].strip_prefix('.').filter(|_| length == TIME.len());
            let digits = fraction.map_or(0, |f| 1 + f.bytes().take_while(u8::is_ascii_digit).count());
            let zero = |c: char| if c.is_ascii_hexdigit() { '0' } else { c };
            out.extend(rest[..length + digits].chars().map(zero));
            at += length + digits;
        } else {
            out.push(next);
            at += next.len_utf8();
        }
    }
    out
}

fn has_form(bytes: &[u8], form: &str) -> bool {
    bytes.len() >= form.len()
        && form.bytes().zip(bytes).all(|(expected, byte)| match expected {
            b'x' => byte.is_ascii_hexdigit(),
            b'd' => byte.is_ascii_digit(),
            other => other == *byte,
        })
}

/// The differences of two normalized responses.
pub(crate) fn differences(real: &Value, ours: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(real), Some(ours), &mut found);
    found
}

fn compare(at: &str, real: Option<&Value>, ours: Option<&Value>, found: &mut Vec<Difference>) {
    match (real, ours) {
        (Some(Value::Object(real)), Some(Value::Object(ours))) => {
            let only_ours = ours.keys().filter(|key| !real.contains_key(*key));
            for key in real.keys().chain(only_ours) {
                let name = key.replace('~', "~0").replace('/', "~1");
                compare(&format!("{at}/{name}"), real.get(key), ours.get(key), found);
            }
        }
        (Some(Value::Array(real)), Some(Value::Array(ours))) => {
            for index in 0..real.len().max(ours.len()) {
                compare(&format!("{at}/{index}"), real.get(index), ours.get(index), found);
            }
        }
        (real, ours) if real != ours => {
            found.push(Difference { at: at.to_owned(), real: real.cloned(), ours: ours.cloned() });
        }
        _ => {}
    }
}

/// Whether a value is a zero value: upstream's types write some of their fields even if empty.
pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

/// Whether a text matches a pattern; each `*` matches anything.
pub(crate) fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, behind)) => text.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|skip| rest.get(skip..).is_some_and(|rest| matches_pattern(behind, rest)))
        }),
    }
}

pub(crate) fn generated_values_are_blanked() {
    let actual = serde_json::json!({
        "metadata": {"uid": "0f0e6a3c-8d9a-4b43-9f5e-0123456789ab", "resourceVersion": "12",
                     "managedFields": [{"manager": "b", "time": "2026-01-02T03:04:05Z"}, {"manager": "a"}],
                     "creationTimestamp": "2026-01-02T03:04:05Z"},
        "message": "uid 0f0e6a3c-8d9a-4b43-9f5e-0123456789ab at 2026-01-02T03:04:05.678901Z, ende — ä",
        "cells": ["a", "7s", "5m10s", "5", "s", "1/1"],
    });
    let expected = serde_json::json!({
        "metadata": {"uid": "00000000-0000-0000-0000-000000000000", "creationTimestamp": "0000-00-00T00:00:00Z",
                     "managedFields": [{"manager": "a"}, {"manager": "b", "time": "0000-00-00T00:00:00Z"}]},
        "message": "uid 00000000-0000-0000-0000-000000000000 at 0000-00-00T00:00:00.000000Z, ende — ä",
        "cells": ["a", "an age", "an age", "5", "s", "1/1"],
    });
    assert_eq!(normalize(&actual), expected);
    for (text, wanted) in [
        ("10.96.1.0", "an address of the range"),
        ("10.96.0.255", "10.96.0.255"),
        ("10.97.3.4", "10.97.3.4"),
        ("kube-api-access-ab2cd", "kube-api-access-xxxxx"),
    ] {
        assert_eq!(blanked(text), wanted);
    }
}

pub(crate) fn differences_are_located_by_pointer() {
    let (real, ours) =
        (serde_json::json!({"a": [1, {"b/c": 2}], "d": 1}), serde_json::json!({"a": [1, {}, 3], "d": 1}));
    let places: Vec<String> = differences(&real, &ours).into_iter().map(|d| d.at).collect();
    assert_eq!(places, ["/a/1/b~1c", "/a/2"]);
    assert!(differences(&real, &real).is_empty());
}

pub(crate) fn patterns_match_with_wildcards() {
    for (pattern, text, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a*", "ab", true),
        ("*/b", "a/b", true),
        ("*/b", "a/bc", false),
        ("a*c*e", "abcde", true),
        ("*", "", true),
    ] {
        assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
    }
}
