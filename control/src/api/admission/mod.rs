//! Admission: what is added to an object that is written, and who may write it; one file for each of upstream's plugins.
//! Plugins may read the store and change nothing but the object.

mod default_storage_class;
mod default_tolerations;
pub(super) mod namespace_lifecycle;
pub(super) mod node_restriction;
mod priority;
mod service_account;
mod taint_nodes;

use serde_json::Value;

use super::{ApiRequest, error::ApiError, request_info::RequestInfo};
use crate::{
    registry::of_kind,
    schema::{Cause, FieldError},
    store::{Key, Store},
};
use node_restriction::{AdmissionAttributes, Denial, Operation};

/// Admits a new object: the plugins in upstream's order.
///
/// # Errors
/// The refusal of the first plugin that refuses.
pub(super) fn admit_create(store: &Store, info: &RequestInfo, object: &mut Value) -> Result<(), ApiError> {
    namespace_lifecycle::admit(store, info, object)?;
    match info.resource.gvk.kind {
        "Pod" => {
            priority::admit(info, object)?;
            service_account::set_default(object);
            default_tolerations::admit(object);
            service_account::admit(store, info, object)?;
        }
        "PersistentVolumeClaim" => default_storage_class::admit(store, object),
        "Node" => taint_nodes::admit(object),
        _ => {}
    }
    Ok(())
}

/// Admits an update. A pod whose tolerations are replaced gets the default ones again.
pub(super) fn admit_update(info: &RequestInfo, object: &mut Value) {
    if info.resource.gvk.kind == "Pod" && info.subresource.is_none() {
        default_tolerations::admit(object);
    }
}

impl ApiRequest {
    /// Runs NodeRestriction on a write. `old` and `new` are null where there is none.
    pub(super) fn check_node_restriction(
        &self,
        operation: Operation,
        info: &RequestInfo,
        old: &Value,
        new: &Value,
    ) -> Result<(), ApiError> {
        let (resource, subresource) = (info.resource, info.subresource.as_deref().unwrap_or(""));
        let given = || new["metadata"]["name"].as_str().unwrap_or("");
        let name = info.name.as_deref().unwrap_or_else(given);
        let Some(node) = self.user.as_node() else {
            if resource.gvk.kind != "Pod" || !matches!(subresource, "" | "status") {
                return Ok(());
            }
            return node_restriction::admit_mirror_annotation(operation, old, new).map_err(|why| match operation {
                Operation::Update => {
                    let field = "metadata.annotations[kubernetes.io/config.mirror]".to_owned();
                    let error = FieldError { field, cause: Cause::Forbidden, detail: format!("Forbidden: {why}") };
                    ApiError::invalid(resource, name, &[error])
                }
                Operation::Create | Operation::Delete => ApiError::forbidden(resource, name, why),
            });
        };
        let own = (resource.gvk.kind == "Pod" && operation == Operation::Create)
            .then(|| {
                let key = Key { namespace: String::new(), name: node.to_owned() };
                self.api.store().get(self.api.store().resource("nodes"), &key)
            })
            .flatten()
            .map(|node| node.value());
        let attributes = AdmissionAttributes {
            node,
            operation,
            kind: resource.gvk.kind,
            subresource,
            name,
            old,
            new,
            node_uid: own.as_ref().and_then(|node| node["metadata"]["uid"].as_str()),
        };
        node_restriction::admit(&attributes).map_err(|denial| match denial {
            Denial::Forbidden(why) => ApiError::forbidden(resource, name, &why),
            Denial::NodeNotFound => ApiError::not_found(of_kind("Node").unwrap_or(resource), node),
        })
    }
}
