//! Conditions of flow control. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{apiserver::pipeline::validation::errors::Errors, kinds::shared::field::Field};

/// Refuses conditions without a type, and two of one type.
pub(super) fn validate(object: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for condition in Field::root(object).below("status.conditions").items() {
        let kind = condition.at("type");
        if !seen.insert(kind.text()) {
            kind.duplicate(errors);
        }
        if kind.text().is_empty() {
            kind.required("", errors);
        }
    }
}
