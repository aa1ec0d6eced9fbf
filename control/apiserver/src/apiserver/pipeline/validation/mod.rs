//! What the API refuses: the stages of validation that every resource has, and the words for it. Pure.
//!
//! Objects come here with their defaults. What one resource refuses is part of its `Strategy`.

pub(crate) mod errors;
mod metadata;
pub(crate) mod names;

use serde_json::Value;
use windlass_cel::Findings;

pub use errors::{Cause, Errors, FieldError};

use crate::apiserver::{
    request::user::User,
    types::{Part, Tolerance, Version},
};

/// Validates a new object.
pub(crate) fn validate_create(version: &Version, object: &Value) -> Findings {
    let mut errors = Errors::default();
    metadata::validate(version, &object["metadata"], &mut errors);
    errors.0.extend(version.spec.schema.validate(object, None));
    version.strategy.validate_against(object, None, &mut errors);
    version.strategy.validate_create(object, &mut errors);
    with_rules(version, object, None, errors)
}

/// Adds what the rules of a schema say, unless the object is so wrong that they might not be about its values. Upstream:
/// `hasBlockingErr` of `registry/customresource/strategy.go`.
fn with_rules(version: &Version, new: &Value, old: Option<&Value>, mut errors: Errors) -> Findings {
    let schema = &version.spec.schema;
    if !schema.has_rules() {
        return Findings { errors: errors.0, warnings: Vec::new() };
    }
    if errors.0.iter().any(|error| is_blocking(error.cause)) {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        errors.push("<nil>", Cause::Invalid, format!("Invalid value: null: {why}"));
        return Findings { errors: errors.0, warnings: Vec::new() };
    }
    let mut found = schema.validate_rules(new, old);
    found.errors.splice(..0, errors.0);
    found
}

const fn is_blocking(cause: Cause) -> bool {
    matches!(cause, Cause::Required | Cause::NotSupported | Cause::TooLong | Cause::TooMany | Cause::TypeInvalid)
}

/// Validates a change of an object.
pub(crate) fn validate_update(version: &Version, new: &Value, old: &Value) -> Findings {
    let mut errors = Errors::default();
    metadata::validate_update(version, new, old, &mut errors);
    errors.0.extend(version.spec.schema.validate(new, Some(old)));
    version.strategy.validate_against(new, Some(old), &mut errors);
    let schema = &version.spec.schema;
    version.strategy.validate_update(&schema.canonical(new), &schema.canonical(old), &mut errors);
    tolerate(version, new, old, &mut errors.0);
    with_rules(version, new, Some(old), errors)
}

/// Removes the errors that are tolerated because the stored object has them.
fn tolerate(version: &Version, new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let strategy = &version.strategy;
    if errors.iter().all(|error| strategy.tolerates(new, error).is_none()) {
        return;
    }
    let mut before = Errors::default();
    strategy.validate_against(old, Some(old), &mut before);
    let broken: Vec<Tolerance> = before.0.iter().filter_map(|error| strategy.tolerates(old, error)).collect();
    errors.retain(|error| match strategy.tolerates(new, error) {
        None => true,
        Some(rule @ Tolerance::Rule(_)) => !broken.contains(&rule),
        // The value is part of the detail.
        Some(Tolerance::Value) => !before.0.iter().any(|was| was.field == error.field && was.detail == error.detail),
    });
}

/// Validates what not everybody may write.
pub(crate) fn validate_writer(version: &Version, new: &Value, old: Option<&Value>, writer: &User) -> Vec<FieldError> {
    let mut errors = Errors::default();
    version.strategy.validate_writer(new, old, writer, &mut errors);
    errors.0
}

/// Validates a change through `/status`: the rest is as it was.
pub(crate) fn validate_status(version: &Version, new: &Value, old: &Value) -> Findings {
    let mut errors = Errors::default();
    metadata::validate_update(version, new, old, &mut errors);
    let schema = &version.spec.schema;
    errors.0.extend(schema.validate_status(new, old).into_iter().map(of_status));
    version.strategy.validate_status(&schema.canonical(new), &schema.canonical(old), &mut errors);
    with_rules(version, new, Some(old), errors)
}

/// Upstream validates the status of a custom resource separately: paths in its messages start there.
fn of_status(mut error: FieldError) -> FieldError {
    if let Some(inside) = error.field.strip_prefix("status") {
        let inside = inside.strip_prefix('.').unwrap_or(inside);
        error.detail = error.detail.replace(&format!("{} in body", error.field), &format!("{inside} in body"));
    }
    error
}

/// Validates a change through a subresource that reaches one part.
pub(crate) fn validate_part(version: &Version, part: &dyn Part, new: &Value, old: &Value) -> Findings {
    let mut errors = Errors::default();
    metadata::validate_update(version, new, old, &mut errors);
    let schema = &version.spec.schema;
    if !part.validate(&schema.canonical(new), &schema.canonical(old), &mut errors) {
        errors.0.extend(version.spec.schema.validate(new, Some(old)));
        version.strategy.validate_against(new, Some(old), &mut errors);
    }
    with_rules(version, new, Some(old), errors)
}
