//! Errors of fields, and helpers of validation.

use serde_json::Value;
pub(crate) use windlass_apimachinery::field::AT_LEAST_0;
pub use windlass_apimachinery::field::{Cause, Errors, FieldError};

pub(crate) const PORT: &str = "must be between 1 and 65535, inclusive";

/// The list at `key`, with places.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (usize, &'a Value)> + use<'a> {
    value[key].as_array().into_iter().flatten().enumerate()
}

/// The text at `key`, or an empty one.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}
