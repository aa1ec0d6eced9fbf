//! The kinds of patch that the API takes, as functions from an object and a patch to an object. Pure.

mod applied;
mod keys;
mod strategic;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use keys::{is_atomic_map, is_set, list_keys, merge_key, retains_keys};

/// How a patch is written; the content type says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Lists are merged by their keys.
    Strategic,
    /// Server-side apply: laid over the object, which is made when it is not there. Nobody's ownership is kept.
    Apply,
}

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is wrong.
    #[error("{0}")]
    Malformed(String),
    /// A JSON patch's test or path does not fit the object.
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

/// Upstream's limit on a JSON patch.
const MOST_OPERATIONS: usize = 10_000;
/// Upstream's limit on what the copy operations of a JSON patch add up to.
const MOST_COPIED: usize = 3 << 20;

/// Applies `patch` to `current`.
///
/// # Errors
/// When the patch is malformed or does not fit.
pub fn apply(kind: PatchKind, current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let malformed = |what: &str| PatchError::Malformed(format!("the patch must be a JSON {what}"));
    match kind {
        PatchKind::Json => {
            let list = patch.as_array().ok_or_else(|| malformed("list of operations"))?;
            if list.len() > MOST_OPERATIONS {
                return Err(PatchError::Malformed(format!(
                    "the patch has {} operations, more than {MOST_OPERATIONS}",
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
        PatchKind::Apply => applied::merge(current, patch),
    }
}

fn json(current: &Value, list: &[Value]) -> Result<Value, PatchError> {
    let mut out = current.clone();
    let mut copied = 0;
    for (at, operation) in list.iter().enumerate() {
        let operation: json_patch::PatchOperation = serde_json::from_value(operation.clone())
            .map_err(|e| PatchError::Malformed(format!("operation {at} of the JSON patch cannot be read: {e}")))?;
        // Each copy may double the object, so a short patch could fill the memory.
        if let json_patch::PatchOperation::Copy(copy) = &operation {
            copied += copy.from.resolve(&out).map_or(0, size);
            if copied > MOST_COPIED {
                return Err(PatchError::Malformed(format!("the JSON patch copies more than {MOST_COPIED} bytes")));
            }
        }
        json_patch::patch(&mut out, std::slice::from_ref(&operation))
            .map_err(|e| PatchError::Unfit(format!("operation {at} at path {:?}: {}", e.path.as_str(), e.kind)))?;
    }
    Ok(out)
}

/// About how long a value is when written.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|i| size(i) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(k, v)| k.len() + 4 + size(v)).sum::<usize>(),
        _ => 8,
    }
}
