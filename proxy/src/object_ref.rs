//! References to the objects of events. Pure.

use k8s_openapi::api::core::v1::ObjectReference;

/// A Node. Its uid is its name, as in events of the kubelet and kube-proxy.
pub(crate) fn node(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
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
