//! PersistentVolumeClaim. Pure.

mod validation;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set, set_pointer};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::errors::Errors,
        types::{Definition, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{self, or_unset, text},
            field::Field,
            set_phase,
            tables::{AGE, column, named, wide},
            tolerance, volume_claims,
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "persistentvolumeclaims", "PersistentVolumeClaim", PersistentVolumeClaim);
    resource.short_names = vec!["pvc".into()];
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "PersistentVolumeClaim"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        column("Status", "Whether it is bound."),
        column("Volume", "The volume it is bound to."),
        column("Capacity", "How much that holds."),
        column("Access Modes", "How it can be mounted."),
        column("StorageClass", "Its class."),
        column("VolumeAttributesClass", "Its class of attributes."),
        AGE,
        wide("VolumeMode", "Files, or a raw device."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    vec![
        json!(cells::phase(object)),
        json!(text(&spec["volumeName"])),
        json!(text(&status["capacity"]["storage"])),
        json!(cells::access_modes(&status["accessModes"])),
        json!(text(&spec["storageClassName"])),
        json!(or_unset(&spec["volumeAttributesClassName"])),
        json!(age),
        spec["volumeMode"].clone(),
    ]
}

#[derive(Debug)]
struct PersistentVolumeClaim;

impl Strategy for PersistentVolumeClaim {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        const SOURCES: [(&str, &str); 2] =
            [("spec.dataSource.apiGroup", "groups of sources"), ("spec.dataSourceRef.apiGroup", "groups of sources")];
        let values = tolerance::label_values(error, &["spec.selector"]);
        values.or_else(|| tolerance::rule_of(error, &SOURCES))
    }

    fn default(&self, object: &mut Map<String, Value>) {
        set_pointer(child(object, "spec"), "volumeMode", json!("Filesystem"));
        set(child(object, "status"), "phase", json!("Pending"));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        set_phase(object, "Pending");
        volume_claims::normalize_sources(object, None);
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        volume_claims::normalize_sources(object, Some(old));
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        volume_claims::validate_spec(&Field::root(object).at("spec"), errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate_update(new, old, errors);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        validation::validate_status(new, errors);
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let class = volume_claims::class_annotation_warning(new);
        class.into_iter().chain(volume_claims::fractions(&Field::root(new).at("spec"))).collect()
    }
}
