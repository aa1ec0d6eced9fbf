//! The kinds of patch that the API takes, as functions from an object and a patch to an object. Pure.

mod strategic;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use strategic::merge_key;

/// How a patch is written; the content type says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Lists are merged by their keys.
    Strategic,
    /// Server-side apply: merged like a strategic patch, and makes the object when it is not there.
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
            let operations: json_patch::Patch =
                serde_json::from_value(patch.clone()).map_err(|e| PatchError::Malformed(format!("the JSON patch cannot be read: {e}")))?;
            let mut out = current.clone();
            json_patch::patch(&mut out, &operations).map_err(|e| PatchError::Unfit(e.to_string()))?;
            Ok(out)
        }
        PatchKind::Merge => {
            if !patch.is_object() {
                return Err(malformed("object"));
            }
            let mut out = current.clone();
            json_patch::merge(&mut out, patch);
            Ok(out)
        }
        PatchKind::Strategic | PatchKind::Apply => {
            if !patch.is_object() {
                return Err(malformed("object"));
            }
            strategic::merge(current, patch)
        }
    }
}
