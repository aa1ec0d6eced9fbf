//! DefaultStorageClass: a claim that names no class gets the default one.

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::Store,
};

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

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
    if !object["spec"]["storageClassName"].is_null() || !object["spec"].is_object() {
        return;
    }
    let (classes, _) = store.list(store.resource("storageclasses.storage.k8s.io"), None);
    let is_default = |class: &Value| class["metadata"]["annotations"][DEFAULT_CLASS] == "true";
    let mut all: Vec<Value> = classes.iter().map(|class| class.value()).filter(is_default).collect();
    // Of several defaults the newest, as upstream.
    all.sort_by_key(|class| class["metadata"]["creationTimestamp"].as_str().unwrap_or("").to_owned());
    if let Some(class) = all.last() {
        object["spec"]["storageClassName"] = class["metadata"]["name"].clone();
    }
}
