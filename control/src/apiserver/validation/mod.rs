//! What the API refuses: the stages of validation that every resource has, and the words for it. Pure.
//!
//! Objects come here with their defaults. What one resource refuses is part of its `Strategy`.

pub(crate) mod errors;
mod metadata;
pub(crate) mod names;

use serde_json::Value;

pub use errors::{Cause, Errors, FieldError};

use super::{subresource::Part, types::Version, user::User};

/// Validates a new object.
pub(crate) fn validate_create(version: &Version, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::validate(version, &object["metadata"], &mut errors);
    errors.0.extend(version.spec.schema.validate(object, None));
    version.strategy.validate(object, &mut errors);
    version.strategy.validate_create(object, &mut errors);
    errors.0
}

/// Validates a change of an object.
pub(crate) fn validate_update(version: &Version, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::validate_update(version, new, old, &mut errors);
    errors.0.extend(version.spec.schema.validate(new, Some(old)));
    version.strategy.validate(new, &mut errors);
    let schema = &version.spec.schema;
    version.strategy.validate_update(&schema.canonical(new), &schema.canonical(old), &mut errors);
    errors.0
}

/// Validates what not everybody may write.
pub(crate) fn validate_writer(version: &Version, new: &Value, old: Option<&Value>, writer: &User) -> Vec<FieldError> {
    let mut errors = Errors::default();
    version.strategy.validate_writer(new, old, writer, &mut errors);
    errors.0
}

/// Validates a change through `/status`: the rest is as it was.
pub(crate) fn validate_status(version: &Version, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::validate_update(version, new, old, &mut errors);
    errors.0.extend(version.spec.schema.validate(new, Some(old)));
    let schema = &version.spec.schema;
    version.strategy.validate_status(&schema.canonical(new), &schema.canonical(old), &mut errors);
    errors.0
}

/// Validates a change through a subresource that reaches one part.
pub(crate) fn validate_part(version: &Version, part: &dyn Part, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::validate_update(version, new, old, &mut errors);
    let schema = &version.spec.schema;
    if !part.validate(&schema.canonical(new), &schema.canonical(old), &mut errors) {
        errors.0.extend(version.spec.schema.validate(new, Some(old)));
        version.strategy.validate(new, &mut errors);
    }
    errors.0
}
