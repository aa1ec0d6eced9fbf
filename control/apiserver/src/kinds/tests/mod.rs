//! Defaults, validation and tables of the built-in kinds, by the words of upstream.

mod defaults;
pub(crate) mod recorded;
mod recorded_tables;
mod reset_fields;
mod rules;
mod security_profiles;
mod tables;
mod upstream;
mod validation;
mod volume_changes;

use std::sync::Arc;

use serde_json::Value;

use windlass_apimachinery::schema::FieldProblems;

use crate::apiserver::{self, pipeline::validation as checks, tests::version, types::Version};

fn gvk(kind: &str) -> Arc<Version> {
    version(kind)
}

fn defaulted(kind: &str, mut value: Value) -> Value {
    apiserver::default(&version(kind), &mut value);
    value
}

fn validate_update(version: Arc<Version>, new: &Value, old: &Value) -> Vec<checks::FieldError> {
    checks::Validation::of_change(&version, new, old).run().errors
}

fn unknown_fields(version: Arc<Version>, value: &Value) -> FieldProblems {
    version.spec.schema.check(value)
}

fn errors(kind: &str, value: Value) -> Vec<String> {
    let value = defaulted(kind, value);
    let found = checks::Validation::of_new(&version(kind), &value).run();
    found.errors.into_iter().map(|e| format!("{}: {}", e.field, e.detail)).collect()
}

/// A table next to this file, read when its test runs.
fn table(name: &str) -> String {
    let path = format!("{}/src/kinds/tests/{name}.tsv", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
