//! StorageObjectInUseProtection: volumes, claims and classes of attributes stay while they are used, by a finalizer that the
//! controllers remove. Pure.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation};

/// Adds the finalizer.
#[derive(Debug)]
pub(super) struct StorageObjectInUseProtection;

#[async_trait]
impl AdmissionPlugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let version = &attributes.target.version;
        let finalizer = match (version.group.as_ref(), version.plural.as_ref()) {
            ("", "persistentvolumes") => "kubernetes.io/pv-protection",
            ("", "persistentvolumeclaims") => "kubernetes.io/pvc-protection",
            ("storage.k8s.io", "volumeattributesclasses") => "kubernetes.io/vac-protection",
            _ => return Ok(()),
        };
        if attributes.target.subresource.is_none() {
            add(object, finalizer);
        }
        Ok(())
    }
}

fn add(object: &mut Value, finalizer: &str) {
    match object["metadata"]["finalizers"].as_array_mut() {
        Some(all) if all.iter().any(|one| one == finalizer) => {}
        Some(all) => all.push(json!(finalizer)),
        None => object["metadata"]["finalizers"] = json!([finalizer]),
    }
}
