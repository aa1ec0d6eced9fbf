//! Namespace: it ends when its finalizers, which only `/finalize` changes, are gone. Pure.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        FirstDeletion, Strategy,
        pipeline::validation::{
            errors::{Errors, list, text},
            names,
        },
        types::{Definition, FieldResult, Part, Resource, Serves, Subresource, VersionSpec, keep_field},
    },
    kinds::{
        shared::tables::{AGE, column, named},
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "namespaces", "Namespace", Namespace);
    resource.short_names = vec!["ns".into()];
    resource.namespaced = false;
    // No deletecollection, as upstream: it would empty the cluster.
    resource.verbs.retain(|verb| *verb != "deletecollection");
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Namespace"));
    v1.selectable = vec![SelectableField::path("status.phase")];
    v1.subresources =
        vec![Subresource::of_object("finalize", &["update"], Serves::Part(Arc::new(Finalize))), Subresource::status()];
    v1.table = named(vec![column("Status", "Whether it is in use."), AGE], |object, age| {
        vec![object["status"]["phase"].clone(), json!(age)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct Namespace;

impl Strategy for Namespace {
    /// The finalizer is added by [`Strategy::prepare_for_create`]: an update must not bring it back.
    fn default(&self, object: &mut Map<String, Value>) {
        let metadata = child(object, "metadata");
        if let Some(name) = metadata.get("name").filter(|name| name.is_string()).cloned() {
            child(metadata, "labels").insert("kubernetes.io/metadata.name".to_owned(), name);
        }
        set(child(object, "status"), "phase", json!("Active"));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        // The namespace controller removes this finalizer after the namespace's content: without it a deletion would
        // leave the content behind.
        let mut finalizers: Vec<Value> = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            finalizers.push(json!("kubernetes"));
        }
        if !object["spec"].is_object() {
            object["spec"] = json!({});
        }
        object["spec"]["finalizers"] = Value::Array(finalizers);
    }

    /// Only /finalize changes the finalizers of a namespace.
    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        keep_field(object, old, "spec");
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::label(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        for (_, finalizer) in list(&object["spec"], "finalizers") {
            validate_finalizer("spec.finalizers", finalizer, errors);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        validate_phase(new, errors);
    }

    fn first_deletion(&self) -> FirstDeletion {
        FirstDeletion::Marks
    }

    fn begin_deletion(&self, object: &mut Value) {
        object["status"]["phase"] = json!("Terminating");
    }

    fn is_finalized(&self, object: &Value) -> bool {
        object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty)
    }
}

/// `finalize`: the finalizers of the spec.
#[derive(Debug)]
struct Finalize;

impl Part for Finalize {
    fn apply(&self, mut new: Value, old: &Value) -> FieldResult<Value> {
        keep_field(&mut new, old, "status");
        Ok(new)
    }

    fn validate(&self, new: &Value, _old: &Value, errors: &mut Errors) -> bool {
        for (at, finalizer) in list(&new["spec"], "finalizers") {
            validate_finalizer(&format!("spec.finalizers[{at}]"), finalizer, errors);
        }
        true
    }
}

/// A finalizer may be one of upstream's own or a name with a domain.
fn validate_finalizer(field: &str, finalizer: &Value, errors: &mut Errors) {
    let name = finalizer.as_str().unwrap_or_default();
    names::qualified_problems(name).iter().for_each(|why| errors.invalid_text(field, name, why));
    errors.unless(field, name, names::kube_finalizer(name));
}

fn validate_phase(object: &Value, errors: &mut Errors) {
    let phase = text(&object["status"], "phase");
    let (wanted, why) = if object["metadata"]["deletionTimestamp"].is_null() {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    } else {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    };
    if phase != wanted {
        errors.invalid_text("status.Phase", phase, why);
    }
}
