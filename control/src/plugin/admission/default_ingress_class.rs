//! DefaultIngressClass: an ingress that names no class gets the default one.

use async_trait::async_trait;
use serde_json::Value;

use super::default_class::default_class;
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::Store,
};

/// Marks the default.
const MARK: &str = "ingressclass.kubernetes.io/is-default-class";

/// Sets the class.
#[derive(Debug)]
pub(super) struct DefaultIngressClass {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let is_ingress = attributes.target.is("networking.k8s.io", "ingresses");
        let is_named = !object["spec"]["ingressClassName"].is_null()
            || !object["metadata"]["annotations"]["kubernetes.io/ingress.class"].is_null();
        if !is_ingress || attributes.target.subresource.is_some() || is_named || !object["spec"].is_object() {
            return Ok(());
        }
        let classes = self.store.resource("ingressclasses.networking.k8s.io");
        if let Some(name) = default_class(&self.store, classes, &[MARK]) {
            object["spec"]["ingressClassName"] = name;
        }
        Ok(())
    }
}
