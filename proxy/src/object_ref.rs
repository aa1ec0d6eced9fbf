//! References to the objects of events. Pure.

use k8s_openapi::api::core::v1::ObjectReference;

/// A Node as kube-proxy's events name it: without `apiVersion`.
pub(crate) fn node(name: &str) -> ObjectReference {
    ObjectReference { api_version: None, ..windlass_kit::object_ref::node(name) }
}

/// A Service, given as `namespace/name`; `None` for any other text.
pub(crate) fn service(id: &str) -> Option<ObjectReference> {
    let (namespace, name) = id.split_once('/')?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    })
}
