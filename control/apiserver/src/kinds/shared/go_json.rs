//! JSON inside of texts, with the error messages of Go's parser. Pure.

use serde_json::Value;

/// What Go's `encoding/json` says of a text that does not begin as a value does.
pub(crate) fn bad_beginning(text: &str) -> Option<String> {
    match text.trim_start_matches([' ', '\t', '\r', '\n']).chars().next() {
        None => Some("unexpected end of JSON input".to_owned()),
        Some(first) if "{[\"-0123456789tfn".contains(first) => None,
        Some(first) => Some(format!("invalid character '{first}' looking for beginning of value")),
    }
}

/// Reads JSON.
///
/// # Errors
/// What is wrong with it: in Go's words where it does not begin or end as JSON does.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    let told = |error: serde_json::Error| match bad_beginning(text) {
        Some(why) => why,
        None if error.is_eof() => "unexpected end of JSON input".to_owned(),
        None => error.to_string(),
    };
    serde_json::from_str(text).map_err(told)
}
