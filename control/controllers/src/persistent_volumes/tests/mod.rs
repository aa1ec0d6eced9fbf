use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

mod claims;
mod matching;
mod volumes;

/// The claim `n/c` with the UID 1.
fn claim(spec: Value) -> PersistentVolumeClaim {
    annotated_claim(json!({}), spec)
}

fn annotated_claim(annotations: Value, spec: Value) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "1", "annotations": annotations},
        "spec": spec, "status": {"phase": "Pending"}}))
    .unwrap()
}

/// A claim for a gibibyte for one node.
fn asking(more: Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    spec
}

/// An available volume for one node.
fn volume(name: &str, storage: &str, more: Value) -> PersistentVolume {
    let mut spec = json!({"capacity": {"storage": storage}, "accessModes": ["ReadWriteOnce"]});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"tier": name}}, "spec": spec,
        "status": {"phase": "Available"}}))
    .unwrap()
}

fn in_phase(mut volume: PersistentVolume, phase: &str) -> PersistentVolume {
    volume.status.get_or_insert_default().phase = Some(phase.to_owned());
    volume
}

fn holder(uid: &str) -> Value {
    json!({"claimRef": {"namespace": "n", "name": "c", "uid": uid}})
}

fn reserved() -> Value {
    json!({"claimRef": {"namespace": "n", "name": "c"}})
}

fn all(volumes: impl IntoIterator<Item = PersistentVolume>) -> Vec<Arc<PersistentVolume>> {
    volumes.into_iter().map(Arc::new).collect()
}
