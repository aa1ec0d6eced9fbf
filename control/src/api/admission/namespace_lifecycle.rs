//! NamespaceLifecycle: nothing is created in a missing or terminating namespace, and immortal namespaces cannot be
//! deleted.

use serde_json::Value;

use crate::{
    api::{error::ApiError, request_info::RequestInfo},
    registry::{ResourceType, of_kind},
    store::{Key, Store},
};

/// Namespaces that cannot be deleted.
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Refuses a new object in a missing or terminating namespace.
pub(super) fn admit(store: &Store, info: &RequestInfo, object: &Value) -> Result<(), ApiError> {
    let resource = info.resource;
    if let Some(namespace) = &info.namespace {
        let key = Key { namespace: String::new(), name: namespace.clone() };
        let Some(found) = store.get(store.resource("namespaces"), &key) else {
            let namespaces = of_kind("Namespace").unwrap_or(resource);
            return Err(ApiError::not_found(namespaces, namespace));
        };
        // Events are refused as well, as upstream.
        if found.value()["status"]["phase"] == "Terminating" {
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            let cause = format!("namespace {namespace} is being terminated");
            return Err(ApiError::forbidden(resource, &name, &why).with_cause(
                "NamespaceTerminating",
                &cause,
                "metadata.namespace",
            ));
        }
    }
    Ok(())
}

/// Refuses the deletion of an immortal namespace.
pub(in crate::api) fn admit_delete(resource: &ResourceType, name: &str) -> Result<(), ApiError> {
    if resource.gvk.kind == "Namespace" && IMMORTAL_NAMESPACES.contains(&name) {
        return Err(ApiError::forbidden(resource, name, "this namespace may not be deleted"));
    }
    Ok(())
}
