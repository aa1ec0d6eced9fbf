//! What is refused in a review of access, in upstream's words. Pure.

use serde_json::{Value, json};

use crate::apiserver::{
    ApiError,
    pipeline::validation::{
        errors::{Cause, Errors, list, text},
        names,
    },
};

/// Who a review is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The caller.
    Caller,
    /// The user and groups that it names.
    Named,
    /// The same, and only what they may do in its namespace.
    NamedInNamespace,
}

/// Validates a review.
///
/// # Errors
/// All that is wrong with it.
pub(super) fn check(group: &str, review: &Value, subject: Subject) -> Result<(), ApiError> {
    let errors = problems(review, subject);
    if errors.0.is_empty() { Ok(()) } else { Err(ApiError::invalid_review(group, &errors.0)) }
}

fn problems(review: &Value, subject: Subject) -> Errors {
    let mut errors = Errors::default();
    let spec = &review["spec"];
    let (wanted, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let path_value = json!({"Path": text(path, "path"), "Verb": text(path, "verb")});
    match (wanted.is_object(), path.is_object()) {
        (true, true) => {
            let why = "cannot be specified in combination with resourceAttributes";
            errors.invalid("spec.nonResourceAttributes", &path_value, why);
        }
        (false, false) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push("spec.resourceAttributes", Cause::Invalid, format!("Invalid value: null: {why}"));
        }
        _ => {}
    }
    if subject != Subject::Caller && text(spec, "user").is_empty() && list(spec, "groups").next().is_none() {
        errors.invalid_text("spec.user", "", "at least one of user or group must be specified");
    }
    selector(&wanted["fieldSelector"], "spec.resourceAttributes.fieldSelector", false, &mut errors);
    selector(&wanted["labelSelector"], "spec.resourceAttributes.labelSelector", true, &mut errors);
    let local = subject == Subject::NamedInNamespace;
    let empty = |(field, _): (&String, &Value)| field == "managedFields" || (local && field == "namespace");
    if !review["metadata"].as_object().into_iter().flatten().all(empty) {
        let why = if local { "must be empty except for namespace" } else { "must be empty" };
        errors.invalid("metadata", &review["metadata"], why);
    }
    if local {
        if wanted.is_object() && text(wanted, "namespace") != text(&review["metadata"], "namespace") {
            let field = "spec.resourceAttributes.namespace";
            errors.invalid_text(field, text(wanted, "namespace"), "must match metadata.namespace");
        }
        if path.is_object() {
            errors.invalid("spec.nonResourceAttributes", &path_value, "disallowed on this kind of request");
        }
    }
    errors
}

/// Validates a selector of fields or labels. Unknown operators are left to later versions.
fn selector(selector: &Value, here: &str, of_labels: bool, errors: &mut Errors) {
    if !selector.is_object() {
        return;
    }
    let requirements = list(selector, "requirements").count();
    if !text(selector, "rawSelector").is_empty() && requirements > 0 {
        let why = "may not specified at the same time as requirements";
        errors.invalid(format!("{here}.rawSelector"), &selector["rawSelector"], why);
    } else if text(selector, "rawSelector").is_empty() && requirements == 0 {
        let why = format!("when {here} is specified, requirements or rawSelector is required");
        errors.required(format!("{here}.requirements"), &why);
    }
    for (at, requirement) in list(selector, "requirements") {
        let here = format!("{here}.requirements[{at}]");
        let key = text(requirement, "key");
        if !of_labels && key.is_empty() {
            errors.required(format!("{here}.key"), "must be specified");
        }
        let values = list(requirement, "values").next().is_some();
        match text(requirement, "operator") {
            "In" | "NotIn" if !values => {
                errors.required(format!("{here}.values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if values => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(format!("{here}.values"), why);
            }
            _ => {}
        }
        if of_labels {
            errors.unless(format!("{here}.key"), key, names::qualified(key));
            for (at, value) in list(requirement, "values") {
                let value = value.as_str().unwrap_or_default();
                errors.unless(format!("{here}.values[{at}]"), value, names::label_value(value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_review() {
        use Subject::{Caller, Named, NamedInNamespace};
        let pods = || json!({"verb": "get", "resource": "pods", "namespace": "n"});
        let path = || json!({"verb": "get", "path": "/x"});
        for (subject, metadata, spec, fields) in [
            (Caller, json!({}), json!({"resourceAttributes": pods()}), vec![]),
            (Named, json!({}), json!({"user": "u", "nonResourceAttributes": path()}), vec![]),
            (Named, json!({}), json!({}), vec!["spec.resourceAttributes", "spec.user"]),
            (Caller, json!({"name": "x"}), json!({"resourceAttributes": pods()}), vec!["metadata"]),
            (NamedInNamespace, json!({"namespace": "n"}), json!({"user": "u", "resourceAttributes": pods()}), vec![]),
            (
                NamedInNamespace,
                json!({"namespace": "m"}),
                json!({"groups": ["g"], "resourceAttributes": pods(), "nonResourceAttributes": path()}),
                vec!["spec.nonResourceAttributes", "spec.resourceAttributes.namespace", "spec.nonResourceAttributes"],
            ),
            (
                Caller,
                json!({}),
                json!({"resourceAttributes": {"fieldSelector": {}, "labelSelector": {"requirements": [
                    {"key": "!", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]}, {"key": "a", "operator": "New"}]}}}),
                vec![
                    "spec.resourceAttributes.fieldSelector.requirements",
                    "spec.resourceAttributes.labelSelector.requirements[0].values",
                    "spec.resourceAttributes.labelSelector.requirements[0].key",
                    "spec.resourceAttributes.labelSelector.requirements[1].values",
                ],
            ),
        ] {
            let found = problems(&json!({"metadata": metadata, "spec": spec}), subject);
            let found: Vec<&str> = found.0.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(found, fields, "{subject:?} {spec}");
        }
    }
}
