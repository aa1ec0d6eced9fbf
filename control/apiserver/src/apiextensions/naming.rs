//! Which names of a definition are accepted, and its conditions, as upstream's naming and establishing controllers decide
//! them. Pure; the time is a value.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windlass_apimachinery::{field::FieldError, schema::structural};

use crate::{
    apiserver::aggregate,
    kinds::{apiextensions::custom_resource_definition::ca_bundle_fault, shared::conditions},
};

fn text<'a>(names: &'a Value, field: &str) -> &'a str {
    names[field].as_str().unwrap_or("")
}

fn short_names(names: &Value) -> Vec<&str> {
    names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The names that the other definitions of a group use.
#[derive(Debug, Default)]
struct Used<'a> {
    resources: BTreeSet<&'a str>,
    kinds: BTreeSet<&'a str>,
}

impl<'a> Used<'a> {
    fn by(others: impl Iterator<Item = &'a Value>) -> Self {
        let mut used = Self::default();
        for names in others {
            used.resources.extend([text(names, "plural"), text(names, "singular")]);
            used.resources.extend(short_names(names));
            used.kinds.extend([text(names, "kind"), text(names, "listKind")]);
        }
        used.resources.remove("");
        used.kinds.remove("");
        used
    }
}

/// Why a name cannot be used: another definition has it, and it is not accepted yet.
fn conflict(requested: &str, accepted: &str, used: &BTreeSet<&str>) -> Option<String> {
    (requested != accepted && used.contains(requested)).then(|| format!("{requested:?} is already in use"))
}

/// The definition with its accepted names and the conditions `NamesAccepted` and `Established`; `others` are the accepted names
/// of the other definitions of its group.
pub(super) fn named<'a>(definition: &Value, others: impl Iterator<Item = &'a Value>, now: &str) -> Value {
    let used = Used::by(others);
    let requested = &definition["spec"]["names"];
    let before = &definition["status"]["acceptedNames"];
    let mut accepted = if before.is_object() { before.clone() } else { json!({}) };
    let mut problem: Option<(&str, String)> = None;
    let singles = [
        ("plural", "PluralConflict", &used.resources),
        ("singular", "SingularConflict", &used.resources),
        ("shortNames", "ShortNamesConflict", &used.resources),
        ("kind", "KindConflict", &used.kinds),
        ("listKind", "ListKindConflict", &used.kinds),
    ];
    for (field, reason, used) in singles {
        let found = if field == "shortNames" {
            let known = short_names(before);
            let wrong: Vec<String> = short_names(requested)
                .into_iter()
                .filter(|name| !known.contains(name))
                .filter_map(|name| conflict(name, "", used))
                .collect();
            match wrong.as_slice() {
                [] => None,
                [one] => Some(one.clone()),
                many => Some(format!("[{}]", many.join(", "))),
            }
        } else {
            conflict(text(requested, field), text(before, field), used)
        };
        match found {
            Some(why) => problem = Some((reason, why)),
            None => copy(&mut accepted, requested, field),
        }
    }
    copy(&mut accepted, requested, "categories");
    let mut named = definition.clone();
    if !named["status"].is_object() {
        named["status"] = json!({});
    }
    named["status"]["acceptedNames"] = accepted;
    match &problem {
        Some((reason, why)) => conditions::set(&mut named, "NamesAccepted", "False", reason, why, now),
        None => conditions::set(&mut named, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now),
    }
    // Never reverts once it is true.
    if !conditions::is_true(&named, "Established") {
        let (reason, why) = match problem {
            Some(_) => ("NotAccepted", "not all names are accepted"),
            None if ca_bundle_fault(definition).is_some() => {
                ("InvalidCABundle", "The conversion webhook CABundle is invalid")
            }
            None => ("Installing", "the initial names have been accepted"),
        };
        conditions::set(&mut named, "Established", "False", reason, why, now);
    }
    approve(&mut named, now);
    named
}

fn copy(accepted: &mut Value, requested: &Value, field: &str) {
    match requested.get(field) {
        Some(value) => accepted[field] = value.clone(),
        None => drop(accepted.as_object_mut().map(|names| names.remove(field))),
    }
}

