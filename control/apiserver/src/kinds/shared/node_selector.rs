//! Selectors of nodes by labels and fields (`core/v1.NodeSelector`). Pure.

use super::field::Field;
use crate::apiserver::pipeline::validation::{errors::Errors, names};

const OPERATOR: &str = "not a valid selector operator";

/// Labels of nodes that have other names now: the version that has deprecated each, and its new name.
pub(crate) const DEPRECATED_LABELS: [(&str, &str, &str); 5] = [
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
];

/// Validates a selector.
pub(crate) fn validate(selector: &Field<'_>, errors: &mut Errors) {
    validate_with(selector, true, errors);
}

/// The same; `of_labels` says that values are those of labels.
pub(crate) fn validate_with(selector: &Field<'_>, of_labels: bool, errors: &mut Errors) {
    let terms = selector.at("nodeSelectorTerms");
    if terms.is_empty() {
        terms.required("must have at least one node selector term", errors);
    }
    terms.items().for_each(|term| validate_term(&term, of_labels, errors));
}

/// Validates a term; values that are no values of labels are refused where terms are required.
pub(crate) fn validate_term(term: &Field<'_>, required: bool, errors: &mut Errors) {
    term.at("matchExpressions").items().for_each(|expression| validate_expression(&expression, required, errors));
    term.at("matchFields").items().for_each(|field| validate_field(&field, errors));
}

fn validate_expression(expression: &Field<'_>, required: bool, errors: &mut Errors) {
    let (operator, values) = (expression.at("operator"), expression.at("values"));
    match operator.text() {
        "In" | "NotIn" if values.is_empty() => {
            values.required("must be specified when `operator` is 'In' or 'NotIn'", errors);
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'", errors);
        }
        "Gt" | "Lt" if values.len() != 1 => {
            values.required("must be specified single value when `operator` is 'Lt' or 'Gt'", errors);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid_text(operator.path, other, OPERATOR),
    }
    expression.at("key").label_key(errors);
    if required {
        values.items().for_each(|value| value.fits(names::label_value, errors));
    }
}

fn validate_field(field: &Field<'_>, errors: &mut Errors) {
    let (operator, values, key) = (field.at("operator"), field.at("values"), field.at("key"));
    match operator.text() {
        "In" | "NotIn" if values.len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            values.required(why, errors);
        }
        "In" | "NotIn" => {}
        other => errors.invalid_text(operator.path, other, OPERATOR),
    }
    if key.text() == "metadata.name" {
        values.items().for_each(|value| value.fits(names::subdomain, errors));
    } else {
        errors.invalid_text(&key.path, key.text(), "not a valid field selector key");
    }
}

/// What has become of a label, if it has another name now.
pub(crate) fn deprecated(label: &str) -> Option<String> {
    let (_, since, new) = DEPRECATED_LABELS.iter().find(|(old, ..)| *old == label)?;
    Some(format!("deprecated since {since}; use \"{new}\" instead"))
}

/// Warnings about old labels.
pub(crate) fn warnings(selector: &Field<'_>) -> Vec<String> {
    selector.at("nodeSelectorTerms").items().flat_map(|term| term_warnings(&term, true)).collect()
}

/// Warnings about a term: old labels, and where terms are not required also values that are no values of labels.
pub(crate) fn term_warnings(term: &Field<'_>, required: bool) -> Vec<String> {
    let mut found = Vec::new();
    for expression in term.at("matchExpressions").items() {
        let key = expression.at("key");
        found.extend(deprecated(key.text()).map(|why| format!("{}: {} is {why}", key.path, key.text())));
        for value in expression.at("values").items().filter(|_| !required) {
            let problem = names::label_value(value.text());
            found.extend(problem.map(|why| format!("{}: {} is invalid, {why}", value.path, value.text())));
        }
    }
    found
}
