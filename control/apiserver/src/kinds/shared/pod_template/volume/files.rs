//! Volumes of files: of Secrets, ConfigMaps and the pod itself. Pure.

use super::validate_local_path;
use crate::{
    apiserver::pipeline::validation::errors::Errors,
    kinds::shared::{
        field::Field,
        pod_template::container::{validate_field_reference, validate_resource_reference},
    },
};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// What files may be made of, besides resources.
const POD_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Refuses an invalid mode.
pub(super) fn mode(mode: &Field<'_>, errors: &mut Errors) {
    if mode.number().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        mode.invalid(MODE, errors);
    }
}

fn path(path: &Field<'_>, errors: &mut Errors) {
    if path.is_empty() {
        path.required("", errors);
    }
    validate_local_path(&path.path, path.text(), errors);
}

/// Validates a volume of keys.
pub(super) fn validate(source: &Field<'_>, errors: &mut Errors) {
    mode(&source.at("defaultMode"), errors);
    source.at("items").items().for_each(|item| key(&item, errors));
}

/// Validates a key and its path.
pub(super) fn key(item: &Field<'_>, errors: &mut Errors) {
    if item.at("key").is_empty() {
        item.at("key").required("", errors);
    }
    path(&item.at("path"), errors);
    mode(&item.at("mode"), errors);
}

/// Validates a volume of what the pod is.
pub(super) fn validate_downward(source: &Field<'_>, errors: &mut Errors) {
    mode(&source.at("defaultMode"), errors);
    // Upstream reports the path of the source instead of its item's.
    let items = source.at("items");
    items.items().for_each(|item| file(&Field { value: item.value, path: source.path.clone() }, errors));
}

/// Validates a file of what the pod is.
pub(super) fn file(file: &Field<'_>, errors: &mut Errors) {
    path(&file.at("path"), errors);
    let (field, resource) = (file.at("fieldRef"), file.at("resourceFieldRef"));
    if field.is_set() {
        validate_field_reference(&field, POD_FIELDS, errors);
        if resource.is_set() {
            // The value is upstream's word.
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            file.invalid_as("\"resource\"", why, errors);
        }
    } else if resource.is_set() {
        validate_resource_reference(&resource, true, errors);
    } else {
        file.required("one of fieldRef and resourceFieldRef is required", errors);
    }
    mode(&file.at("mode"), errors);
}
