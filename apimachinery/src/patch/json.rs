//! JSON patch, RFC 6902, with upstream's limits.

use json_patch::PatchOperation;
use serde_json::Value;

use super::{PatchError, check_depth, depth};

/// Upstream's limit of operations.
const MAX_OPERATIONS: usize = 10_000;
/// Upstream's limit of the bytes that copy operations add.
const MAX_COPIED_BYTES: usize = 3 << 20;
/// How deep operations may nest an object on the way; the result may be no deeper than any other object.
const MAX_INTERMEDIATE_DEPTH: usize = 1_000;

/// Applies a JSON patch.
///
/// # Errors
/// When the patch is no list of operations, exceeds a limit, or when an operation fails.
pub fn json(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let malformed = |why: String| Err(PatchError::Malformed(why));
    let Some(operations) = patch.as_array() else {
        return malformed("the patch must be a JSON list of operations".to_owned());
    };
    if operations.len() > MAX_OPERATIONS {
        return malformed(format!("the patch has {} operations, more than {MAX_OPERATIONS}", operations.len()));
    }
    let mut out = current.clone();
    let mut copied = 0;
    let mut deepest = depth(&out);
    for (at, operation) in operations.iter().enumerate() {
        let operation: PatchOperation = match serde_json::from_value(operation.clone()) {
            Ok(operation) => operation,
            Err(error) => return malformed(format!("operation {at} of the JSON patch cannot be read: {error}")),
        };
        // Each copy may double the object: a short patch could exhaust memory.
        if let PatchOperation::Copy(copy) = &operation {
            copied += copy.from.resolve(&out).map_or(0, size);
            if copied > MAX_COPIED_BYTES {
                return malformed(format!("the JSON patch copies more than {MAX_COPIED_BYTES} bytes"));
            }
        }
        deepest = depth_after(&operation, deepest);
        if deepest > MAX_INTERMEDIATE_DEPTH {
            return malformed(format!("operation {at} of the JSON patch nests the object too deep"));
        }
        json_patch::patch(&mut out, std::slice::from_ref(&operation))
            .map_err(|e| PatchError::Unfit(format!("operation {at} at path {:?}: {}", e.path.as_str(), e.kind)))?;
    }
    check_depth(&out)?;
    Ok(out)
}

/// The most that an object of this depth can be nested after an operation.
fn depth_after(operation: &PatchOperation, deepest: usize) -> usize {
    let moved = |to: usize, from: usize| deepest + to.saturating_sub(from);
    match operation {
        PatchOperation::Add(add) => deepest.max(add.path.count() + depth(&add.value)),
        PatchOperation::Replace(replace) => deepest.max(replace.path.count() + depth(&replace.value)),
        PatchOperation::Move(step) => moved(step.path.count(), step.from.count()),
        PatchOperation::Copy(step) => moved(step.path.count(), step.from.count()),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => deepest,
    }
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
