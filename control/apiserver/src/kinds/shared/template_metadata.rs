//! Metadata of what an object is made of: the template of a claim (upstream: `ValidateTemplateObjectMeta`). Pure.

use super::field::Field;
use crate::apiserver::pipeline::validation::{errors::Errors, names};

/// What it may not have, in upstream's order, and as upstream writes it.
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

/// Refuses all but labels and annotations.
pub(crate) fn validate(metadata: &Field<'_>, errors: &mut Errors) {
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
}
