//! PersistentVolumeClaimResize: a claim grows only while it is bound, and if its class lets volumes grow.

use async_trait::async_trait;
use serde_json::Value;
use windlass_quota::{ResourceList, storage_class};

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::{Key, Store},
};

/// Refuses the growth.
#[derive(Debug)]
pub(super) struct PersistentVolumeClaimResize {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let Some(old) = attributes.old else { return Ok(()) };
        if !attributes.is_core("persistentvolumeclaims") || attributes.target.subresource.is_some() {
            return Ok(());
        }
        let requested = |claim: &Value| ResourceList::read(&claim["spec"]["resources"]["requests"]).get("storage");
        // A smaller request is for validation to refuse.
        if requested(object) <= requested(old) {
            return Ok(());
        }
        if old["status"]["phase"] != "Bound" {
            return Err(attributes.forbidden(object, "Only bound persistent volume claims can be expanded"));
        }
        if self.may_grow(object, old) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(attributes.forbidden(object, why))
    }
}

impl PersistentVolumeClaimResize {
    /// Whether the class is the same as before and lets its volumes grow.
    fn may_grow(&self, new: &Value, old: &Value) -> bool {
        let class = storage_class(new);
        if class.is_empty() || class != storage_class(old) {
            return false;
        }
        let key = Key { namespace: String::new(), name: class.to_owned() };
        let found = self.store.get(self.store.resource("storageclasses.storage.k8s.io"), &key);
        found.is_some_and(|class| class.value()["allowVolumeExpansion"] == true)
    }
}
