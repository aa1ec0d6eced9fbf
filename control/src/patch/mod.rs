//! Patch types, as functions from an object and a patch to an object; server-side apply is in `api::field_manager`. Pure.

use serde_json::Value;
pub use windlass_apimachinery::patch::PatchError;
use windlass_apimachinery::{patch, schema::Schema};

/// The patch type, by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// JSON patch, RFC 6902.
    Json,
    /// JSON merge patch, RFC 7386.
    Merge,
    /// Strategic merge patch: lists are merged by their keys.
    Strategic,
}

/// Applies `patch` to `current`, an object of the type `schema`.
///
/// # Errors
/// When the patch is malformed or cannot be applied.
pub fn apply(kind: PatchKind, schema: &Schema, current: &Value, patch: &Value) -> Result<Value, PatchError> {
    match kind {
        PatchKind::Json => patch::json(current, patch),
        PatchKind::Merge => patch::merge(current, patch),
        PatchKind::Strategic => patch::strategic(schema, current, patch),
    }
}
