//! `finalize`: the finalizers of a namespace. Pure.

use serde_json::Value;

use super::keep_field;

/// Restores the fields of `old` that this subresource does not reach.
pub(in crate::api) fn reset_fields(object: &mut Value, old: &Value) {
    keep_field(object, old, "status");
}
