//! What the API refuses: the stages of validation that every resource has, and the words for it. Pure.
//!
//! Objects come here with their defaults. What one resource refuses is part of its `Strategy`.

pub(crate) mod errors;
mod metadata;
pub(crate) mod names;

use serde_json::Value;
use windlass_apimachinery::effort::Effort;
use windlass_cel::{Findings, RuleBudget};

pub use errors::{Cause, Errors, FieldError};

use crate::apiserver::{
    request::user::User,
    types::{Part, Tolerance, TypeSchema, Version},
};

/// What the regular expressions of a schema may take for one object. Upstream has no such limit, and goes on.
const FIELD_EFFORT: u64 = 1_000_000_000;

/// Which part of an object is validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Whole,
    /// The rest is as it was.
    Status,
}

/// What the schema of a custom resource says of its fields, without rules. With too little effort the errors are worthless.
pub(super) fn fields(
    schema: &TypeSchema,
    reach: Reach,
    new: &Value,
    old: Option<&Value>,
    effort: &mut Effort,
) -> Vec<FieldError> {
    match (reach, old) {
        (Reach::Status, Some(old)) => schema.validate_status(new, old, effort).into_iter().map(of_status).collect(),
        _ => schema.validate(new, old, effort),
    }
}

/// The same with all the effort that there is: what takes longer is refused.
pub(super) fn all_fields(schema: &TypeSchema, reach: Reach, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut effort = Effort::new(FIELD_EFFORT);
    let mut errors = fields(schema, reach, new, old, &mut effort);
    if effort.is_exceeded() {
        let why = "the regular expressions of the schema take too long for texts of this length";
        let detail = format!("Invalid value: null: {why}");
        errors.push(FieldError { field: "<nil>".to_owned(), cause: Cause::Invalid, detail });
    }
    errors
}

/// An object that is validated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validation<'a> {
    pub(super) version: &'a Version,
    pub(super) new: &'a Value,
    pub(super) old: Option<&'a Value>,
    pub(super) reach: Reach,
    /// Of a subresource that reaches one part.
    pub(super) part: Option<&'a dyn Part>,
}

/// What was found before the rules of a schema are asked.
pub(super) struct Checked {
    pub(super) errors: Vec<FieldError>,
    /// Whether they are: an object may be so wrong that they might not be about its values. Upstream: `hasBlockingErr` of
    /// `registry/customresource/strategy.go`.
    pub(super) are_rules_due: bool,
}

impl<'a> Validation<'a> {
    /// Of a new object.
    pub(crate) const fn of_new(version: &'a Version, object: &'a Value) -> Self {
        Self { version, new: object, old: None, reach: Reach::Whole, part: None }
    }

    /// Of a change.
    pub(crate) const fn of_change(version: &'a Version, new: &'a Value, old: &'a Value) -> Self {
        Self { version, new, old: Some(old), reach: Reach::Whole, part: None }
    }

    /// Of a change through `/status`.
    pub(crate) const fn of_status(version: &'a Version, new: &'a Value, old: &'a Value) -> Self {
        Self { version, new, old: Some(old), reach: Reach::Status, part: None }
    }

    /// Of a change through a subresource that reaches one part.
    pub(crate) const fn of_part(version: &'a Version, part: &'a dyn Part, new: &'a Value, old: &'a Value) -> Self {
        Self { version, new, old: Some(old), reach: Reach::Whole, part: Some(part) }
    }

    /// Validates, however long that takes.
    pub(crate) fn run(&self) -> Findings {
        let schema = &self.version.spec.schema;
        let checked = self.check(all_fields(schema, self.reach, self.new, self.old));
        if !checked.are_rules_due {
            return checked.found(Findings::default());
        }
        checked.found(schema.validate_rules(self.new, self.old, &mut RuleBudget::default()))
    }

    /// All but what the schema of a custom resource says, which is known.
    pub(super) fn check(&self, of_schema: Vec<FieldError>) -> Checked {
        let Self { version, new, old, reach, part } = *self;
        let (strategy, schema) = (&version.strategy, &version.spec.schema);
        let mut errors = Errors::default();
        match (old, part) {
            (None, _) => {
                metadata::validate(version, &new["metadata"], &mut errors);
                errors.0.extend(of_schema);
                strategy.validate_against(new, None, &mut errors);
                strategy.validate_create(new, &mut errors);
            }
            (Some(old), Some(part)) => {
                metadata::validate_update(version, new, old, &mut errors);
                if !part.validate(&schema.canonical(new), &schema.canonical(old), &mut errors) {
                    errors.0.extend(of_schema);
                    strategy.validate_against(new, Some(old), &mut errors);
                }
            }
            (Some(old), None) if reach == Reach::Status => {
                metadata::validate_update(version, new, old, &mut errors);
                errors.0.extend(of_schema);
                strategy.validate_status(&schema.canonical(new), &schema.canonical(old), &mut errors);
            }
            (Some(old), None) => {
                metadata::validate_update(version, new, old, &mut errors);
                errors.0.extend(of_schema);
                strategy.validate_against(new, Some(old), &mut errors);
                strategy.validate_update(&schema.canonical(new), &schema.canonical(old), &mut errors);
                tolerate(version, new, old, &mut errors.0);
            }
        }
        let has_rules = schema.has_rules();
        let is_blocked = has_rules && errors.0.iter().any(|error| is_blocking(error.cause));
        if is_blocked {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push("<nil>", Cause::Invalid, format!("Invalid value: null: {why}"));
        }
        Checked { errors: errors.0, are_rules_due: has_rules && !is_blocked }
    }
}

impl Checked {
    /// All that was found, with what rules say.
    pub(super) fn found(self, mut of_rules: Findings) -> Findings {
        of_rules.errors.splice(..0, self.errors);
        of_rules
    }
}

const fn is_blocking(cause: Cause) -> bool {
    matches!(cause, Cause::Required | Cause::NotSupported | Cause::TooLong | Cause::TooMany | Cause::TypeInvalid)
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

/// Upstream validates the status of a custom resource separately: paths in its messages start there.
fn of_status(mut error: FieldError) -> FieldError {
    if let Some(inside) = error.field.strip_prefix("status") {
        let inside = inside.strip_prefix('.').unwrap_or(inside);
        error.detail = error.detail.replace(&format!("{} in body", error.field), &format!("{inside} in body"));
    }
    error
}
