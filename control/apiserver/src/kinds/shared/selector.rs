//! LabelSelectors (`k8s.io/apimachinery/pkg/apis/meta/v1/validation`). Pure.

use serde_json::Value;
use windlass_apimachinery::selectors::{LabelSelector, label_selector_text};

use super::field::Field;
use crate::apiserver::pipeline::validation::{
    errors::{Cause, Errors},
    names,
};

/// Validates a selector; one that is missing is good.
pub(crate) fn validate(selector: &Field<'_>, errors: &mut Errors) {
    validate_with(selector, false, errors);
}

/// The same; `any_value` says that expressions may name values that no label can have.
pub(crate) fn validate_with(selector: &Field<'_>, any_value: bool, errors: &mut Errors) {
    names::labels(selector.at("matchLabels").value, &selector.at("matchLabels").path, errors);
    for expression in selector.at("matchExpressions").items() {
        let (operator, values) = (expression.at("operator"), expression.at("values"));
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                values.required("must be specified when `operator` is 'In' or 'NotIn'", errors);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'", errors);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid_text(operator.path, other, "not a valid selector operator"),
        }
        expression.at("key").label_key(errors);
        for value in values.items().filter(|_| !any_value) {
            value.fits(names::label_value, errors);
        }
    }
}

/// Whether a selector has no requirement.
pub(crate) fn is_empty(selector: &Value) -> bool {
    let none = |field: &str| selector[field].as_object().is_none_or(serde_json::Map::is_empty);
    none("matchLabels") && selector["matchExpressions"].as_array().is_none_or(Vec::is_empty)
}

/// Validates the selector of a workload, which is set and not empty.
pub(crate) fn validate_workload(spec: &Field<'_>, kind: &str, errors: &mut Errors) {
    let selector = spec.at("selector");
    if selector.is_set() {
        validate(&selector, errors);
        if is_empty(selector.value) {
            selector.invalid(&format!("empty selector is invalid for {kind}"), errors);
        }
    } else {
        selector.required("", errors);
    }
}

/// Refuses a selector that cannot be read; `why` may be empty.
pub(crate) fn unreadable(selector: &Field<'_>, why: &str, errors: &mut Errors) {
    // In the order of upstream's fields.
    let parts = ["matchLabels", "matchExpressions"].into_iter().filter(|part| selector.at(part).is_set());
    let parts: Vec<String> = parts.map(|part| format!("\"{part}\":{}", selector.at(part).value)).collect();
    errors.push(&selector.path, Cause::Invalid, format!("Invalid value: {{{}}}{why}", parts.join(",")));
}

/// Whether a selector can be read, which upstream does with values of labels alone; one that is missing selects nothing.
pub(crate) fn is_readable(selector: &Field<'_>) -> bool {
    let mut errors = Errors::default();
    validate(selector, &mut errors);
    errors.0.is_empty() && LabelSelector::from_label_selector(selector.value).is_ok()
}

/// Refuses a template whose labels the selector does not match.
pub(crate) fn validate_match(spec: &Field<'_>, errors: &mut Errors) {
    let (selector, labels) = (spec.at("selector"), spec.below("template.metadata.labels"));
    let Some(parsed) = LabelSelector::from_label_selector(selector.value).ok().filter(|_| is_readable(&selector))
    else {
        return;
    };
    let matches = selector.is_set() && (parsed.is_empty() || parsed.matches_labels(labels.value));
    if !matches {
        labels.invalid("`selector` does not match template `labels`", errors);
    }
}

/// A selector as tables show it.
pub(crate) fn shown(selector: &Value) -> String {
    super::cells::or_none(label_selector_text(selector))
}
