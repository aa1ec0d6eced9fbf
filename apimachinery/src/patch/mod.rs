//! Patches, as functions from an object and a patch to an object: JSON patch, merge patch, strategic merge patch. Pure.
//! Server-side apply is no patch but has owners, see `managed_fields`.

mod go;
mod json;
mod strategic;

use serde_json::Value;

pub use json::json;
pub use strategic::strategic;

use crate::{MAX_DEPTH, schema::Schema};

/// The patch type, by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// JSON patch, RFC 6902.
    Json,
    /// JSON merge patch, RFC 7386.
    Merge,
    /// Strategic merge patch: lists are merged as the type says.
    Strategic,
}

/// Applies `patch` to `current`, an object of the type `schema`.
///
/// # Errors
/// When the patch is malformed or cannot be applied.
pub fn apply(kind: PatchKind, schema: &Schema, current: &Value, patch: &Value) -> Result<Value, PatchError> {
    match kind {
        PatchKind::Json => json(current, patch),
        PatchKind::Merge => merge(current, patch),
        PatchKind::Strategic => strategic(schema, current, patch),
    }
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
    /// The value that a JSON patch tests is another one.
    #[error("the server rejected our request due to an error in our request: {0}")]
    TestFailed(String),
    /// A directive of a strategic merge patch is unknown, or does not fit what it directs.
    #[error("{0}")]
    Directive(String),
}

impl PatchError {
    /// What is wrong with the patch.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Malformed(why) | Self::Unfit(why) | Self::TestFailed(why) | Self::Directive(why) => why,
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::Unfit(_) | Self::TestFailed(_) => 422,
            // Upstream's merge fails with an error of no kind.
            Self::Directive(_) => 500,
        }
    }
}

/// Applies a JSON merge patch, RFC 7386.
///
/// # Errors
/// When the patch is no object, or nested too deep.
pub fn merge(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    check_object(patch)?;
    let (mut out, mut patch) = (current.clone(), patch.clone());
    drop_nulls_in_lists(&mut patch, false);
    json_patch::merge(&mut out, &patch);
    Ok(out)
}

/// As upstream's library: objects in lists lose their fields of null; null items stay.
fn drop_nulls_in_lists(value: &mut Value, in_list: bool) {
    match value {
        Value::Object(fields) => {
            if in_list {
                fields.retain(|_, field| !field.is_null());
            }
            fields.values_mut().for_each(|field| drop_nulls_in_lists(field, in_list));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls_in_lists(item, true)),
        _ => {}
    }
}

/// Refuses a patch that is no object, and one that no body can hold.
fn check_object(patch: &Value) -> Result<(), PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed("the patch must be a JSON object".to_owned()));
    }
    check_depth(patch)
}

fn check_depth(value: &Value) -> Result<(), PatchError> {
    if depth(value) > MAX_DEPTH {
        return Err(PatchError::Malformed(format!("nested deeper than {MAX_DEPTH} levels")));
    }
    Ok(())
}

/// How deep a value is nested; counted without recursion.
fn depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut waiting = vec![(value, 0)];
    while let Some((value, depth)) = waiting.pop() {
        deepest = deepest.max(depth);
        match value {
            Value::Array(items) => waiting.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => waiting.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;
