//! Validation of object metadata. Pure.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass_apimachinery::group_version::GroupVersion;
use windlass_kit::objects::BANNED_OWNERS;

use super::{
    errors::{self, Cause, Errors, text},
    names,
};
use crate::apiserver::{pipeline::field_manager, types::Version};

/// Upstream's limit on all annotations of an object.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// Validates the metadata of a new object.
pub(super) fn validate(version: &Version, metadata: &Value, errors: &mut Errors) {
    validate_whole(version, metadata, None, errors);
}

fn validate_whole(version: &Version, metadata: &Value, old: Option<&Value>, errors: &mut Errors) {
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        // Something follows a dash at its end.
        let dashed = prefix.strip_suffix('-').filter(|rest| rest.is_ascii() && !rest.is_empty());
        let checked = dashed.map_or(prefix.to_owned(), |rest| format!("{}a", &rest[..rest.len() - 1]));
        errors.unless("metadata.generateName", prefix, version.strategy.validate_prefix(&checked));
    }
    match text(metadata, "name") {
        "" => errors.required("metadata.name", "name or generateName is required"),
        name => errors.unless("metadata.name", name, version.strategy.validate_name(name)),
    }
    if metadata["generation"].as_i64().is_some_and(|generation| generation < 0) {
        errors.invalid("metadata.generation", &metadata["generation"], "must be greater than or equal to 0");
    }
    names::labels(&metadata["labels"], "metadata.labels", errors);
    let mut total = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        errors.unless("metadata.annotations", key, names::qualified(&key.to_lowercase()));
    }
    if total > MAX_ANNOTATIONS_BYTES {
        errors.too_long("metadata.annotations", MAX_ANNOTATIONS_BYTES);
    }
    owners(metadata, errors);
    finalizers(version, metadata, old, errors);
    field_manager::validate_managed_fields(metadata, errors);
}

/// A reference as upstream writes it: in the order of its type's fields.
fn shown(owner: &Value) -> String {
    const FIELDS: [&str; 6] = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let fields = FIELDS.iter().filter_map(|field| Some(format!("{field:?}:{}", owner.get(*field)?)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

fn owners(metadata: &Value, errors: &mut Errors) {
    const FIELD: &str = "metadata.ownerReferences";
    let mut controller = None;
    for (_, owner) in errors::list(metadata, "ownerReferences") {
        let (api_version, kind) = (text(owner, "apiVersion"), text(owner, "kind"));
        let GroupVersion { group, version } = GroupVersion::parse(api_version);
        if version.is_empty() || version.contains('/') {
            errors.invalid_text(format!("{FIELD}.apiVersion"), api_version, "version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                errors.invalid_text(format!("{FIELD}.{field}"), "", "must not be empty");
            }
        }
        if BANNED_OWNERS.contains(&(group, version, kind)) {
            let kind = GroupVersion { group, version }.with_kind(kind);
            let why = format!("{kind} is disallowed from being an owner");
            errors.push(FIELD, Cause::Invalid, format!("Invalid value: {}: {why}", shown(owner)));
        }
        if owner["controller"] == true {
            let this = format!("{kind}/{}", text(owner, "name"));
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let why = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    let all: Vec<String> =
                        errors::list(metadata, "ownerReferences").map(|(_, owner)| shown(owner)).collect();
                    errors.push(FIELD, Cause::Invalid, format!("Invalid value: [{}]: {why}", all.join(",")));
                }
            }
        }
    }
}

/// A finalizer without a domain may be another controller's.
fn finalizers(version: &Version, metadata: &Value, old: Option<&Value>, errors: &mut Errors) {
    const FIELD: &str = "metadata.finalizers";
    let listed: Vec<&str> =
        errors::list(metadata, "finalizers").map(|(_, name)| name.as_str().unwrap_or_default()).collect();
    for name in &listed {
        names::qualified_problems(name).iter().for_each(|why| errors.invalid_text(FIELD, name, why));
    }
    if old.is_none() && ["orphan", "foregroundDeletion"].iter().all(|name| listed.contains(name)) {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(FIELD, &metadata["finalizers"], why);
    }
    // These groups are not served by kube-apiserver itself, which has the rule.
    let is_of_others = matches!(&*version.gvk.group, "apiextensions.k8s.io" | "apiregistration.k8s.io");
    for (at, name) in listed.iter().enumerate() {
        if version.spec.schema.is_built_in() && !is_of_others {
            errors.unless(format!("{FIELD}[{at}]"), name, names::kube_finalizer(name));
        }
    }
}

/// New finalizers may not be added once an object is being deleted.
fn validate_no_new_finalizers(new: &Value, old: &Value, errors: &mut Errors) {
    if old["deletionTimestamp"].is_null() {
        return;
    }
    let set = |metadata: &Value| -> BTreeSet<String> {
        errors::list(metadata, "finalizers").filter_map(|(_, name)| name.as_str().map(str::to_owned)).collect()
    };
    let added: Vec<String> = set(new).difference(&set(old)).map(|name| format!("{name:?}")).collect();
    if !added.is_empty() {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        );
        errors.forbidden("metadata.finalizers", &why);
    }
}

/// Validates the metadata of a changed object.
pub(super) fn validate_update(version: &Version, new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if new["metadata"][field] != old["metadata"][field] {
            errors.invalid(format!("metadata.{field}"), &new["metadata"][field], "field is immutable");
        }
    }
    validate_whole(version, &new["metadata"], Some(&old["metadata"]), errors);
    validate_no_new_finalizers(&new["metadata"], &old["metadata"], errors);
}