/// Sets whether the group, if it is one of Kubernetes' own, has the annotation of its approval.
fn approve(definition: &mut Value, now: &str) {
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    let group = definition["spec"]["group"].as_str().unwrap_or("");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    if !protected {
        return;
    }
    let value = definition["metadata"]["annotations"][ANNOTATION].as_str().unwrap_or("").to_owned();
    let (status, reason, why) = if value.is_empty() {
        (
            "False",
            "MissingAnnotation",
            format!(
                "protected groups must have approval annotation {ANNOTATION:?}, see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        )
    } else if value.starts_with("unapproved") {
        ("False", "UnapprovedAnnotation", format!("not approved: {value:?}"))
    } else if value.starts_with("http://") || value.starts_with("https://") {
        ("True", "ApprovedAnnotation", format!("approved in {value}"))
    } else {
        (
            "False",
            "InvalidAnnotation",
            format!(
                "protected groups must have approval annotation {ANNOTATION:?} with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        )
    };
    conditions::set(definition, "KubernetesAPIApprovalPolicyConformant", status, reason, &why, now);
}

/// The definition with the condition `Established`, if its names are accepted and it has not been established.
pub(super) fn established(definition: &Value, now: &str) -> Option<Value> {
    let due = conditions::is_true(definition, "NamesAccepted") && !conditions::is_true(definition, "Established");
    let due = due && ca_bundle_fault(definition).is_none();
    due.then(|| {
        let mut established = definition.clone();
        let why = "the initial names have been accepted";
        conditions::set(&mut established, "Established", "True", "InitialNamesAccepted", why, now);
        established
    })
}

/// Sets the condition `NonStructuralSchema` of a definition whose schemas are not structural, and removes it from others.
///
/// What is created as v1 has none; definitions of older APIs may come by a restore.
pub(super) fn check_structure(definition: &mut Value, now: &str) {
    const CONDITION: &str = "NonStructuralSchema";
    let found = match violations(definition) {
        Err(why) => Some(("Unknown", "StructuralError", why)),
        Ok(errors) => {
            let lines = errors.iter().map(|error| format!("{}: {}", error.field, error.detail));
            aggregate(lines).map(|text| ("True", "Violations", text))
        }
    };
    match found {
        Some((status, reason, why)) => conditions::set(definition, CONDITION, status, reason, &why, now),
        None => conditions::remove(definition, CONDITION),
    }
}

/// What keeps the schemas of a definition from being structural.
fn violations(definition: &Value) -> Result<Vec<FieldError>, String> {
    let spec = &definition["spec"];
    let mut errors = windlass_apimachinery::field::Errors::default();
    if spec["preserveUnknownFields"] == true {
        errors.invalid("spec.preserveUnknownFields", &spec["preserveUnknownFields"], "must be false");
    }
    for (at, version) in spec["versions"].as_array().into_iter().flatten().enumerate() {
        let schema = &version["schema"]["openAPIV3Schema"];
        if schema.is_object() {
            let found = structural::violations(schema, &format!("spec.versions[{at}].schema.openAPIV3Schema"));
            let name = text(version, "name");
            let failed = |why| format!("failed to check validation schema for version {name}: {why}");
            errors.0.extend(found.map_err(failed)?);
        }
    }
    Ok(errors.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_that_are_not_structural_are_named() {
        let unknown = |why: &str| {
            (
                "Unknown",
                "StructuralError",
                format!("failed to check validation schema for version v1: OpenAPIV3Schema {why}"),
            )
        };
        let found = |text: &str| ("True", "Violations", text.to_owned());
        for (schema, expected) in [
            (json!({"type": "object"}), None),
            (
                json!({"type": "object", "properties": {"a": {}, "b": {"type": "array"}}}),
                Some(found(
                    "[spec.versions[0].schema.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields, spec.versions[0].schema.openAPIV3Schema.properties[b].items: Required value: must be specified]",
                )),
            ),
            (
                json!({"properties": {"a": {"type": "string"}}}),
                Some(found(
                    "spec.versions[0].schema.openAPIV3Schema.type: Required value: must not be empty at the root",
                )),
            ),
            (json!({"type": "object", "properties": {"a": {"$ref": "#/x"}}}), Some(unknown("'$ref' is not supported"))),
            (
                json!({"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}),
                Some(unknown("'items' must be a schema, but is an array")),
            ),
            (
                json!({"type": "object", "allOf": [{"patternProperties": {"a": {"type": "string"}}}]}),
                Some(unknown("'patternProperties' is not supported")),
            ),
        ] {
            let mut definition = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
            check_structure(&mut definition, "2026-01-01T00:00:00Z");
            let condition = conditions::get(&definition, "NonStructuralSchema");
            let text = |field: &str| condition.map_or("", |condition| text(condition, field));
            let actual = condition.map(|_| (text("status"), text("reason"), text("message").to_owned()));
            assert_eq!(actual, expected, "{schema}");
            definition["spec"]["versions"] = json!([]);
            check_structure(&mut definition, "2026-01-01T00:00:00Z");
            assert!(conditions::get(&definition, "NonStructuralSchema").is_none());
            definition["spec"]["preserveUnknownFields"] = json!(true);
            check_structure(&mut definition, "2026-01-01T00:00:00Z");
            let condition = conditions::get(&definition, "NonStructuralSchema").expect("a condition");
            assert_eq!(condition["message"], "spec.preserveUnknownFields: Invalid value: true: must be false");
        }
    }
}
