//! Apply configurations: objects that an expression makes, merged by the type of the object, without owners. Pure.
//!
//! Upstream: `policy/mutating/patch/smd.go` and `CheckTypeNamesMatchFieldPathNames`.

use serde_json::Value;
use windlass_apimachinery::managed_fields::{Duplicates, Type};
use windlass_cel::{List, Map, Value as CelValue};

/// The object with what an expression has made merged into it.
///
/// # Errors
/// What is wrong with that, in upstream's words.
pub(super) fn merged(ty: Type<'_>, object: &Value, applied: &CelValue<'_>) -> Result<Value, String> {
    check_type_names(applied)?;
    let mut patch = applied.to_json().filter(Value::is_object).ok_or_else(|| {
        "invalid return type: the apply configuration holds a value that cannot be written as JSON".to_owned()
    })?;
    for field in ["apiVersion", "kind"] {
        patch[field] = object[field].clone();
    }
    merge(ty, object, &patch).map_err(|why| format!("error applying patch: {why}"))
}

fn merge(ty: Type<'_>, object: &Value, patch: &Value) -> Result<Value, String> {
    ty.check_computed(patch).map_err(|errors| format!("failed to convert patch object to typed object: {errors}"))?;
    let atomics = ty.atomics(patch);
    if !atomics.is_empty() {
        let atomics: Vec<String> = atomics.iter().map(ToString::to_string).collect();
        let why = "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs";
        return Err(format!("{why}: {}", atomics.join(", ")));
    }
    ty.check(object, Duplicates::Allowed)
        .map_err(|errors| format!("failed to convert original object to typed object: {errors}"))?;
    Ok(ty.merge(object, patch))
}

/// Refuses what is made of types whose names are not the paths at which they stand: fields of these types are not checked.
///
/// # Errors
/// All names that are not right.
pub(super) fn check_type_names(value: &CelValue<'_>) -> Result<(), String> {
    let mut wrong = Vec::new();
    if let CelValue::Struct(object) = value {
        collect_names(value, &object.type_name, &mut wrong);
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("type mismatch: {}", wrong.join("\n"))) }
}

fn collect_names(value: &CelValue<'_>, path: &str, wrong: &mut Vec<String>) {
    match value {
        CelValue::Struct(object) => {
            if *object.type_name != *path {
                wrong.push(format!(
                    "unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
                    object.type_name
                ));
            }
            for (name, field) in &object.fields {
                collect_names(field, &format!("{path}.{name}"), wrong);
            }
        }
        // What stands between has no name.
        CelValue::List(List::Owned(items)) => items.iter().for_each(|item| collect_names(item, path, wrong)),
        CelValue::Map(Map::Owned(entries)) => entries.values().for_each(|entry| collect_names(entry, path, wrong)),
        _ => {}
    }
}
