//! Volumes in containers: as directories and files, and as block devices. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Pod;
use crate::{
    apiserver::pipeline::validation::errors::Errors,
    kinds::shared::{field::Field, field_path::FieldPath, pod_template::volume::validate_local_descending_path},
};

/// Validates the mounts and devices of a container.
pub(super) fn validate(container: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let (all, devices) = (container.at("volumeMounts"), container.at("volumeDevices"));
    mounts(container, &all, &paths_of(&devices, "devicePath"), pod, errors);
    block_devices(&devices, &paths_of(&all, "mountPath"), pod, errors);
}

/// The path of each volume; of several the last.
fn paths_of<'a>(list: &Field<'a>, path: &'static str) -> BTreeMap<&'a str, &'a str> {
    list.items().map(|item| (item.at("name").text(), item.at(path).text())).collect()
}

/// Refuses a volume or path that is in the other list, too.
fn unlike(name: &Field<'_>, path: &Field<'_>, others: &BTreeMap<&str, &str>, list: &str, errors: &mut Errors) {
    if others.contains_key(name.text()) {
        errors.invalid_text(&name.path, name.text(), &format!("must not already exist in {list}"));
    }
    if others.values().any(|other| *other == path.text()) {
        let why = format!("must not already exist as a path in {list}");
        errors.invalid_text(&path.path, path.text(), &why);
    }
}

fn mounts(container: &Field<'_>, all: &Field<'_>, devices: &BTreeMap<&str, &str>, pod: &Pod<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for mount in all.items() {
        let (name, path) = (mount.at("name"), mount.at("mountPath"));
        if name.is_empty() {
            name.required("", errors);
        }
        if !pod.volumes.contains_key(name.text()) {
            errors.not_found(&name.path, &Value::from(name.text()));
        }
        if path.is_empty() {
            path.required("", errors);
        }
        if !seen.insert(path.text()) {
            errors.invalid_text(&path.path, path.text(), "must be unique");
        }
        unlike(&name, &path, devices, "volumeDevices", errors);
        let (sub, expression) = (mount.at("subPath"), mount.at("subPathExpr"));
        // Upstream reports the path of the list instead of its item's.
        validate_local_descending_path(&all.at("subPath").path, sub.text(), errors);
        if !expression.is_empty() && !sub.is_empty() {
            expression.invalid("subPathExpr and subPath are mutually exclusive", errors);
        }
        validate_local_descending_path(&all.at("subPathExpr").path, expression.text(), errors);
        propagation(container, &mount, &all.at("mountPropagation").path, errors);
        recursive_read_only(&mount, &all.at("recursiveReadOnly").path, errors);
    }
}

/// Refuses mounts that reach the host from a container which may not.
fn propagation(container: &Field<'_>, mount: &Field<'_>, path: &FieldPath, errors: &mut Errors) {
    let mode = &mount.value["mountPropagation"];
    if mode.is_null() {
        return;
    }
    errors.one_of(path, mode, &["Bidirectional", "HostToContainer", "None"]);
    if mode == "Bidirectional" && container.value["securityContext"]["privileged"] != true {
        errors.forbidden(path, "Bidirectional mount propagation is available only to privileged containers");
    }
}

fn recursive_read_only(mount: &Field<'_>, path: &FieldPath, errors: &mut Errors) {
    match mount.value["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.value["readOnly"] != true {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount.value["mountPropagation"].as_str().is_some_and(|mode| mode != "None") {
                errors.forbidden(path, "may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(_) => errors.one_of(path, &mount.value["recursiveReadOnly"], &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn block_devices(all: &Field<'_>, mounts: &BTreeMap<&str, &str>, pod: &Pod<'_>, errors: &mut Errors) {
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for device in all.items() {
        let (name, path) = (device.at("name"), device.at("devicePath"));
        let mut invalid = |field: &Field<'_>, why: &str| errors.invalid_text(&field.path, field.text(), why);
        if names.contains(name.text()) {
            invalid(&name, "must be unique");
        }
        match pod.volumes.get(name.text()) {
            Some(volume) if volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null() => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                invalid(&name, why);
            }
            Some(_) => {}
            None if name.is_empty() => {
                name.required("", errors);
                errors.not_found(&name.path, &Value::from(name.text()));
            }
            None => errors.not_found(&name.path, &Value::from(name.text())),
        }
        if path.is_empty() {
            path.required("", errors);
        }
        let mut invalid = |field: &Field<'_>, why: &str| errors.invalid_text(&field.path, field.text(), why);
        if paths.contains(path.text()) {
            invalid(&path, "must be unique");
        }
        if path.text().split('/').any(|part| part == "..") {
            invalid(&path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path.text());
        }
        unlike(&name, &path, mounts, "volumeMounts", errors);
        if !name.is_empty() {
            names.insert(name.text());
        }
    }
}
