//! Formats of names and values: upstream's `library/format.go`.

use windlass_apimachinery::{names, schema};

use super::{Native, Row, global, member, url};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Opaque, Outcome, Value},
};

/// The row of a format that is called by its name.
const fn named(function: &'static str, body: Native) -> Row {
    global(function, function, "-> format", Cost::One, body)
}

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    member("validate", "format-validate", "format, string -> optional(list(string))", Cost::Validate, validate),
    global("format.named", "format-named", "string -> optional(format)", Cost::Accessor, by_name),
    named("format.dns1123Label", |_| of("dns1123Label")),
    named("format.dns1123Subdomain", |_| of("dns1123Subdomain")),
    named("format.dns1035Label", |_| of("dns1035Label")),
    named("format.qualifiedName", |_| of("qualifiedName")),
    named("format.dns1123LabelPrefix", |_| of("dns1123LabelPrefix")),
    named("format.dns1123SubdomainPrefix", |_| of("dns1123SubdomainPrefix")),
    named("format.dns1035LabelPrefix", |_| of("dns1035LabelPrefix")),
    named("format.labelValue", |_| of("labelValue")),
    named("format.uri", |_| of("uri")),
    named("format.uuid", |_| of("uuid")),
    named("format.byte", |_| of("byte")),
    named("format.date", |_| of("date")),
    named("format.datetime", |_| of("datetime")),
];

/// A format: what it says of a text, and the length of a regular expression that would say as much.
#[derive(Debug)]
pub struct Format {
    key: &'static str,
    /// upstream's name of it.
    pub(crate) name: &'static str,
    pub(crate) max_regex_size: u64,
    problems: fn(&str) -> Vec<String>,
}

#[rustfmt::skip]
static FORMATS: [Format; 13] = [
    Format { key: "dns1123Label", name: "DNS1123Label", max_regex_size: 30, problems: dns1123_label },
    Format { key: "dns1123Subdomain", name: "DNS1123Subdomain", max_regex_size: 60, problems: dns1123_subdomain },
    Format { key: "dns1035Label", name: "DNS1035Label", max_regex_size: 30, problems: dns1035_label },
    Format { key: "qualifiedName", name: "QualifiedName", max_regex_size: 60, problems: names::qualified_problems },
    Format { key: "dns1123LabelPrefix", name: "DNS1123LabelPrefix", max_regex_size: 30, problems: |text| dns1123_label(&without_dash(text)) },
    Format { key: "dns1123SubdomainPrefix", name: "DNS1123SubdomainPrefix", max_regex_size: 60, problems: |text| dns1123_subdomain(&without_dash(text)) },
    Format { key: "dns1035LabelPrefix", name: "DNS1035LabelPrefix", max_regex_size: 30, problems: |text| dns1035_label(&without_dash(text)) },
    Format { key: "labelValue", name: "LabelValue", max_regex_size: 40, problems: label_value },
    Format { key: "uri", name: "URI", max_regex_size: 1103, problems: |text| url::check_request_uri(text).err().into_iter().collect() },
    Format { key: "uuid", name: "uuid", max_regex_size: 70, problems: |text| of_format("uuid", text, "does not match the UUID format") },
    Format { key: "byte", name: "byte", max_regex_size: 84, problems: |text| of_format("byte", text, "invalid base64") },
    Format { key: "date", name: "date", max_regex_size: 71, problems: |text| of_format("date", text, "invalid date") },
    Format { key: "datetime", name: "datetime", max_regex_size: 71, problems: |text| of_format("datetime", text, "invalid datetime") },
];

fn find<'a>(key: &str) -> Option<Value<'a>> {
    FORMATS.iter().find(|format| format.key == key).map(|format| Value::Opaque(Opaque::Format(format)))
}

fn of<'a>(key: &str) -> Outcome<'a> {
    find(key).ok_or_else(EvalError::no_such_overload)
}

fn by_name<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(name)] => Ok(find(name).map_or_else(Value::none, Value::some)),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn validate<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::Format(format)), Value::String(text)] = args else {
        return Err(EvalError::no_such_overload());
    };
    let problems = (format.problems)(text);
    Ok(if problems.is_empty() { Value::none() } else { Value::some(Value::texts(problems)) })
}

/// What makes a name of a prefix that ends in a dash: upstream's `maskTrailingDash`.
fn without_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(before) if !before.is_empty() => {
            let mut chars = before.chars();
            chars.next_back();
            format!("{}a", chars.as_str())
        }
        _ => text.to_owned(),
    }
}

/// The problems of a text whose length and characters are judged apart: `check` says the first one alone.
fn length_and_characters(text: &str, most: usize, check: fn(&str) -> Option<String>, sample: &str) -> Vec<String> {
    let too_long = (text.len() > most).then(|| check(text)).flatten();
    // The characters of a long text are judged as those of a short one that has the same ones.
    let characters = if too_long.is_some() { check(sample) } else { check(text) };
    too_long.into_iter().chain(characters).collect()
}

/// A short text with what is wrong with the characters of a long one, or a fine one.
fn sample(text: &str, fine: impl Fn(&str) -> bool, dots: bool) -> &'static str {
    let is_label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    if fine(text) {
        "a"
    } else if dots && text.split('.').all(is_label) {
        "a.b"
    } else {
        "-"
    }
}

fn is_lower_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn dns1123_label(text: &str) -> Vec<String> {
    length_and_characters(text, 63, names::label, sample(text, is_lower_label, true))
}

fn dns1123_subdomain(text: &str) -> Vec<String> {
    let fine = |text: &str| text.split('.').all(is_lower_label);
    length_and_characters(text, 253, names::subdomain, sample(text, fine, false))
}

fn dns1035_label(text: &str) -> Vec<String> {
    let fine = |text: &str| is_lower_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase());
    length_and_characters(text, 63, names::dns1035_label, sample(text, fine, false))
}

fn label_value(text: &str) -> Vec<String> {
    let fine = |text: &str| {
        let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = text.as_bytes();
        let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        bytes.iter().all(inner) && end(bytes.first()) && end(bytes.last())
    };
    length_and_characters(text, 63, names::label_value, sample(text, fine, false))
}

fn of_format(format: &str, text: &str, otherwise: &str) -> Vec<String> {
    if schema::has_format(format, text) { Vec::new() } else { vec![otherwise.to_owned()] }
}
