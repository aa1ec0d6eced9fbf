//! DefaultStorageClass: a claim that names no class gets the default one.

use async_trait::async_trait;
use serde_json::Value;

use super::default_class::default_class;
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    kinds::shared::volume_claims::CLASS_ANNOTATION,
    store::Store,
};

/// Mark the default.
const MARKS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// Sets the class.
#[derive(Debug)]
pub(super) struct DefaultStorageClass {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if attributes.is_core("persistentvolumeclaims") && attributes.target.subresource.is_none() {
            set_default(&self.store, object);
        }
        Ok(())
    }
}

/// Sets the default storage class of a claim without one, if there is a default.
fn set_default(store: &Store, object: &mut Value) {
    let is_named =
        !object["spec"]["storageClassName"].is_null() || !object["metadata"]["annotations"][CLASS_ANNOTATION].is_null();
    if is_named || !object["spec"].is_object() {
        return;
    }
    if let Some(name) = default_class(store, store.resource("storageclasses.storage.k8s.io"), &MARKS) {
        object["spec"]["storageClassName"] = name;
    }
}
