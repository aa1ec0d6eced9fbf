//! What a server says, as a column of a table has it.

use serde_json::{Value, json};

use super::Reply;

/// What a server said of a row, in one column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    /// The errors of fields, each with its field.
    Errors(Vec<String>),
    /// The message of a refusal that names no fields.
    Message(String),
    /// The warnings.
    Warnings(Vec<String>),
    /// The code.
    Code(u16),
    /// A part of the answer.
    Value(Value),
    /// The column is about an answer that was not given.
    Nothing,
}

impl Said {
    /// As it is written, if it is.
    pub(crate) fn column(&self) -> Option<Value> {
        Some(match self {
            Self::Errors(texts) | Self::Warnings(texts) => json!(texts),
            Self::Message(text) => json!([text]),
            Self::Code(code) => json!(code),
            Self::Value(value) => value.clone(),
            Self::Nothing => return None,
        })
    }
}

/// The errors of fields in an answer.
pub(crate) fn errors_of(reply: &Reply) -> Vec<String> {
    let causes = reply.body["details"]["causes"].as_array().into_iter().flatten();
    let text = |part: &Value| part.as_str().unwrap_or("").to_owned();
    causes.map(|cause| format!("{}: {}", text(&cause["field"]), text(&cause["message"]))).collect()
}

/// The warnings of an answer.
pub(crate) fn warnings_of(reply: &Reply) -> Vec<String> {
    let text = |header: &String| {
        let quoted = header.strip_prefix("299 - \"").and_then(|rest| rest.strip_suffix('"')).unwrap_or(header);
        let mut text = String::new();
        let mut letters = quoted.chars();
        while let Some(letter) = letters.next() {
            text.extend(if letter == '\\' { letters.next() } else { Some(letter) });
        }
        text
    };
    reply.warnings.iter().map(text).collect()
}
