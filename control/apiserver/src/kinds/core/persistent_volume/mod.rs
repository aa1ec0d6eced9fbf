//! PersistentVolume. Pure.

mod sources;
mod validation;

pub(crate) use validation::validate_inline;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set, set_pointer, volume_sources};

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        generate::now,
        pipeline::validation::errors::Errors,
        types::{Definition, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{self, or_unset, text},
            set_status,
            tables::{AGE, column, named, wide},
            tolerance,
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "persistentvolumes", "PersistentVolume", PersistentVolume);
    resource.short_names = vec!["pv".into()];
    resource.namespaced = false;
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "PersistentVolume"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        column("Capacity", "How much it holds."),
        column("Access Modes", "How it can be mounted."),
        column("Reclaim Policy", "What becomes of it when its claim is gone."),
        column("Status", "Whether it is bound."),
        column("Claim", "The claim it is bound to."),
        column("StorageClass", "Its class."),
        column("VolumeAttributesClass", "Its class of attributes."),
        column("Reason", "Why it is as it is."),
        AGE,
        wide("VolumeMode", "Files, or a raw device."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let (spec, claim) = (&object["spec"], &object["spec"]["claimRef"]);
    let holder = format!("{}/{}", text(&claim["namespace"]), text(&claim["name"]));
    vec![
        spec["capacity"]["storage"].clone(),
        json!(cells::access_modes(&spec["accessModes"])),
        spec["persistentVolumeReclaimPolicy"].clone(),
        json!(cells::phase(object)),
        json!(if claim.is_object() { holder } else { String::new() }),
        json!(text(&spec["storageClassName"])),
        json!(or_unset(&spec["volumeAttributesClassName"])),
        json!(text(&object["status"]["reason"])),
        json!(age),
        spec["volumeMode"].clone(),
    ]
}

/// The field of the status with the time of the last phase transition.
const PHASE_TIME: &str = "lastPhaseTransitionTime";

#[derive(Debug)]
struct PersistentVolume;

impl Strategy for PersistentVolume {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        tolerance::label_values(error, &["spec.nodeAffinity"])
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        set(spec, "persistentVolumeReclaimPolicy", json!("Retain"));
        set_pointer(spec, "volumeMode", json!("Filesystem"));
        volume_sources(spec);
        set(child(object, "status"), "phase", json!("Pending"));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        set_status(object, json!({"phase": "Pending", PHASE_TIME: now()}));
    }

    /// A new phase gets the current time as its transition time, unless the writer sets one.
    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        let (new, old) = (&mut object["status"], &old["status"]);
        if new["phase"] != old["phase"] && (new[PHASE_TIME].is_null() || new[PHASE_TIME] == old[PHASE_TIME]) {
            new[PHASE_TIME] = json!(now());
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        validation::validate(object, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate_update(new, old, errors);
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        validation::warnings(new)
    }
}
