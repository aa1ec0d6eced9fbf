//! Errors of single fields: a path, a cause, and upstream's words (`k8s.io/apimachinery/pkg/util/validation/field`). Pure.

mod path;

use serde_json::Value;

pub use path::Path;

use crate::{go_json, go_quoted};

/// The kind of a field error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Missing.
    Required,
    /// Not a good value.
    Invalid,
    /// A value of another type.
    TypeInvalid,
    /// None of the allowed ones.
    NotSupported,
    /// May not be set or changed.
    Forbidden,
    /// Stands twice.
    Duplicate,
    /// Refers to an object that does not exist.
    NotFound,
    /// More bytes than allowed.
    TooLong,
    /// More items than allowed.
    TooMany,
    /// What should be impossible.
    Internal,
}

impl Cause {
    /// The reason as the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
        }
    }
}

/// One problem with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The path, such as `spec.containers[0].image`.
    pub field: String,
    /// Its kind.
    pub cause: Cause,
    /// The message after the path.
    pub detail: String,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.field.is_empty() { f.write_str(&self.detail) } else { write!(f, "{}: {}", self.field, self.detail) }
    }
}

/// Upstream's words for a number below 0.
pub const AT_LEAST_0: &str = "must be greater than or equal to 0";

/// The problems found so far.
#[derive(Debug, Default)]
pub struct Errors(pub Vec<FieldError>);

impl Errors {
    /// A problem in words that need no label.
    pub fn push(&mut self, field: impl Into<String>, cause: Cause, detail: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), cause, detail: detail.into() });
    }

    /// The field is missing; `why` may be empty.
    pub fn required(&mut self, field: impl Into<String>, why: &str) {
        let detail = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        self.push(field, Cause::Required, detail);
    }

    /// The value is not good.
    pub fn invalid(&mut self, field: impl Into<String>, value: &Value, why: &str) {
        self.push(field, Cause::Invalid, format!("Invalid value: {}: {why}", quoted(value)));
    }

    /// The text is not good.
    pub fn invalid_text(&mut self, field: impl Into<String>, value: &str, why: &str) {
        self.invalid(field, &Value::from(value), why);
    }

    /// The field could not be validated.
    pub fn internal(&mut self, field: impl Into<String>, why: &str) {
        self.push(field, Cause::Internal, format!("Internal error: {why}"));
    }

    /// The field may not be set or changed.
    pub fn forbidden(&mut self, field: impl Into<String>, why: &str) {
        self.push(field, Cause::Forbidden, format!("Forbidden: {why}"));
    }

    /// The value stands twice.
    pub fn duplicate(&mut self, field: impl Into<String>, value: &Value) {
        self.push(field, Cause::Duplicate, format!("Duplicate value: {}", quoted(value)));
    }

    /// The value refers to an object that does not exist.
    pub fn not_found(&mut self, field: impl Into<String>, value: &Value) {
        self.push(field, Cause::NotFound, format!("Not found: {}", quoted(value)));
    }

    /// The text is longer than `max` bytes.
    pub fn too_long(&mut self, field: impl Into<String>, max: usize) {
        self.push(field, Cause::TooLong, too_long(max as u64));
    }

    /// There are more than `max` items.
    pub fn too_many(&mut self, field: impl Into<String>, count: usize, max: usize) {
        self.push(field, Cause::TooMany, too_many(count as u64, max as u64));
    }

    /// Refuses all but `allowed`; a missing value counts as an empty text.
    pub fn one_of(&mut self, field: impl Into<String>, value: &Value, allowed: &[&str]) {
        if !value.as_str().is_some_and(|word| allowed.contains(&word)) {
            self.not_supported(field, value, allowed);
        }
    }

    /// Refuses all but `allowed`, and takes a missing or empty value.
    pub fn optional_one_of(&mut self, field: impl Into<String>, value: &Value, allowed: &[&str]) {
        if !value.is_null() && value != "" {
            self.one_of(field, value, allowed);
        }
    }

    /// Refuses numbers below 0, and takes a missing value.
    pub fn at_least_0(&mut self, field: impl Into<String>, value: &Value) {
        if value.as_i64().is_some_and(|n| n < 0) {
            self.invalid(field, value, AT_LEAST_0);
        }
    }

    /// Passes on what a check of names has found.
    pub fn unless(&mut self, field: impl Into<String>, value: &str, found: Option<String>) {
        if let Some(why) = found {
            self.invalid_text(field, value, &why);
        }
    }

    /// The value is not one of `allowed`.
    pub fn not_supported<T: AsRef<str>>(&mut self, field: impl Into<String>, value: &Value, allowed: &[T]) {
        let allowed: Vec<String> = allowed.iter().map(|word| format!("{:?}", word.as_ref())).collect();
        let detail = format!("Unsupported value: {}: supported values: {}", quoted(value), allowed.join(", "));
        self.push(field, Cause::NotSupported, detail);
    }
}

/// A value as errors repeat it: what is missing is an empty text.
#[must_use]
pub fn quoted(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".to_owned(),
        Value::String(text) => go_quoted(text),
        value => go_json(value),
    }
}

/// The message for a text that is longer than `max` bytes.
pub(crate) fn too_long(max: u64) -> String {
    format!("Too long: may not be more than {max} {}", if max == 1 { "byte" } else { "bytes" })
}

/// The message for `count` items if `max` are allowed.
pub(crate) fn too_many(count: u64, max: u64) -> String {
    format!("Too many: {count}: must have at most {max} {}", if max == 1 { "item" } else { "items" })
}
