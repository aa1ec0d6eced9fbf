//! Patch types, as functions from an object and a patch to an object. Pure.

mod apply;
mod keys;
mod strategic;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use keys::{is_atomic_map, is_set, list_keys, merge_key, retains_keys};

/// The patch type, by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// JSON patch, RFC 6902.
    Json,
    /// JSON merge patch, RFC 7386.
    Merge,
    /// Strategic merge patch: lists are merged by their keys.
    Strategic,
    /// Server-side apply without field ownership: merged into the object, which is created if missing.
    Apply,
}

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is malformed.
    #[error("{0}")]
    Malformed(String),
    /// A test or path of a JSON patch fails.
    #[error("the server rejected our request due to an error in our request: {0}")]
    Unfit(String),
}

impl PatchError {
    /// The HTTP status.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::Unfit(_) => 422,
        }
    }
}

/// Upstream's limit of operations in a JSON patch.
const MAX_OPERATIONS: usize = 10_000;
/// Upstream's limit of the bytes that copy operations of a JSON patch add.
const MAX_COPIED_BYTES: usize = 3 << 20;

/// Applies `patch` to `current`.
///
/// # Errors
/// When the patch is malformed or cannot be applied.
pub fn apply(kind: PatchKind, current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let malformed = |what: &str| PatchError::Malformed(format!("the patch must be a JSON {what}"));
    match kind {
        PatchKind::Json => {
            let list = patch.as_array().ok_or_else(|| malformed("list of operations"))?;
            if list.len() > MAX_OPERATIONS {
                return Err(PatchError::Malformed(format!(
                    "the patch has {} operations, more than {MAX_OPERATIONS}",
                    list.len()
                )));
            }
            json(current, list)
        }
        PatchKind::Merge => {
            if !patch.is_object() {
                return Err(malformed("object"));
            }
            let mut out = current.clone();
            json_patch::merge(&mut out, patch);
            Ok(out)
        }
        PatchKind::Strategic | PatchKind::Apply if !patch.is_object() => Err(malformed("object")),
        PatchKind::Strategic => strategic::merge(current, patch),
        PatchKind::Apply => apply::merge(current, patch),
    }
}

fn json(current: &Value, list: &[Value]) -> Result<Value, PatchError> {
    let mut out = current.clone();
    let mut copied = 0;
    for (at, operation) in list.iter().enumerate() {
        let operation: json_patch::PatchOperation = serde_json::from_value(operation.clone())
            .map_err(|e| PatchError::Malformed(format!("operation {at} of the JSON patch cannot be read: {e}")))?;
        // Each copy may double the object: a short patch could exhaust memory.
        if let json_patch::PatchOperation::Copy(copy) = &operation {
            copied += copy.from.resolve(&out).map_or(0, size);
            if copied > MAX_COPIED_BYTES {
                return Err(PatchError::Malformed(format!("the JSON patch copies more than {MAX_COPIED_BYTES} bytes")));
            }
        }
        json_patch::patch(&mut out, std::slice::from_ref(&operation))
            .map_err(|e| PatchError::Unfit(format!("operation {at} at path {:?}: {}", e.path.as_str(), e.kind)))?;
    }
    Ok(out)
}

/// The approximate encoded size of a value.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|i| size(i) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(k, v)| k.len() + 4 + size(v)).sum::<usize>(),
        _ => 8,
    }
}
