//! JSON patch, RFC 6902, as upstream's library reads it (`gopkg.in/evanphx/json-patch.v4`), with upstream's limits.
//!
//! It takes more than the RFC allows, and clients rely on that: a field that is absent passes a test for null (so do
//! controllers add the first finalizer), can be replaced, and is copied as null; an operation without a value has null; an
//! index may count from the end of a list; what stands before the first slash of a path is ignored.

use serde_json::{Map, Value};

use super::{PatchError, check_depth, depth};

/// Upstream's limit of operations.
const MAX_OPERATIONS: usize = 10_000;
/// Upstream's limit of the bytes that copy operations add.
const MAX_COPIED_BYTES: usize = 3 << 20;
/// How deep operations may nest an object on the way; the result may be no deeper than any other object.
const MAX_INTERMEDIATE_DEPTH: usize = 1_000;

const NO_PATH: &str = "path is invalid";
const NO_FROM: &str = "\"from\" path is invalid";
/// What a test finds that fails.
const OTHER_VALUE: &str = "value did not match";

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
    for (at, fields) in operations.iter().enumerate() {
        let Some(fields) = fields.as_object() else {
            return malformed(format!("operation {at} of the JSON patch is no JSON object"));
        };
        let unfit = |path: &str, why: &str| PatchError::Unfit(format!("operation {at} at path {path:?}: {why}"));
        let operation = Operation::read(fields).map_err(|why| PatchError::Unfit(format!("operation {at}: {why}")))?;
        // Each copy may double the object: a short patch could exhaust memory.
        if let Step::Copy { from } = operation.step {
            copied += value_at(&mut out, from).map_or(0, size);
            if copied > MAX_COPIED_BYTES {
                return malformed(format!("the JSON patch copies more than {MAX_COPIED_BYTES} bytes"));
            }
        }
        deepest = operation.depth_after(deepest);
        if deepest > MAX_INTERMEDIATE_DEPTH {
            return malformed(format!("operation {at} of the JSON patch nests the object too deep"));
        }
        operation.apply(&mut out).map_err(|why| match unfit(operation.path, why) {
            PatchError::Unfit(text) if why == OTHER_VALUE => PatchError::TestFailed(text),
            error => error,
        })?;
    }
    check_depth(&out)?;
    Ok(out)
}

struct Operation<'p> {
    path: &'p str,
    step: Step<'p>,
}

enum Step<'p> {
    Add { value: &'p Value },
    Remove,
    Replace { value: &'p Value },
    Move { from: &'p str },
    Copy { from: &'p str },
    Test { value: &'p Value },
}

impl<'p> Operation<'p> {
    fn read(fields: &'p Map<String, Value>) -> Result<Self, String> {
        let text = |key: &str| {
            fields.get(key).and_then(Value::as_str).ok_or_else(|| format!("the field {key:?} must be a string"))
        };
        let value = fields.get("value").unwrap_or(&Value::Null);
        let step = match text("op")? {
            "add" => Step::Add { value },
            "remove" => Step::Remove,
            "replace" => Step::Replace { value },
            "move" => Step::Move { from: text("from")? },
            "copy" => Step::Copy { from: text("from")? },
            "test" => Step::Test { value },
            other => {
                return Err(format!("there is no operation {other:?}: add, remove, replace, move, copy and test are"));
            }
        };
        Ok(Self { path: text("path")?, step })
    }

    /// The most that an object of this depth can be nested after the operation.
    fn depth_after(&self, deepest: usize) -> usize {
        let count = |path: &str| path.matches('/').count();
        match self.step {
            Step::Add { value } | Step::Replace { value } => deepest.max(count(self.path) + depth(value)),
            Step::Move { from } | Step::Copy { from } => deepest + count(self.path).saturating_sub(count(from)),
            Step::Remove | Step::Test { .. } => deepest,
        }
    }

    fn apply(&self, object: &mut Value) -> Result<(), &'static str> {
        match self.step {
            Step::Add { value } => add(object, self.path, value.clone()),
            Step::Remove => remove(object, self.path).map(drop).ok_or(NO_PATH),
            Step::Replace { value } => replace(object, self.path, value.clone()),
            Step::Move { from } => {
                let value = remove(object, from).ok_or(NO_FROM)?;
                add(object, self.path, value)
            }
            Step::Copy { from } => {
                let value = value_at(object, from).ok_or(NO_FROM)?.clone();
                add(object, self.path, value)
            }
            Step::Test { value } => {
                let is = if self.path.is_empty() { object } else { value_at(object, self.path).ok_or(NO_PATH)? };
                if is == value { Ok(()) } else { Err(OTHER_VALUE) }
            }
        }
    }
}

/// The object or list that a path leads into, and the last segment of the path.
fn place<'o>(object: &'o mut Value, path: &str) -> Option<(&'o mut Value, String)> {
    let (behind, last) = path.rsplit_once('/')?;
    let mut place = object;
    for segment in behind.split('/').skip(1) {
        let key = unescape(segment);
        place = match place {
            Value::Object(fields) => fields.get_mut(&key)?,
            Value::Array(items) => {
                let at = index(&key, items.len())?;
                items.get_mut(at)?
            }
            _ => return None,
        };
    }
    (place.is_object() || place.is_array()).then(|| (place, unescape(last)))
}

/// The value at a path; null for a field that is absent, nothing for an item that is.
fn value_at<'o>(object: &'o mut Value, path: &str) -> Option<&'o Value> {
    match place(object, path)? {
        (Value::Object(fields), key) => Some(fields.get(&key).unwrap_or(&Value::Null)),
        (Value::Array(items), key) => {
            let at = index(&key, items.len())?;
            items.get(at)
        }
        _ => None,
    }
}

fn add(object: &mut Value, path: &str, value: Value) -> Result<(), &'static str> {
    match place(object, path).ok_or(NO_PATH)? {
        (Value::Object(fields), key) => drop(fields.insert(key, value)),
        (Value::Array(items), key) if key == "-" => items.push(value),
        (Value::Array(items), key) => {
            // Counted in the list with the new item.
            let at = index(&key, items.len() + 1).ok_or(NO_PATH)?;
            items.insert(at, value);
        }
        _ => return Err(NO_PATH),
    }
    Ok(())
}

fn replace(object: &mut Value, path: &str, value: Value) -> Result<(), &'static str> {
    if path.is_empty() {
        *object = value;
        return Ok(());
    }
    match place(object, path).ok_or(NO_PATH)? {
        (Value::Object(fields), key) => drop(fields.insert(key, value)),
        (Value::Array(items), key) => {
            let at = index(&key, items.len()).ok_or(NO_PATH)?;
            items[at] = value;
        }
        _ => return Err(NO_PATH),
    }
    Ok(())
}

fn remove(object: &mut Value, path: &str) -> Option<Value> {
    match place(object, path)? {
        (Value::Object(fields), key) => fields.remove(&key),
        (Value::Array(items), key) => index(&key, items.len()).map(|at| items.remove(at)),
        _ => None,
    }
}

/// The index that a segment names in a list of this length; a negative one counts from the end.
fn index(segment: &str, length: usize) -> Option<usize> {
    let number: i64 = segment.parse().ok()?;
    let length = i64::try_from(length).ok()?;
    let number = if number < 0 { number.checked_add(length)? } else { number };
    usize::try_from(number).ok().filter(|_| number < length)
}

fn unescape(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
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
