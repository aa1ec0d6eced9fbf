//! How refusals are told: a path, a cause, and upstream's words.

use serde_json::Value;

/// The kind of a field error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Missing.
    Required,
    /// Not a good value.
    Invalid,
    /// None of the allowed ones.
    NotSupported,
    /// May not be set or changed.
    Forbidden,
    /// Stands twice.
    Duplicate,
    /// Refers to what is not there.
    NotFound,
    /// More bytes than allowed.
    TooLong,
    /// More items than allowed.
    TooMany,
}

impl Cause {
    /// The reason as the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
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
    /// What is told after the path.
    pub detail: String,
}

/// The refusals found so far.
#[derive(Debug, Default)]
pub(super) struct Errors(pub(super) Vec<FieldError>);

pub(super) const AT_LEAST_0: &str = "must be greater than or equal to 0";
pub(super) const PORT: &str = "must be between 1 and 65535, inclusive";

impl Errors {
    pub(super) fn push(&mut self, field: impl Into<String>, cause: Cause, detail: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), cause, detail: detail.into() });
    }

    pub(super) fn required(&mut self, field: impl Into<String>, why: &str) {
        let detail = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        self.push(field, Cause::Required, detail);
    }

    pub(super) fn invalid(&mut self, field: impl Into<String>, value: &Value, why: &str) {
        self.push(field, Cause::Invalid, format!("Invalid value: {}: {why}", quoted(value)));
    }

    pub(super) fn invalid_text(&mut self, field: impl Into<String>, value: &str, why: &str) {
        self.invalid(field, &Value::from(value), why);
    }

    pub(super) fn forbidden(&mut self, field: impl Into<String>, why: &str) {
        self.push(field, Cause::Forbidden, format!("Forbidden: {why}"));
    }

    pub(super) fn duplicate(&mut self, field: impl Into<String>, value: &Value) {
        self.push(field, Cause::Duplicate, format!("Duplicate value: {}", quoted(value)));
    }

    pub(super) fn not_found(&mut self, field: impl Into<String>, value: &Value) {
        self.push(field, Cause::NotFound, format!("Not found: {}", quoted(value)));
    }

    pub(super) fn too_long(&mut self, field: impl Into<String>, max: usize) {
        self.push(field, Cause::TooLong, format!("Too long: may not be more than {max} bytes"));
    }

    pub(super) fn too_many(&mut self, field: impl Into<String>, count: usize, max: usize) {
        self.push(field, Cause::TooMany, format!("Too many: {count}: must have at most {max} items"));
    }

    /// Refuses all but `allowed`; a missing value counts as an empty text.
    pub(super) fn one_of(&mut self, field: impl Into<String>, value: &Value, allowed: &[&str]) {
        if value.as_str().is_some_and(|v| allowed.contains(&v)) {
            return;
        }
        let allowed: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
        self.push(
            field,
            Cause::NotSupported,
            format!("Unsupported value: {}: supported values: {}", quoted(value), allowed.join(", ")),
        );
    }

    /// Refuses all but `allowed`, and takes a missing or empty value.
    pub(super) fn optional_one_of(&mut self, field: impl Into<String>, value: &Value, allowed: &[&str]) {
        if !value.is_null() && value != "" {
            self.one_of(field, value, allowed);
        }
    }

    /// Refuses numbers below 0, and takes a missing value.
    pub(super) fn at_least_0(&mut self, field: impl Into<String>, value: &Value) {
        if value.as_i64().is_some_and(|n| n < 0) {
            self.invalid(field, value, AT_LEAST_0);
        }
    }

    /// Passes on what a check of names has found.
    pub(super) fn unless(&mut self, field: impl Into<String>, value: &str, found: Option<String>) {
        if let Some(why) = found {
            self.invalid_text(field, value, &why);
        }
    }
}

/// A value as refusals repeat it: what is missing is an empty text.
fn quoted(value: &Value) -> String {
    if value.is_null() { "\"\"".to_owned() } else { value.to_string() }
}

/// The list at `key`, with places.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (usize, &'a Value)> + use<'a> {
    value[key].as_array().into_iter().flatten().enumerate()
}

/// The text at `key`, empty where there is none.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}
