//! CustomResourceDefinition. What it defines is served by `apiextensions`. Pure, except for timestamps.

mod validation;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_apimachinery::schema::{self, structural};
use windlass_kit::objects::pod_defaults::{child, items, set};

use crate::{
    apiserver::{
        FieldError, FirstDeletion, Strategy, Tolerance,
        generate::now,
        pipeline::validation::errors::{Cause, Errors, list, text},
        types::{Definition, Generation, Resource, Subresource, VersionSpec, keep_field},
    },
    kinds::{
        shared::{conditions, tables::created_at},
        types,
    },
};

pub(crate) use validation::ca_bundle_fault;

/// The finalizer that is removed when no custom object is left.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        CustomResourceDefinition,
    );
    resource.short_names = vec!["crd".into(), "crds".into()];
    resource.categories = vec!["api-extensions".into()];
    resource.namespaced = false;
    resource.allow_unconditional_update = false;
    resource.generation = Generation::Counted;
    let schema = types::built_in("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let mut v1 = VersionSpec::new("v1", schema);
    v1.subresources = vec![Subresource::status()];
    v1.table = created_at();
    Definition::single(resource, v1)
}

/// The name of the storage version.
pub(crate) fn storage_version(definition: &Value) -> &str {
    marked_version(definition).unwrap_or("")
}

/// The name, which may be empty, of the version that is marked as the storage version; `None` without a mark.
fn marked_version(definition: &Value) -> Option<&str> {
    let mut versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    versions.find(|version| version["storage"] == true).map(|version| text(version, "name"))
}

/// The formats in the schemas of a definition that nothing is known of.
fn unknown_formats(definition: &Value) -> BTreeSet<String> {
    let object_meta = types::schema("meta/v1.ObjectMeta");
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let schemas = versions.map(|version| structural::read(&version["schema"]["openAPIV3Schema"], &object_meta));
    schemas.flat_map(|schema| schema::unknown_formats(&schema)).collect()
}

#[derive(Debug)]
struct CustomResourceDefinition;

impl Strategy for CustomResourceDefinition {
    fn validation_takes_long(&self, _: Option<&Value>) -> bool {
        true
    }

    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        let is = |rule: &'static str, holds: bool| holds.then_some(Tolerance::Rule(rule));
        let (field, detail) = (&error.field, &error.detail);
        is("atomic sets", detail.contains("as item of a list with x-kubernetes-list-type=set"))
            .or_else(|| is("keys of maps", detail.contains("x-kubernetes-list-map-keys")))
            .or_else(|| {
                is("pruned defaults", field.ends_with(".default") && detail.contains("must not have unknown fields"))
            })
            .or_else(|| is("types", field.ends_with(".type") && error.cause == Cause::NotSupported))
            .or_else(|| is("versions of reviews", field.ends_with(".conversionReviewVersions")))
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        let names = child(spec, "names");
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
        if !kind.is_empty() {
            set(names, "singular", json!(kind.to_lowercase()));
            set(names, "listKind", json!(format!("{kind}List")));
        }
        if spec.get("conversion").is_none_or(Value::is_null) {
            spec.insert("conversion".to_owned(), json!({"strategy": "None"}));
        }
        let conversion = child(spec, "conversion");
        if let Some(webhook) = conversion.get_mut("webhook").and_then(Value::as_object_mut)
            && let Some(config) = webhook.get_mut("clientConfig").and_then(Value::as_object_mut)
            && let Some(service) = config.get_mut("service").and_then(Value::as_object_mut)
        {
            set(service, "port", json!(443));
        }
        let webhook = &conversion.get("webhook").cloned().unwrap_or_default();
        if webhook["clientConfig"].is_null() && list(webhook, "conversionReviewVersions").next().is_none() {
            conversion.remove("webhook");
        }
        for version in items(spec, "versions") {
            set(version, "served", json!(false));
            set(version, "storage", json!(false));
        }
        // Also what a status update takes away.
        let stored = list(&object["spec"], "versions").find(|(_, version)| version["storage"] == true);
        let stored = stored.map(|(_, version)| version["name"].clone());
        if let Some(stored) = stored
            && let Some(status) = object.get_mut("status").filter(|status| status.is_object())
            && list(status, "storedVersions").next().is_none()
        {
            status["storedVersions"] = json!([stored]);
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        object["status"] = match marked_version(object) {
            None => json!({}),
            Some(stored) => json!({"storedVersions": [stored]}),
        };
    }

    /// A new storage version is added to those that objects are stored in.
    fn prepare_for_update(&self, object: &mut Value, _old: &Value) {
        let stored = json!(storage_version(object));
        let Some(all) = object["status"]["storedVersions"].as_array_mut() else {
            object["status"]["storedVersions"] = json!([stored]);
            return;
        };
        if !all.contains(&stored) {
            all.push(stored);
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "spec");
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        validation::validate(object, old, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate_update(new, old, errors);
    }

    /// Formats that nothing is known of are not validated.
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let before = old.map(unknown_formats).unwrap_or_default();
        let added = unknown_formats(new).into_iter().filter(|format| !before.contains(format));
        added.map(|format| format!("unrecognized format {format:?}")).collect()
    }

    fn first_deletion(&self) -> FirstDeletion {
        FirstDeletion::MarksAlone
    }

    fn begin_deletion(&self, object: &mut Value) {
        if conditions::get(object, "Terminating").is_some() {
            return;
        }
        let why = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        conditions::set(object, "Terminating", "True", "InstanceDeletionPending", why, &now());
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|finalizer| finalizer == CLEANUP_FINALIZER) {
            finalizers.push(json!(CLEANUP_FINALIZER));
            object["metadata"]["finalizers"] = Value::Array(finalizers);
        }
    }
}
