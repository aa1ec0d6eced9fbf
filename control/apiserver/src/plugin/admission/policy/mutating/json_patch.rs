//! JSON patches that an expression makes. Pure.
//!
//! Upstream: `policy/mutating/patch/json_patch.go`.

use serde_json::{Map, Value};
use windlass_apimachinery::patch::{self, PatchError};
use windlass_cel::Value as CelValue;

use super::apply_configuration::check_type_names;

/// The object with the operations of an expression applied; as it is, if a test among them fails.
///
/// # Errors
/// What is wrong with an operation, in upstream's words.
pub(super) fn patched(object: &Value, operations: &CelValue<'_>) -> Result<Value, String> {
    let CelValue::List(list) = operations else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let operations = list.iter().map(|one| operation(&one.map_err(|error| error.to_string())?));
    let operations = Value::Array(operations.collect::<Result<_, String>>()?);
    match patch::json(object, &operations) {
        Ok(patched) => Ok(patched),
        Err(PatchError::TestFailed(_)) => Ok(object.clone()),
        Err(error) => Err(format!("JSON Patch: {}", error.reason())),
    }
}

/// An operation. Fields that the expression leaves out are those of an empty operation.
fn operation(value: &CelValue<'_>) -> Result<Value, String> {
    let mismatch = "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch";
    let CelValue::Struct(made) = value else { return Err(mismatch.to_owned()) };
    let field = |name: &str| made.fields.iter().find(|(known, _)| **known == *name).map(|(_, value)| value);
    let mut operation = Map::new();
    for name in ["op", "path", "from"] {
        let text = match field(name) {
            None => String::new(),
            Some(CelValue::String(text)) => text.to_string(),
            Some(_) => return Err(format!("{mismatch}: field {name:?} is no text")),
        };
        if name != "from" || !text.is_empty() {
            operation.insert(name.to_owned(), Value::String(text));
        }
    }
    if let Some(value) = field("value") {
        check_type_names(value)?;
        let value =
            value.to_json().ok_or("JSONPath valueExpression evaluated to a type that could not marshal to JSON")?;
        operation.insert("value".to_owned(), value);
    }
    Ok(Value::Object(operation))
}
