//! A pod's volumes.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    apiserver::validation::{
        errors::{Errors, list, text},
        names,
    },
    kinds::shared::{field::Field, volume_claims},
};

/// What the metadata of a claim's template may not have, in upstream's order, and as upstream writes it.
const OWN_METADATA: [(&str, &str); 13] = [
    ("name", "name"),
    ("generateName", "generateName"),
    ("namespace", "namespace"),
    ("selfLink", "selfLink"),
    ("uid", "uID"),
    ("resourceVersion", "resourceVersion"),
    ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"),
    ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
    ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"),
    ("managedFields", "managedFields"),
];

/// Checks the volumes of a pod; the names of those that mounts may refer to.
pub(super) fn all<'a>(spec: &'a Value, path: &str, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (at, volume) in list(spec, "volumes") {
        let here = format!("{path}.volumes[{at}]");
        let name = text(volume, "name");
        if name.is_empty() {
            errors.required(format!("{here}.name"), "");
        } else if let Some(why) = names::label(name) {
            errors.invalid_text(format!("{here}.name"), name, &why);
        } else if !seen.insert(name) {
            errors.duplicate(format!("{here}.name"), &volume["name"]);
        }
        let mut sources =
            volume.as_object().into_iter().flatten().filter(|(key, value)| *key != "name" && !value.is_null());
        match (sources.next(), sources.next()) {
            (Some((kind, source)), None) => source_of(&format!("{here}.{kind}"), kind, source, errors),
            (Some(_), Some((second, _))) => {
                errors.forbidden(format!("{here}.{second}"), "may not specify more than 1 volume type")
            }
            (None, _) => errors.required(&here, "must specify a volume type"),
        }
    }
    seen
}

fn source_of(here: &str, kind: &str, source: &Value, errors: &mut Errors) {
    let mut needed = |key: &str| {
        if text(source, key).is_empty() {
            errors.required(format!("{here}.{key}"), "");
        }
    };
    match kind {
        "secret" => needed("secretName"),
        "configMap" => needed("name"),
        "persistentVolumeClaim" => needed("claimName"),
        "hostPath" => {
            needed("path");
            validate_no_back_steps(&format!("{here}.path"), text(source, "path"), errors);
            errors.optional_one_of(
                format!("{here}.type"),
                &source["type"],
                &["BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"],
            );
        }
        "nfs" => {
            needed("server");
            needed("path");
            if !text(source, "path").starts_with('/') {
                errors.invalid(format!("{here}.path"), &source["path"], "must be an absolute path");
            }
        }
        "ephemeral" => {
            let path = format!("{here}.volumeClaimTemplate");
            claim_template(&Field { value: &source["volumeClaimTemplate"], path }, errors);
        }
        "projected" => {
            for (at, projection) in list(source, "sources") {
                let here = format!("{here}.sources[{at}]");
                match projection.as_object().map_or(0, |p| p.values().filter(|v| !v.is_null()).count()) {
                    0 => errors.required(here, ""),
                    1 => {}
                    _ => errors.forbidden(here, "may not specify more than 1 volume type"),
                }
            }
        }
        _ => {}
    }
    if let Some(mode) = source["defaultMode"].as_i64().filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(
            format!("{here}.defaultMode"),
            &Value::from(mode),
            "must be a number between 0 and 0777 (octal), both inclusive",
        );
    }
    for (at, item) in list(source, "items") {
        let here = format!("{here}.items[{at}]");
        if matches!(kind, "secret" | "configMap") && text(item, "key").is_empty() {
            errors.required(format!("{here}.key"), "");
        }
        let path = text(item, "path");
        if path.is_empty() {
            errors.required(format!("{here}.path"), "");
        }
        validate_local_descending_path(&format!("{here}.path"), path, errors);
    }
}

/// Validates the template of a claim that is made for a pod.
fn claim_template(template: &Field<'_>, errors: &mut Errors) {
    if !template.is_set() {
        return template.required("", errors);
    }
    let metadata = template.at("metadata");
    let (annotations, labels) = (metadata.at("annotations"), metadata.at("labels"));
    names::annotations(annotations.value, &annotations.path, errors);
    names::labels(labels.value, &labels.path, errors);
    for (name, shown) in OWN_METADATA {
        let value = metadata.at(name).value;
        let is_unset = value.is_null() || *value == "" || (name == "generation" && *value == 0);
        if !is_unset {
            errors.forbidden(format!("{}.{shown}", metadata.path), "cannot be set");
        }
    }
    volume_claims::validate_spec(&template.at("spec"), errors);
}

/// Refuses paths that begin at the root or leave their directory.
pub(super) fn validate_local_descending_path(field: &str, path: &str, errors: &mut Errors) {
    if path.starts_with('/') {
        errors.invalid_text(field, path, "must be a relative path");
    }
    validate_no_back_steps(field, path, errors);
}

/// Refuses paths that leave their directory.
pub(crate) fn validate_no_back_steps(field: &str, path: &str, errors: &mut Errors) {
    if path.split('/').any(|part| part == "..") {
        errors.invalid_text(field, path, "must not contain '..'");
    }
}
